"""The JSON that the provider sends: charges, declines and errors, as docs/gateway-protocol.md describes them."""

import datetime as dt
import json
import math
from collections.abc import Mapping
from typing import Any

from hack.fake_gateway.model import Answer, ChargeRequest, ChargeStatus, Decline, Event, Outcome, RefundRequest, RefundStatus

Document = dict[str, Any]


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    moment = dt.datetime.fromtimestamp(seconds, tz=dt.UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def charge(charge_id: str, request: ChargeRequest, outcome: Outcome, now: float) -> Document:
    """The charge as it is at birth; `now` in seconds since 1970."""
    document: Document = {
        "id": charge_id,
        "status": outcome.status.value,
        "amount": request.amount,
        "currency": request.currency,
        "payment_method": request.payment_method,
        "reference": request.reference,
        "metadata": dict(request.metadata),
        "failure": None,
        "created": timestamp(now),
    }
    if request.customer is not None:
        document["customer"] = request.customer
    if outcome.status is ChargeStatus.FAILED and outcome.decline is not None:
        document["failure"] = failure(outcome.decline)
    if outcome.status is ChargeStatus.PENDING:
        document["next_check_seconds"] = math.ceil(outcome.settle_after_seconds)
    return document


def settled(pending: Document, outcome: Outcome) -> Document:
    """The same charge after its settlement."""
    document = {name: value for name, value in pending.items() if name != "next_check_seconds"}
    document["status"] = (outcome.settles_to or ChargeStatus.SUCCEEDED).value
    document["failure"] = failure(outcome.decline) if outcome.decline else None
    return document


def reversed_charge(document: Document, code: str) -> Document:
    """The same charge after the bank has taken the money back."""
    reason = failure(Decline(decline_code=code, advice_code=None))
    return {**document, "status": ChargeStatus.REVERSED.value, "failure": reason}


def completed_charge(document: Document, *, fails: bool) -> Document:
    """The same charge after the customer has done what it waited for, or has failed at it."""
    if not fails:
        return {**document, "status": ChargeStatus.SUCCEEDED.value}
    reason = failure(Decline(decline_code="authentication_required", advice_code=None))
    return {**document, "status": ChargeStatus.FAILED.value, "failure": reason}


def canceled_charge(document: Document) -> Document:
    """The same charge once it cannot be completed any more."""
    return {**document, "status": ChargeStatus.CANCELED.value, "failure": None}


def failure(decline: Decline) -> Document:
    return {
        "code": "card_declined",
        "decline_code": decline.decline_code,
        "advice_code": decline.advice_code,
        "message": f"The payment was declined: {decline.decline_code.replace('_', ' ')}.",
    }


def refund(refund_id: str, request: RefundRequest, status: RefundStatus, now: float) -> Document:
    """The refund as it is at birth."""
    return {
        "id": refund_id,
        "charge": request.charge,
        "status": status.value,
        "amount": request.amount,
        "currency": request.currency,
        "reference": request.reference,
        "metadata": dict(request.metadata),
        "failure": _REFUND_FAILURE if status is RefundStatus.FAILED else None,
        "created": timestamp(now),
    }


def refund_settled(pending: Document, status: RefundStatus) -> Document:
    failed = status is RefundStatus.FAILED
    return {**pending, "status": status.value, "failure": _REFUND_FAILURE if failed else None}


_REFUND_FAILURE = {"code": "refund_failed", "message": "The customer's bank could not process the refund."}


def event(told: Event) -> Document:
    """What a webhook carries."""
    return {"id": told.event_id, "type": told.kind, "created": timestamp(told.created), "data": json.loads(told.subject)}


def declined(document: Document) -> Answer:
    """The answer that carries a failed charge."""
    return answer(402, {"error": {"type": "card_error", **document["failure"]}, "charge": document})


def answer(http_status: int, document: Document, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(http_status=http_status, body=json.dumps(document), headers=headers or {})


def error(
    http_status: int,
    kind: str,
    code: str,
    message: str,
    *,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    body: Document = {"type": kind, "code": code, "message": message}
    if param is not None:
        body["param"] = param
    return answer(http_status, {"error": body}, headers)


def invalid(param: str, reason: str) -> Answer:
    return error(400, "invalid_request_error", "parameter_invalid", f"{param}: {reason}", param=param)


def unauthorized() -> Answer:
    message = "The API key is missing or wrong; send it as Authorization: Bearer <key>."
    return error(401, "authentication_error", "api_key_invalid", message)


def too_many_requests(retry_after_seconds: int) -> Answer:
    message = f"Too many requests; try again in {retry_after_seconds} s."
    headers = {"Retry-After": str(retry_after_seconds)}
    return error(429, "rate_limit_error", "rate_limited", message, headers=headers)


def key_in_use() -> Answer:
    message = "A request with this Idempotency-Key is being processed; send it again later with the same key."
    return error(409, "idempotency_error", "idempotency_key_in_use", message)


def key_mismatch() -> Answer:
    message = "This Idempotency-Key was used with other parameters; keys may be reused only with the same ones."
    return error(400, "idempotency_error", "idempotency_key_mismatch", message)


def api_error() -> Answer:
    message = "An error occurred on our side; whether the charge was made is unknown: look it up by its reference."
    return error(500, "api_error", "internal", message)


def refund_too_large(left: int) -> Answer:
    message = f"The refund is more than the {left} minor units that are left of this charge."
    return error(400, "invalid_request_error", "refund_too_large", message, param="amount")


def not_refundable(why: str) -> Answer:
    return error(400, "invalid_request_error", "charge_not_refundable", why, param="charge")


def not_found(what: str) -> Answer:
    return error(404, "invalid_request_error", "resource_missing", f"{what} does not exist.")
