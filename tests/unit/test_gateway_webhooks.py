"""What the adapters make of providers' webhooks: the fake provider's own documents, and whatever else may be signed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.errors import InvalidInput
from billing_shards.payments import http_answers, stripe_answers
from billing_shards.payments.model import WebhookEvent
from hack.fake_gateway import documents, stripe_documents
from hack.fake_gateway.model import ChargeRequest, ChargeStatus, Decline, Event, Outcome, RefundRequest, RefundStatus

NOW = 1_760_000_000.0
DECLINE = Decline(decline_code="insufficient_funds", advice_code=None)


def charge(prefix: str, status: ChargeStatus, currency: str = "USD") -> dict[str, Any]:
    request = ChargeRequest(
        amount=2000, currency=currency, payment_method="pm_1", reference="7/1/1", metadata={"reference": "7/1/1"}
    )
    made = documents.charge(f"{prefix}1", request, Outcome(status=status, decline=DECLINE), NOW)
    return documents.reversed_charge(made, "account_closed") if status is ChargeStatus.REVERSED else made


def refund(prefix: str, status: RefundStatus, currency: str = "USD") -> dict[str, Any]:
    request = RefundRequest(
        charge=f"{prefix}1", amount=500, currency=currency, reference="refund/1", metadata={"reference": "refund/1"}
    )
    return documents.refund("re_1", request, status, NOW)


def told(kind: str, subject: dict[str, Any]) -> Event:
    return Event(event_id="evt_1", kind=kind, subject=json.dumps(subject), created=NOW)


def event(kind: str, **fields: Any) -> WebhookEvent:
    known = {"reference": "7/1/1", "provider_ref": "ch_1", "amount": 2000, "currency": "USD", "code": None}
    return WebhookEvent(id="evt_1", kind=kind, **{**known, **fields})  # type: ignore[arg-type]


REFUND = {"reference": "refund/1", "provider_ref": "re_1", "amount": 500}
CASES = [
    ("charge.succeeded", charge("{}", ChargeStatus.SUCCEEDED), event("charge.succeeded")),
    ("charge.failed", charge("{}", ChargeStatus.FAILED), event("charge.failed", code="insufficient_funds")),
    ("charge.pending", charge("{}", ChargeStatus.PENDING), event("charge.pending")),
    ("charge.reversed", charge("{}", ChargeStatus.REVERSED), event("charge.reversed", code="account_closed")),
    ("charge.requires_action", charge("{}", ChargeStatus.REQUIRES_ACTION), event("other")),
    ("refund.succeeded", refund("{}", RefundStatus.SUCCEEDED), event("refund.succeeded", **REFUND)),
    ("refund.failed", refund("{}", RefundStatus.FAILED), event("refund.failed", **REFUND, code="refund_failed")),
    ("refund.pending", refund("{}", RefundStatus.PENDING), event("other", **REFUND)),
]


def of(prefix: str, subject: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(subject).replace("{}1", f"{prefix}1"))
    return made


@pytest.mark.parametrize(("kind", "subject", "expected"), CASES, ids=[case[0] for case in CASES])
def test_an_event_of_the_protocol(kind: str, subject: dict[str, Any], expected: WebhookEvent) -> None:
    body = json.dumps(documents.event(told(kind, of("ch_", subject)))).encode()
    assert http_answers.webhook(body) == expected


@pytest.mark.parametrize(("kind", "subject", "expected"), CASES, ids=[case[0] for case in CASES])
def test_an_event_of_stripes(kind: str, subject: dict[str, Any], expected: WebhookEvent) -> None:
    body = json.dumps(stripe_documents.event(told(kind, of("pi_", subject)))).encode()
    changed: dict[str, Any] = {}
    if expected.provider_ref == "ch_1":
        changed["provider_ref"] = "pi_1"
    if kind == "charge.reversed":  # a dispute does not carry what the intent was given
        changed["reference"] = None
    if kind == "refund.failed":
        changed["code"] = "expired_or_canceled_card"
    fields = {name: getattr(expected, name) for name in WebhookEvent.__slots__}
    assert stripe_answers.webhook(body) == WebhookEvent(**{**fields, **changed})


@pytest.mark.parametrize(("currency", "amount"), [("ISK", 2000), ("JPY", 2000), ("KWD", 2000), ("USD", 2000)])
def test_stripes_amounts_come_back_in_our_units(currency: str, amount: int) -> None:
    subject = charge("pi_", ChargeStatus.SUCCEEDED, currency)
    parsed = stripe_answers.webhook(json.dumps(stripe_documents.event(told("charge.succeeded", subject))).encode())
    assert (parsed.amount, parsed.currency) == (amount, currency)


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        ("refund.created", "succeeded", "refund.succeeded"),
        ("refund.created", "pending", "other"),
        ("refund.updated", "canceled", "refund.failed"),
        ("charge.refund.updated", "failed", "refund.failed"),
        ("charge.dispute.created", "needs_response", "other"),
        ("charge.dispute.funds_reinstated", "won", "other"),
        ("charge.succeeded", "succeeded", "other"),
        ("payment_intent.created", "requires_confirmation", "other"),
    ],
)
def test_stripes_refunds_go_by_their_status_and_other_events_are_left(kind: str, status: str, expected: str) -> None:
    body = {"id": "evt_1", "type": kind, "data": {"object": {"id": "re_1", "status": status}}}
    assert stripe_answers.webhook(json.dumps(body).encode()).kind == expected


@pytest.mark.parametrize("parse", [http_answers.webhook, stripe_answers.webhook])
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "webhook"),
        (b"\xff", "webhook"),
        (b"[]", "webhook"),
        (b"[" * 100_000, "webhook"),
        (b"{}", "webhook.id"),
        (b'{"id": 7, "type": "x"}', "webhook.id"),
        (b'{"id": "evt_1"}', "webhook.type"),
        (b'{"id": "evt_\\u00fc", "type": "x"}', "webhook.id"),
    ],
)
def test_what_is_no_event_is_named(parse: Any, body: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(body)
    assert refused.value.field == field


FIELDS = (
    "id", "object", "data", "status", "metadata", "reference", "amount", "amount_received", "currency", "failure", "code",
    "decline_code", "last_payment_error", "cancellation_reason", "failure_reason", "reason", "payment_intent",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=25,
)
TYPES = [*stripe_documents._EVENT_TYPE.values(), *stripe_documents._EVENT_TYPE, "payment_intent.canceled", "other"]


@given(st.sampled_from(TYPES), JSON, st.booleans())
def test_whatever_an_event_carries_it_is_read(kind: str, data: Any, nested: bool) -> None:
    body = json.dumps({"id": "evt_1", "type": kind, "data": {"object": data} if nested else data}).encode()
    for parse in (http_answers.webhook, stripe_answers.webhook):
        parsed = parse(body)
        assert parsed.id == "evt_1"
        assert parsed.amount is None or parsed.amount > 0
        for text in (parsed.provider_ref, parsed.code):
            assert text is None or (text.isascii() and text.isprintable() and len(text) <= 128)
