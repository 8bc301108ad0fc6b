"""What answers about refunds, look-ups and disputes say, by table: those that the fake provider does not give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from billing_shards.payments import http_answers, stripe_answers
from billing_shards.payments.http_answers import Answer
from billing_shards.payments.model import (
    Cause,
    Failed,
    NotFound,
    Pending,
    RefundFound,
    RefundOutcome,
    Succeeded,
    Unknown,
    WebhookEvent,
)
from billing_shards.payments.stripe_answers import RefundPage
from billing_shards.payments.stripe_units import from_stripes

REFERENCE = "refund/1"
OURS: dict[str, Any] = {"id": "re_1", "metadata": {"reference": REFERENCE}, "reference": REFERENCE}
OTHER: dict[str, Any] = {"id": "re_2", "metadata": {"reference": "refund/2"}, "status": "succeeded"}


def answer(status: int, document: Mapping[str, Any] | None = None, **headers: str) -> Answer:
    return Answer(status=status, headers=headers, document=document or {})


def unknown(reason: str, retry_after_seconds: float | None = None, cause: Cause = Cause.FAILED) -> Unknown:
    return Unknown(reason=reason, retry_after_seconds=retry_after_seconds, cause=cause)


@pytest.mark.parametrize(
    ("came", "outcome"),
    [
        (answer(200, {**OURS, "status": "succeeded"}), Succeeded(provider_ref="re_1")),
        (answer(200, {**OURS, "status": "pending"}), Pending(provider_ref="re_1")),
        (answer(200, {**OURS, "status": "requires_action"}), Pending(provider_ref="re_1")),
        (answer(200, {**OURS, "status": "canceled"}), Failed(code="canceled", provider_ref="re_1")),
        (
            answer(200, {**OURS, "status": "failed", "failure_reason": "lost_or_stolen_card"}),
            Failed(code="lost_or_stolen_card", provider_ref="re_1"),
        ),
        (answer(200, {**OURS, "status": "gone"}), unknown("answer 200 was not understood")),
        (answer(200, {**OURS, "status": "succeeded", "id": 7}), unknown("answer 200 was not understood")),
        (answer(200, OTHER), unknown("answer 200 was not understood")),
        (answer(400, {"error": {"type": "invalid_request_error"}}), Failed(code="invalid_request_error")),
        (answer(402, {"error": {"code": "insufficient_funds"}}), Failed(code="insufficient_funds")),
        (answer(404), unknown("answered 404")),
        (answer(409), unknown("in flight", 1.0, Cause.IN_FLIGHT)),
        (answer(500, {"error": {"type": "api_error"}}), unknown("answered 500")),
        (answer(503, None, **{"Retry-After": "9"}), unknown("answered 503", 9.0)),
    ],
)
def test_stripes_answer_to_a_refund(came: Answer, outcome: RefundOutcome) -> None:
    assert stripe_answers.refund_outcome(REFERENCE, came) == outcome


@pytest.mark.parametrize(
    ("came", "page"),
    [
        (answer(200, {"data": []}), RefundPage(found=None, next_after=None)),
        (answer(200, {"data": [OTHER], "has_more": False}), RefundPage(found=None, next_after=None)),
        (answer(200, {"data": [OTHER], "has_more": True}), RefundPage(found=None, next_after="re_2")),
        (answer(200, {"data": [], "has_more": True}), RefundPage(found=None, next_after=None)),
        (
            answer(200, {"data": [OTHER, {**OURS, "status": "pending"}], "has_more": True}),
            RefundPage(found=Pending(provider_ref="re_1"), next_after="re_1"),
        ),
        (answer(200, {"data": [{**OURS, "status": "gone"}]}), unknown("look-up was not understood")),
        (answer(200, {"data": {}}), unknown("look-up answered 200")),
        (answer(500, {"data": []}), unknown("look-up answered 500")),
    ],
)
def test_a_page_of_stripes_refunds(came: Answer, page: RefundPage | Unknown) -> None:
    assert stripe_answers.refund_page(REFERENCE, came) == page


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        (answer(200, {"data": [{"id": "pi_1"}, {"id": "pi_2"}]}), ["pi_1", "pi_2"]),
        (answer(200, {"data": []}), []),
        (answer(200, {"data": [{"id": "pi_1"}, "pi_2"]}), unknown("search was not understood")),
        (answer(200, {"data": [{"id": "pi ü"}]}), unknown("search was not understood")),
        (answer(200, {}), unknown("search answered 200")),
        (answer(400, {"error": {"message": "not in your country"}}), unknown("search answered 400")),
    ],
)
def test_what_stripes_search_found(came: Answer, expected: list[str] | Unknown) -> None:
    """Only a list of ids is one: an error that was taken for an empty list would let a new attempt begin some day."""
    assert stripe_answers.ids(came) == expected


def test_an_intent_that_cannot_be_read_by_its_id_is_unknown() -> None:
    for status in (404, 500):
        assert stripe_answers.found(REFERENCE, answer(status)) == unknown(f"look-up answered {status}")


DISPUTE = WebhookEvent(
    id="evt_1", kind="charge.reversed", reference=None, provider_ref="pi_1", amount=5, currency="USD", code="fraudulent"
)


@pytest.mark.parametrize(
    ("came", "reference"),
    [
        (answer(200, {"id": "pi_1", "metadata": {"reference": "7/1/1"}}), "7/1/1"),
        (answer(200, {"id": "pi_1", "metadata": {}}), None),
        (answer(404, {"error": {"code": "resource_missing"}}), None),
    ],
)
def test_a_dispute_gets_the_reference_of_its_intent(came: Answer, reference: str | None) -> None:
    told = stripe_answers.referenced(DISPUTE, came)
    assert isinstance(told, WebhookEvent)
    assert told.reference == reference
    assert (told.id, told.provider_ref, told.code) == (DISPUTE.id, DISPUTE.provider_ref, DISPUTE.code)


@pytest.mark.parametrize("came", [answer(200, {"id": "pi_2"}), answer(200), answer(404), answer(500)])
def test_an_intent_that_is_not_understood_leaves_whose_it_is_unknown(came: Answer) -> None:
    assert isinstance(stripe_answers.referenced(DISPUTE, came), Unknown)


@pytest.mark.parametrize(
    ("came", "found"),
    [
        (
            answer(200, {"data": [{**OURS, "status": "pending", "next_check_seconds": 60}]}),
            Pending(provider_ref="re_1", next_check_seconds=60.0),
        ),
        (
            answer(200, {"data": [{**OURS, "status": "failed", "failure": {"code": "closed"}}]}),
            Failed(code="closed", provider_ref="re_1"),
        ),
        (answer(200, {"data": []}), NotFound()),
        (answer(200, {"data": [{**OURS, "status": "succeeded", "id": ""}]}), unknown("look-up was not understood")),
        (answer(404, {"data": []}), unknown("look-up answered 404")),
        (answer(503, None, **{"Retry-After": "2"}), unknown("look-up answered 503", 2.0)),
    ],
)
def test_a_look_up_of_a_refund_over_http(came: Answer, found: RefundFound) -> None:
    assert http_answers.refund_found(REFERENCE, came) == found


def test_money_of_a_currency_that_nobody_pays_with_is_no_amount() -> None:
    assert from_stripes(100, "XAU") is None
    assert from_stripes(2001, "ISK") is None
