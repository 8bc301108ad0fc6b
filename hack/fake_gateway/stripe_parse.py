"""Stripe's form-encoded requests become model objects here, or an error that names the field and the reason.

Only the parameters that an off-session charge needs are known; any other is refused, so that a misspelt one is not ignored.
"""

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

from hack.fake_gateway import parse
from hack.fake_gateway.model import ChargeRequest, RefundRequest
from hack.fake_gateway.parse import FieldError
from hack.fake_gateway.stripe_documents import THREE_DECIMALS, decimals_apart

_SEARCH = re.compile(r"""metadata\[(['"])reference\1\]:(['"])((?:[^'"\\]|\\.)*)\2""")
_METADATA = re.compile(r"metadata\[([^\]]{1,40})\]")
_INTENT = frozenset(
    (
        "amount",
        "currency",
        "customer",
        "payment_method",
        "confirm",
        "off_session",
        "error_on_requires_action",
        "automatic_payment_methods[enabled]",
        "automatic_payment_methods[allow_redirects]",
    )
)
_REFUND = frozenset(("payment_intent", "amount"))
_CANCEL = frozenset(("cancellation_reason",))
_REASONS = frozenset(("duplicate", "fraudulent", "requested_by_customer", "abandoned"))


def payment_intent(body: bytes) -> ChargeRequest:
    """An intent that is confirmed at once, with the customer away. Raises FieldError."""
    fields, metadata = _form(body, _INTENT)
    for name in ("confirm", "off_session"):
        if fields.get(name) != "true":
            raise FieldError(name, "only intents that are confirmed at once and off session are known here")
    currency = _currency(fields.get("currency", ""))
    return ChargeRequest(
        amount=_amount(fields.get("amount", ""), currency),
        currency=currency,
        payment_method=_text("payment_method", fields),
        customer=fields.get("customer"),
        reference=metadata.get("reference") or "none",
        metadata=metadata,
    )


def cancellation_reason(body: bytes) -> str | None:
    """Why an intent is canceled, where it is said. Raises FieldError."""
    reason = _form(body, _CANCEL)[0].get("cancellation_reason")
    if reason is not None and reason not in _REASONS:
        raise FieldError("cancellation_reason", f"must be one of {', '.join(sorted(_REASONS))}")
    return reason


def refund(body: bytes, currency: str) -> RefundRequest:
    """A refund of a charge in this currency. Raises FieldError."""
    fields, metadata = _form(body, _REFUND)
    return RefundRequest(
        charge=_text("payment_intent", fields),
        amount=_amount(fields.get("amount", ""), currency),
        currency=currency,
        reference=metadata.get("reference") or "none",
        metadata=metadata,
    )


def refunded_intent(body: bytes) -> str:
    """Which intent a refund is of. Raises FieldError."""
    return _text("payment_intent", _form(body, _REFUND)[0])


def searched_reference(query: Mapping[str, str]) -> str:
    """The reference that a search is for. Raises FieldError."""
    found = _SEARCH.fullmatch(query.get("query", ""))
    if found is None:
        raise FieldError("query", "must be metadata['reference']:'…'")
    return re.sub(r"\\(.)", r"\1", found[3])


def _form(body: bytes, known: frozenset[str]) -> tuple[dict[str, str], dict[str, str]]:
    fields: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for name, value in parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True):
        if found := _METADATA.fullmatch(name):
            metadata[found[1]] = value
        elif name in known:
            fields[name] = value
        else:
            raise FieldError(name, "Received unknown parameter")
    return fields, metadata


def _text(name: str, fields: Mapping[str, str]) -> str:
    value = fields.get(name, "")
    if not value:
        raise FieldError(name, "is required")
    return value


def _currency(value: str) -> str:
    if not re.fullmatch(r"[a-z]{3}", value):
        raise FieldError("currency", "must be three small letters")
    currency = value.upper()
    try:
        decimals_apart(currency)
    except ValueError as error:
        raise FieldError("currency", "is no currency") from error
    return currency


def _amount(value: str, currency: str) -> int:
    """ISO 4217's minor units, from Stripe's."""
    if not re.fullmatch(r"[0-9]{1,16}", value):
        raise FieldError("amount", "must be a whole number")
    amount, apart = int(value), decimals_apart(currency)
    if apart > 0 and amount % 10**apart:
        raise FieldError("amount", f"{currency} amounts must be divisible by {10**apart}")
    if currency in THREE_DECIMALS and amount % 10:
        raise FieldError("amount", f"{currency} amounts must end in 0")
    return parse.amount("amount", amount // 10**apart if apart >= 0 else amount * 10**-apart)
