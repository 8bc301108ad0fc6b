"""What the answers and webhooks of docs/gateway-protocol.md say. Pure.

What does not look like the provider's own words says nothing about the money: it is `Unknown`, as is a 500, for the provider may
have taken the money before it failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from billing_shards.errors import InvalidInput
from billing_shards.payments import wire
from billing_shards.payments.declines import classify
from billing_shards.payments.model import (
    ActionRequired,
    Cause,
    Declined,
    Failed,
    Found,
    NotFound,
    Outcome,
    Pending,
    RefundFound,
    RefundOutcome,
    Succeeded,
    Unknown,
    Unresolvable,
    WebhookEvent,
    WebhookKind,
)

_KINDS: dict[str, WebhookKind] = {kind: kind for kind in get_args(WebhookKind)}

Known: TypeAlias = Succeeded | Declined | ActionRequired | Pending
KnownRefund: TypeAlias = Succeeded | Pending | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, whoever sent it."""

    status: int
    headers: Mapping[str, str]
    document: Mapping[str, Any]
    """Its JSON object; empty where it holds something else."""


def outcome(reference: str, answer: Answer) -> Outcome:
    """What the answer to a charge says."""
    match answer.status:
        case 200:
            return _charge(answer.document, reference) or _not_understood("answer 200")
        case 402:
            declined = _charge(answer.document.get("charge"), reference, answer.document.get("error"))
            return declined or _not_understood("answer 402")
        case 409:
            return wire.in_flight(answer.headers)
        case 400 | 404 | 422:
            return _refused(answer)
        case _:
            return wire.failed(f"answered {answer.status}", answer.headers)


def found(reference: str, answer: Answer) -> Found:
    """What a look-up says. One charge that is not understood makes all uncertain, unless another one took the money."""
    if answer.status != 200:  # noqa: PLR2004
        return wire.failed(f"look-up answered {answer.status}", answer.headers)
    charges = answer.document.get("data")
    if not isinstance(charges, list):
        return _not_understood("look-up")
    outcomes = [_charge(charge, reference) for charge in charges]
    for wanted in (Succeeded, None, Pending, ActionRequired, Declined):
        for each in outcomes:
            if wanted is None and each is None:
                return _not_understood("look-up")
            if wanted is not None and isinstance(each, wanted):
                return each
    return NotFound()


def canceled(reference: str, answer: Answer) -> Found:
    """What the answer to a cancel says: the charge as it is now."""
    match answer.status:
        case 200:
            return _charge(answer.document, reference) or _not_understood("answer 200")
        case 404 if _error_code(answer) == "resource_missing":
            return NotFound()
        case 409:
            return wire.in_flight(answer.headers)
        case _:
            return wire.failed(f"cancel answered {answer.status}", answer.headers)


def refund_outcome(reference: str, answer: Answer) -> RefundOutcome:
    """What the answer to a refund says."""
    match answer.status:
        case 200:
            return _refund(answer.document, reference) or _not_understood("answer 200")
        case 409:
            return wire.in_flight(answer.headers)
        case 400 | 402 | 404 | 422:
            return _refund_refused(answer)
        case _:
            return wire.failed(f"answered {answer.status}", answer.headers)


def refund_found(reference: str, answer: Answer) -> RefundFound:
    """What a look-up of a refund says, as `found`."""
    if answer.status != 200:  # noqa: PLR2004
        return wire.failed(f"look-up answered {answer.status}", answer.headers)
    refunds = answer.document.get("data")
    if not isinstance(refunds, list):
        return _not_understood("look-up")
    outcomes = [_refund(refund, reference) for refund in refunds]
    for wanted in (Succeeded, None, Pending, Failed):
        for each in outcomes:
            if wanted is None and each is None:
                return _not_understood("look-up")
            if wanted is not None and isinstance(each, wanted):
                return each
    return NotFound()


def webhook(body: bytes) -> WebhookEvent:
    """What a webhook says. Raises `InvalidInput` where it is no event."""
    event = event_object(body)
    subject = event.get("data")
    subject = subject if isinstance(subject, dict) else {}
    reference, currency, failure = subject.get("reference"), subject.get("currency"), subject.get("failure")
    return WebhookEvent(
        id=event["id"],
        kind=_KINDS.get(event["type"], "other"),
        reference=reference if isinstance(reference, str) else None,
        provider_ref=wire.ref(subject.get("id")),
        amount=wire.amount(subject.get("amount")),
        currency=currency if isinstance(currency, str) else None,
        code=_reason(failure) if isinstance(failure, dict) else None,
    )


