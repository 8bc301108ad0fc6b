"""JSON from outside becomes model objects here, or an error that names the field and the reason."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from hack.fake_gateway.model import Behaviour, ChargeRequest, Config, RefundRequest, Span

AMOUNT_MAX = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""

NUMBER_MAX = 3e9
"""The largest duration (in the field's unit), weight or rate; a century of seconds."""

_ADVICE = ("do_not_try_again", "confirm_card_data", "try_again_later")
_CURRENCY = re.compile(r"[A-Z]{3}")
_CODE = re.compile(r"[a-z][a-z_]*")


class FieldError(ValueError):
    """Raised where a field of a request or of the configuration is not acceptable."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


def json_object(text: bytes | str, field: str = "body") -> dict[str, Any]:
    """Raises FieldError where the text is no JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FieldError(field, f"is not JSON: {error}") from error
    return _mapping(field, value)


def charge_request(body: bytes) -> ChargeRequest:
    document = json_object(body)
    _no_unknown("", document, ("amount", "currency", "payment_method", "reference", "metadata"))
    return ChargeRequest(
        amount=amount("amount", document.get("amount")),
        currency=_currency("currency", document.get("currency")),
        payment_method=_text("payment_method", document.get("payment_method")),
        reference=_text("reference", document.get("reference")),
        metadata=_metadata(document.get("metadata", {})),
    )


def refund_request(body: bytes) -> RefundRequest:
    document = json_object(body)
    _no_unknown("", document, ("charge", "amount", "currency", "reference", "metadata"))
    return RefundRequest(
        charge=_text("charge", document.get("charge")),
        amount=amount("amount", document.get("amount")),
        currency=_currency("currency", document.get("currency")),
        reference=_text("reference", document.get("reference")),
        metadata=_metadata(document.get("metadata", {})),
    )


def idempotency_key(header: str | None) -> str:
    if not header:
        raise FieldError("Idempotency-Key", "this header is required")
    if len(header) > 255:
        raise FieldError("Idempotency-Key", f"must be at most 255 characters long, has {len(header)}")
    if not header.isascii() or not header.isprintable():
        raise FieldError("Idempotency-Key", "must be printable ASCII")
    return header


def config(document: Mapping[str, Any]) -> Config:
    """The whole configuration; fields left out take their defaults. Raises FieldError, with a dotted path."""
    _no_unknown("", document, (*_CONFIG_FIELDS, *_BEHAVIOUR_FIELDS, "services", "payment_methods"))
    general = {name: parse(name, document[name]) for name, parse in _CONFIG_FIELDS.items() if name in document}
    return Config(
        **general,
        behaviour=Behaviour(**_behaviour_fields("", document)),
        services=_overrides("services", document.get("services", {})),
        payment_methods=_overrides("payment_methods", document.get("payment_methods", {})),
    )


def config_document(value: Config) -> dict[str, Any]:
    """The inverse of `config`: every field, defaults too."""
    document = dataclasses.asdict(value) | {"webhook_secrets": list(value.webhook_secrets)}
    behaviour: dict[str, Any] = document.pop("behaviour")
    return document | behaviour


def seconds_to_advance(document: Mapping[str, Any]) -> float:
    _no_unknown("", document, ("advance_seconds",))
    return _number("advance_seconds", document.get("advance_seconds"))


def reversal_code(body: bytes) -> str:
    document = json_object(body or b"{}")
    _no_unknown("", document, ("code",))
    code = _text("code", document.get("code", "late_failure"))
    _decline_code("code", code)
    return code


def completion_fails(body: bytes) -> bool:
    document = json_object(body or b"{}")
    _no_unknown("", document, ("fails",))
    fails = document.get("fails", False)
    if not isinstance(fails, bool):
        _refuse("fails", "must be true or false", fails)
    return fails


def page_limit(text: str) -> int:
    return _whole_text("limit", text, 1, 1000)


def page_number(text: str) -> int:
    return _whole_text("page", text, 1, 10**9)


def _refuse(field: str, reason: str, value: object) -> NoReturn:
    shown = repr(value)
    raise FieldError(field, f"{reason}, got {shown if len(shown) <= 80 else shown[:77] + '...'}")


def _no_unknown(path: str, document: Mapping[str, Any], known: Iterable[str]) -> None:
    names = set(known)
    for name in document:
        if name not in names:
            raise FieldError(f"{path}{name}", f"unknown field; known are {', '.join(sorted(names))}")


def _mapping(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(field, "must be a JSON object", value)
    return value


def amount(field: str, value: object) -> int:
    """Minor units. Raises FieldError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= AMOUNT_MAX:
        _refuse(field, f"must be a whole number of minor units from 1 to {AMOUNT_MAX}", value)
    return value


def _currency(field: str, value: object) -> str:
    if not isinstance(value, str) or not _CURRENCY.fullmatch(value):
        _refuse(field, "must be three capital letters as in ISO 4217", value)
    return value


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 255 or not value.isprintable():
        _refuse(field, "must be printable text of 1 to 255 characters", value)
    return value


def _metadata(value: object) -> dict[str, str]:
    metadata = _mapping("metadata", value)
    if len(metadata) > 50:
        raise FieldError("metadata", f"must have at most 50 entries, has {len(metadata)}")
    for name, entry in metadata.items():
        if not isinstance(entry, str) or len(entry) > 500:
            _refuse(f"metadata.{name}", "must be text of at most 500 characters", entry)
    return metadata


def _whole_text(field: str, text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or not low <= int(text) <= high:
        _refuse(field, f"must be a whole number from {low} to {high}", text)
    return int(text)


def _number(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= NUMBER_MAX:
        _refuse(field, f"must be a number from 0 to {NUMBER_MAX:.0f}", value)
    return value


def _rate(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        _refuse(field, "must be a number from 0 to 1", value)
    return float(value)


def _positive(field: str, value: object) -> float:
    number = _number(field, value)
    if number == 0:
        _refuse(field, "must be greater than 0", value)
    return number


def _whole(field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        _refuse(field, "must be a whole number that is not negative", value)
    return value


def _max_rps(field: str, value: object) -> float | None:
    return None if value is None else _positive(field, value)


def _api_key(field: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.isascii() or not value):
        # The value stays out of the message: it may be a secret with a stray character.
        raise FieldError(field, "must be null or ASCII text")
    return value


def _webhook_url(field: str, value: object) -> str | None:
    if value is not None and not (isinstance(value, str) and re.fullmatch(r"https?://[^\s]+", value)):
        _refuse(field, "must be null or an HTTP address", value)
    return value


def _secrets(field: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
        raise FieldError(field, "must be a list of texts")
    return tuple(value)


def _delay(field: str, value: object) -> Span:
    if not isinstance(value, dict):
        number = _number(field, value)
        return Span(min=number, max=number)
    _no_unknown(f"{field}.", value, ("min", "max"))
    span = Span(min=_number(f"{field}.min", value.get("min")), max=_number(f"{field}.max", value.get("max")))
    if span.max < span.min:
        _refuse(f"{field}.max", f"must not be below min ({span.min})", span.max)
    return span


def _decline_codes(field: str, value: object) -> dict[str, float]:
    codes = _mapping(field, value)
    if not codes:
        raise FieldError(field, "must name at least one decline code and its weight")
    for code, weight in codes.items():
        _decline_code(field, code)
        _positive(f"{field}.{code}", weight)
    return codes


def _advice_codes(field: str, value: object) -> dict[str, str | None]:
    codes = _mapping(field, value)
    for code, advice in codes.items():
        _decline_code(field, code)
        if advice is not None and advice not in _ADVICE:
            _refuse(f"{field}.{code}", f"must be null or one of {', '.join(_ADVICE)}", advice)
    return codes


def _decline_code(field: str, code: str) -> None:
    if not _CODE.fullmatch(code):
        _refuse(field, "decline codes are small letters and underscores", code)


def _overrides(field: str, value: object) -> dict[str, dict[str, Any]]:
    return {name: _override(f"{field}.{name}", fields) for name, fields in _mapping(field, value).items()}


def _override(path: str, value: object) -> dict[str, Any]:
    fields = _mapping(path, value)
    _no_unknown(f"{path}.", fields, _BEHAVIOUR_FIELDS)
    return _behaviour_fields(f"{path}.", fields)


def _behaviour_fields(path: str, document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: parse(f"{path}{name}", document[name]) for name, parse in _BEHAVIOUR_FIELDS.items() if name in document}


_CONFIG_FIELDS: dict[str, Callable[[str, object], Any]] = {
    "seed": _whole,
    "api_key": _api_key,
    "key_ttl_seconds": _positive,
    "search_lag_seconds": _number,
    "webhook_url": _webhook_url,
    "webhook_secrets": _secrets,
    "webhook_duplicate_rate": _rate,
    "webhook_late_rate": _rate,
    "webhook_late_seconds": _number,
    "webhook_lost_rate": _rate,
    "webhook_retry_seconds": _positive,
}

_BEHAVIOUR_FIELDS: dict[str, Callable[[str, object], Any]] = {
    "delay_ms": _delay,
    "decline_rate": _rate,
    "decline_codes": _decline_codes,
    "advice_codes": _advice_codes,
    "rate_limited_rate": _rate,
    "rate_limited_times": _whole,
    "retry_after_seconds": _whole,
    "in_flight_conflict_rate": _rate,
    "conflict_seconds": _number,
    "lost_answer_rate": _rate,
    "cancel_lost_answer_rate": _rate,
    "error_500_before_rate": _rate,
    "error_500_after_rate": _rate,
    "hang_rate": _rate,
    "hang_seconds": _number,
    "pending_rate": _rate,
    "pending_decline_rate": _rate,
    "settle_after_seconds": _number,
    "late_failure_rate": _rate,
    "late_failure_seconds": _number,
    "max_rps": _max_rps,
}
