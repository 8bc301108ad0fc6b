"""The JSON of Stripe's API that a caller of ours meets: PaymentIntents, refunds, errors, events.

What is kept is this provider's own document, in ISO 4217's minor units; here it is put into Stripe's words and units. Written
from Stripe's public reference (docs.stripe.com/api, /currencies), for tests: it knows what is needed here and no more.
"""

import datetime as dt
import json
from typing import Any

import iso4217

from hack.fake_gateway import documents
from hack.fake_gateway.model import Answer, ChargeStatus, Event, RefundStatus

Document = dict[str, Any]

ZERO_DECIMALS = frozenset(
    ("BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF")
)
THREE_DECIMALS = frozenset(("BHD", "JOD", "KWD", "OMR", "TND"))

_STATUS = {
    ChargeStatus.SUCCEEDED: "succeeded",
    ChargeStatus.REVERSED: "succeeded",  # the intent stays: the money is taken back by a dispute
    ChargeStatus.PENDING: "processing",
    ChargeStatus.FAILED: "requires_payment_method",
    ChargeStatus.REQUIRES_ACTION: "requires_action",
    ChargeStatus.CANCELED: "canceled",
}
_EVENT_TYPE = {
    "charge.succeeded": "payment_intent.succeeded",
    "charge.failed": "payment_intent.payment_failed",
    "charge.pending": "payment_intent.processing",
    "charge.requires_action": "payment_intent.requires_action",
    "charge.canceled": "payment_intent.canceled",
    "charge.reversed": "charge.dispute.funds_withdrawn",
    "refund.succeeded": "refund.updated",  # Stripe tells `refund.created` before; what counts is the refund's status
    "refund.pending": "refund.created",
    "refund.failed": "refund.failed",
}


def decimals_apart(currency: str) -> int:
    """How many decimals Stripe has more than the standard: ISK and UGX 2, MGA -2, nearly all others 0."""
    theirs = 0 if currency in ZERO_DECIMALS else 3 if currency in THREE_DECIMALS else 2
    standard: int = iso4217.Currency(currency).exponent or 0
    return theirs - standard


