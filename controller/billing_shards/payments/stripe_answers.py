"""What Stripe's answers and events say. Pure. Facts from docs.stripe.com/api (PaymentIntent, Refund, Error, Event).

As in `http_answers`: what is not surely Stripe's word about our own intent says nothing about the money.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from billing_shards.payments import wire
from billing_shards.payments.declines import classify
from billing_shards.payments.http_answers import Answer, event_object
from billing_shards.payments.model import (
    ActionRequired,
    Cause,
    Declined,
    Failed,
    Found,
    NotFound,
    NotSent,
    Outcome,
    Pending,
    RefundOutcome,
    Succeeded,
    Unknown,
    Unresolvable,
    WebhookEvent,
    WebhookKind,
)
from billing_shards.payments.stripe_units import from_stripes

_INTENT_KINDS: dict[str, WebhookKind] = {
    "payment_intent.succeeded": "charge.succeeded",
    "payment_intent.payment_failed": "charge.failed",
    "payment_intent.canceled": "charge.failed",
    "payment_intent.processing": "charge.pending",
}
# Money moves with this one; a dispute is how a bank debit that fails late is told, too.
_REVERSED = "charge.dispute.funds_withdrawn"
_REFUND_TYPES = frozenset(("refund.created", "refund.updated", "refund.failed", "charge.refund.updated"))
_REFUND_KINDS: dict[str, WebhookKind] = {
    "succeeded": "refund.succeeded",
    "failed": "refund.failed",
    "canceled": "refund.failed",
}
# Refusals of the request that speak of the payment method: the customer must give another one.
_OF_THE_METHOD = frozenset(("resource_missing", "payment_method_unexpected_state", "payment_method_not_available"))

Known: TypeAlias = Succeeded | Declined | ActionRequired | Pending


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundPage:
    """What one page of a charge's refunds says of ours."""

    found: RefundOutcome | None
    next_after: str | None
    """Where the next page begins; None where there is none."""


def outcome(reference: str, answer: Answer) -> Outcome:
    """What the answer to the confirmation of an intent says."""
    match answer.status:
        case 200:
            return _intent(answer.document, reference) or _not_understood("answer 200")
        case 402:
            return _declined_answer(answer)
        case 409:
            return wire.in_flight(answer.headers)
        case 400 | 404:
            return _refused(answer)
        case _:
            return wire.failed(f"answered {answer.status}", answer.headers)


def ids(answer: Answer) -> list[str] | Unknown:
    """The ids that a search found."""
    intents = answer.document.get("data")
    if answer.status != 200 or not isinstance(intents, list):  # noqa: PLR2004
        return wire.failed(f"search answered {answer.status}", answer.headers)
    found = [wire.ref(intent.get("id")) if isinstance(intent, dict) else None for intent in intents]
    return [each for each in found if each is not None] if None not in found else _not_understood("search")


def found(reference: str, answer: Answer) -> Found:
    """What an intent that was read by its id says."""
    if answer.status != 200:  # noqa: PLR2004
        return wire.failed(f"look-up answered {answer.status}", answer.headers)
    return _intent(answer.document, reference) or _not_understood("look-up")


def canceled(reference: str, answer: Answer) -> Found:
    """What the answer to a cancel says. Where the intent was beyond it, the refusal carries it as it is."""
    error = answer.document.get("error")
    match answer.status:
        case 200:
            return _intent(answer.document, reference) or _not_understood("answer 200")
        case 400 if isinstance(intent := _of(error, "payment_intent"), dict):
            return _intent(intent, reference) or _not_understood("answer 400")
        case 404 if isinstance(error, dict):
            return NotFound()
        case 409:
            return wire.in_flight(answer.headers)
        case _:
            return wire.failed(f"cancel answered {answer.status}", answer.headers)


def most_telling(outcomes: Sequence[Found]) -> Found:
    """Of several intents of one reference, the one that took the money counts; then any doubt."""
    for wanted in (Succeeded, NotSent, Unknown, Pending, ActionRequired, Declined):
        for each in outcomes:
            if isinstance(each, wanted):
                return each
    return NotFound()


def refund_outcome(reference: str, answer: Answer) -> RefundOutcome:
    """What the answer to a refund says."""
    match answer.status:
        case 200:
            return _refund(answer.document, reference) or _not_understood("answer 200")
        case 409:
            return wire.in_flight(answer.headers)
        case 400 | 402 | 404:
            return _refund_refused(answer)
        case _:
            return wire.failed(f"answered {answer.status}", answer.headers)


def refund_page(reference: str, answer: Answer) -> RefundPage | Unknown:
    """What one page of a charge's refunds says of the one with this reference."""
    refunds = answer.document.get("data")
    if answer.status != 200 or not isinstance(refunds, list):  # noqa: PLR2004
        return wire.failed(f"look-up answered {answer.status}", answer.headers)
    ours = [refund for refund in refunds if _reference(refund) == reference]
    outcomes = [_refund(refund, reference) for refund in ours]
    if None in outcomes:
        return _not_understood("look-up")
    last = refunds[-1] if refunds and answer.document.get("has_more") is True else None
    return RefundPage(found=outcomes[0] if outcomes else None, next_after=wire.ref(_of(last, "id")))