def event_object(body: bytes) -> dict[str, Any]:
    """A JSON object with the texts `id` and `type`. Raises `InvalidInput` that names what is wrong."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("webhook", "is not JSON") from error
    if not isinstance(event, dict):
        raise InvalidInput("webhook", "is not a JSON object")
    for field in ("id", "type"):
        if wire.ref(event.get(field)) is None:
            raise InvalidInput(f"webhook.{field}", "must be printable ASCII text of 1 to 128 characters")
    return event


def _charge(charge: object, reference: str, error: object = None) -> Known | None:
    """What a charge's document says; None where it is not understood, or is not the charge that was asked for."""
    if not isinstance(charge, dict) or charge.get("reference") != reference:
        return None
    ref = wire.ref(charge.get("id"))
    if ref is None:
        return None
    match charge.get("status"):
        case "succeeded":
            return Succeeded(provider_ref=ref)
        case "pending":
            return Pending(provider_ref=ref, next_check_seconds=wire.seconds(charge.get("next_check_seconds")))
        case "requires_action":
            return ActionRequired(provider_ref=ref)
        case "failed" | "reversed":  # what the bank took back before we knew of it was never ours
            return _declined(ref, error if isinstance(error, dict) else charge.get("failure"))
        case "canceled":
            return _declined(ref, {"code": "canceled"})
        case _:
            return None


def _declined(ref: str, failure: object) -> Declined:
    reason = failure if isinstance(failure, dict) else {}
    code, advice = _reason(reason), reason.get("advice_code")
    return Declined(decline_class=classify(code, advice if isinstance(advice, str) else None), code=code, provider_ref=ref)


def _reason(failure: Mapping[str, Any]) -> str:
    return wire.code(failure.get("decline_code") or failure.get("code") or "generic_decline")


def _refused(answer: Answer) -> Outcome:
    """The provider found fault with the request itself. Unless it is the payment method, a person must look: the fault may
    be ours, and no customer is suspended for it.
    """
    code = _error_code(answer)
    if code is None:  # a proxy's page: the provider may never have seen the request
        return wire.failed(f"answered {answer.status}", answer.headers)
    if code == "resource_missing":
        return Declined(decline_class=classify(code, None), code=code)
    mismatch = code == "idempotency_key_mismatch"
    return Unresolvable(reason=f"refused: {code}", cause=Cause.KEY_MISMATCH if mismatch else Cause.REFUSED)


def _refund(refund: object, reference: str) -> KnownRefund | None:
    """What a refund's document says; None where it is not understood, or is not the refund that was asked for."""
    if not isinstance(refund, dict) or refund.get("reference") != reference:
        return None
    ref, failure = wire.ref(refund.get("id")), refund.get("failure")
    if ref is None:
        return None
    match refund.get("status"):
        case "succeeded":
            return Succeeded(provider_ref=ref)
        case "pending":
            return Pending(provider_ref=ref, next_check_seconds=wire.seconds(refund.get("next_check_seconds")))
        case "failed":
            return Failed(code=_reason(failure) if isinstance(failure, dict) else "refund_failed", provider_ref=ref)
        case _:
            return None


def _refund_refused(answer: Answer) -> RefundOutcome:
    code = _error_code(answer)
    if code is None:
        return wire.failed(f"answered {answer.status}", answer.headers)
    if code == "idempotency_key_mismatch":  # it knows the key: what became of that request is in the look-up
        return Unknown(reason=f"refused: {code}", cause=Cause.KEY_MISMATCH)
    return Failed(code=code)


def _error_code(answer: Answer) -> str | None:
    """The code of the provider's error; None where it is not the provider that speaks."""
    error = answer.document.get("error")
    return wire.code(error.get("code") or "invalid_request") if isinstance(error, dict) else None


def _not_understood(what: str) -> Unknown:
    return Unknown(reason=f"{what} was not understood", cause=Cause.FAILED)