def to_stripes(amount: int, currency: str) -> int:
    apart = decimals_apart(currency)
    return int(amount * 10**apart if apart >= 0 else amount // 10**-apart)


def payment_intent(charge: Document) -> Document:
    amount, currency = to_stripes(charge["amount"], charge["currency"]), charge["currency"].lower()
    status = _STATUS[ChargeStatus(charge["status"])]
    return {
        "id": charge["id"],
        "object": "payment_intent",
        "amount": amount,
        "amount_received": amount if status == "succeeded" else 0,
        "canceled_at": _unix(charge["canceled_at"]) if "canceled_at" in charge else None,
        "cancellation_reason": charge.get("cancellation_reason"),
        "currency": currency,
        "created": _unix(charge["created"]),
        "customer": charge.get("customer"),
        "last_payment_error": _card_error(charge) if status == "requires_payment_method" else None,
        "latest_charge": "ch_" + charge["id"].removeprefix("pi_"),
        "livemode": False,
        "metadata": charge["metadata"],
        "payment_method": None if status == "requires_payment_method" else charge["payment_method"],
        "status": status,
    }


def refund(document: Document) -> Document:
    failed = document["status"] == RefundStatus.FAILED
    return {
        "id": document["id"],
        "object": "refund",
        "amount": to_stripes(document["amount"], document["currency"]),
        "charge": "ch_" + document["charge"].removeprefix("pi_"),
        "currency": document["currency"].lower(),
        "created": _unix(document["created"]),
        "metadata": document["metadata"],
        "payment_intent": document["charge"],
        "status": document["status"],
        **({"failure_reason": "expired_or_canceled_card"} if failed else {}),
    }


def intent_answer(charge: Document) -> Answer:
    """What a confirmed PaymentIntent is answered with; a decline is an error that carries it."""
    intent = payment_intent(charge)
    if intent["status"] != "requires_payment_method":
        return documents.answer(200, intent)
    return documents.answer(402, {"error": {**_card_error(charge), "payment_intent": intent}})


def cancel_answer(charge: Document, *, done: bool) -> Answer:
    """What the cancel of a PaymentIntent is answered with, done or not (docs.stripe.com/api/payment_intents/cancel)."""
    intent = payment_intent(charge)
    if done:
        return documents.answer(200, intent)
    message = f"This PaymentIntent has the status {intent['status']}, in which it cannot be canceled."
    return error(400, "invalid_request_error", message, code="payment_intent_unexpected_state", payment_intent=intent)


def refund_answer(document: Document) -> Answer:
    return documents.answer(200, refund(document))


def listed(url: str, items: list[Document], *, has_more: bool) -> Document:
    return {"object": "list", "url": url, "has_more": has_more, "data": items}


def searched(url: str, items: list[Document]) -> Document:
    return {"object": "search_result", "url": url, "has_more": False, "next_page": None, "data": items}


def is_stripes(event: Event) -> bool:
    """Whether it tells of something that was made through Stripe's API."""
    subject = json.loads(event.subject)
    return str(subject.get("charge", subject["id"])).startswith("pi_")


def event(told: Event) -> Document:
    subject = json.loads(told.subject)
    return {
        "id": told.event_id,
        "object": "event",
        "created": int(told.created),
        "data": {"object": _subject(told.kind, subject)},
        "livemode": False,
        "type": _EVENT_TYPE[told.kind],
    }


def _subject(kind: str, subject: Document) -> Document:
    if kind == "charge.reversed":
        return _dispute(subject)
    return refund(subject) if kind.startswith("refund.") else payment_intent(subject)


def _dispute(charge: Document) -> Document:
    return {
        "id": "dp_" + charge["id"].removeprefix("pi_"),
        "object": "dispute",
        "amount": to_stripes(charge["amount"], charge["currency"]),
        "charge": "ch_" + charge["id"].removeprefix("pi_"),
        "currency": charge["currency"].lower(),
        "metadata": {},
        "payment_intent": charge["id"],
        "reason": charge["failure"]["decline_code"],
        "status": "lost",
    }


def _card_error(charge: Document) -> Document:
    failure = charge["failure"]
    code = failure["decline_code"]
    # Stripe's code says it itself where there is one; all other refusals are card_declined with a decline_code.
    own = code in {"expired_card", "incorrect_cvc", "incorrect_number", "processing_error", "authentication_required"}
    error = {
        "type": "card_error",
        "code": code if own else "card_declined",
        "message": failure["message"],
        "payment_method": {"id": charge["payment_method"], "object": "payment_method", "type": "card"},
    }
    if not own or code == "authentication_required":
        error["decline_code"] = code
    if failure["advice_code"] is not None:
        error["advice_code"] = failure["advice_code"]
    return error


def _unix(created: str) -> int:
    return int(dt.datetime.fromisoformat(created).timestamp())


def error(http_status: int, kind: str, message: str, **fields: Any) -> Answer:
    return documents.answer(http_status, {"error": {"type": kind, "message": message, **fields}})


def too_many_requests(retry_after_seconds: int) -> Answer:
    body = {"error": {"type": "invalid_request_error", "code": "rate_limit", "message": "Request rate limit exceeded."}}
    return documents.answer(429, body, {"Retry-After": str(retry_after_seconds)})


def key_in_use() -> Answer:
    message = "There is currently another in-progress request using this idempotent key."
    return error(409, "idempotency_error", message, code="idempotency_key_in_use")


def key_mismatch() -> Answer:
    message = "Keys for idempotent requests can only be used with the same parameters they were first used with."
    return error(400, "idempotency_error", message)


def api_error() -> Answer:
    return error(500, "api_error", "Something went wrong on our end.")


def invalid(param: str, reason: str) -> Answer:
    return error(400, "invalid_request_error", f"{param}: {reason}", param=param, code="parameter_invalid")


def missing(what: str, param: str) -> Answer:
    return error(404, "invalid_request_error", f"No such {what}", param=param, code="resource_missing")


def unauthorized() -> Answer:
    return error(401, "invalid_request_error", "Invalid API Key provided.")


def not_refundable(why: str) -> Answer:
    return error(400, "invalid_request_error", why, param="payment_intent")


def refund_too_large(left: int) -> Answer:
    if left == 0:
        return error(400, "invalid_request_error", "The charge has already been refunded.", code="charge_already_refunded")
    return error(400, "invalid_request_error", "The refund is more than what is left of the charge.", param="amount")