def webhook(body: bytes) -> WebhookEvent:
    """What an event of Stripe's says. Raises `InvalidInput` where it is none."""
    event = event_object(body)
    subject = _of(event.get("data"), "object")
    subject = subject if isinstance(subject, dict) else {}
    kind, code = _kind_and_code(event["type"], subject)
    is_intent = event["type"] in _INTENT_KINDS
    currency = subject["currency"].upper() if isinstance(subject.get("currency"), str) else None
    amount = wire.amount(subject.get("amount_received") or subject.get("amount") if is_intent else subject.get("amount"))
    return WebhookEvent(
        id=event["id"],
        kind=kind,
        reference=_reference(subject),
        # A reversal is of the intent; the dispute's own name is of no use to us.
        provider_ref=wire.ref(subject.get("payment_intent") if kind == "charge.reversed" else subject.get("id")),
        amount=None if amount is None or currency is None else from_stripes(amount, currency),
        currency=currency,
        code=code,
    )


def referenced(event: WebhookEvent, answer: Answer) -> WebhookEvent | Unknown:
    """The event with the reference of its intent. An intent that is not there, or has none, is not ours."""
    if answer.status == 404 and isinstance(answer.document.get("error"), dict):  # noqa: PLR2004
        return event
    if answer.status != 200 or answer.document.get("id") != event.provider_ref:  # noqa: PLR2004
        return wire.failed(f"look-up answered {answer.status}", answer.headers)
    return replace(event, reference=_reference(answer.document))


def _kind_and_code(kind: str, subject: Mapping[str, Any]) -> tuple[WebhookKind, str | None]:
    if kind in _INTENT_KINDS:
        failure = subject.get("last_payment_error")
        reason = _code(failure) if isinstance(failure, dict) else subject.get("cancellation_reason")
        failed = _INTENT_KINDS[kind] == "charge.failed"
        return _INTENT_KINDS[kind], wire.code(reason or "canceled") if failed else None
    if kind == _REVERSED:
        return "charge.reversed", wire.code(subject.get("reason") or "dispute")
    if kind in _REFUND_TYPES:
        refunded = _REFUND_KINDS.get(str(subject.get("status")), "other")
        return refunded, _failure_reason(subject) if refunded == "refund.failed" else None
    return "other", None


def _intent(intent: Mapping[str, Any], reference: str) -> Known | None:
    """What a PaymentIntent says; None where it is not understood, or is not the one that was asked for."""
    ref = wire.ref(intent.get("id"))
    if _reference(intent) != reference or ref is None:
        return None
    match intent.get("status"):
        case "succeeded":
            return Succeeded(provider_ref=ref)
        case "processing":
            return Pending(provider_ref=ref)
        case "requires_action":
            return ActionRequired(provider_ref=ref)
        case "requires_payment_method":
            failure = intent.get("last_payment_error")
            return _declined(ref, failure) if isinstance(failure, dict) else None
        case "canceled":
            code = wire.code(intent.get("cancellation_reason") or "canceled")
            return Declined(decline_class=classify(code, None), code=code, provider_ref=ref)
        case _:  # requires_confirmation and requires_capture are none of our making
            return None


def _declined_answer(answer: Answer) -> Outcome:
    error = answer.document.get("error")
    if not isinstance(error, dict):
        return wire.failed("answered 402", answer.headers)
    return _declined(wire.ref(_of(error.get("payment_intent"), "id")), error)


def _declined(ref: str | None, failure: Mapping[str, Any]) -> Declined:
    code, advice = _code(failure), failure.get("advice_code")
    return Declined(decline_class=classify(code, advice if isinstance(advice, str) else None), code=code, provider_ref=ref)


def _refused(answer: Answer) -> Outcome:
    error = answer.document.get("error")
    if not isinstance(error, dict):
        return wire.failed(f"answered {answer.status}", answer.headers)
    if error.get("type") == "idempotency_error":
        return Unresolvable(reason="refused: idempotency_error", cause=Cause.KEY_MISMATCH)
    code = wire.code(error.get("code") or error.get("type") or "invalid_request")
    if code in _OF_THE_METHOD:
        return Declined(decline_class=classify(code, None), code=code)
    return Unresolvable(reason=f"refused: {code}", cause=Cause.REFUSED)


def _refund(refund: Mapping[str, Any], reference: str) -> Succeeded | Pending | Failed | None:
    ref = wire.ref(refund.get("id"))
    if _reference(refund) != reference or ref is None:
        return None
    match refund.get("status"):
        case "succeeded":
            return Succeeded(provider_ref=ref)
        case "pending" | "requires_action":
            return Pending(provider_ref=ref)
        case "failed" | "canceled":
            return Failed(code=_failure_reason(refund), provider_ref=ref)
        case _:
            return None


def _refund_refused(answer: Answer) -> RefundOutcome:
    error = answer.document.get("error")
    if not isinstance(error, dict):
        return wire.failed(f"answered {answer.status}", answer.headers)
    if error.get("type") == "idempotency_error":  # it knows the key: what became of that request is in the look-up
        return Unknown(reason="refused: idempotency_error", cause=Cause.KEY_MISMATCH)
    return Failed(code=wire.code(error.get("code") or error.get("type") or "invalid_request"))


def _failure_reason(refund: Mapping[str, Any]) -> str:
    return wire.code(refund.get("failure_reason") or refund.get("status") or "refund_failed")


def _code(failure: Mapping[str, Any]) -> str:
    """The decline code outranks the error's, which is often no more than `card_declined`."""
    return wire.code(failure.get("decline_code") or failure.get("code") or "generic_decline")


def _reference(subject: object) -> str | None:
    reference = _of(_of(subject, "metadata"), "reference")
    return reference if isinstance(reference, str) else None


def _of(document: object, field: str) -> object:
    return document.get(field) if isinstance(document, dict) else None


def _not_understood(what: str) -> Unknown:
    return Unknown(reason=f"{what} was not understood", cause=Cause.FAILED)
