"""What an answer does to a refund: every status by every answer, and whole histories of them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.payments.model import Cause, Failed, NotSent, Pending, RefundOutcome, Succeeded, Unknown
from billing_shards.payments.refunds.decide import EDGES, decide
from billing_shards.payments.refunds.model import RefundStatus

DELAYS = (10, 60, 300)
ANSWERS: list[RefundOutcome] = [
    Succeeded(provider_ref="re_1"),
    Pending(provider_ref="re_1"),
    Failed(code="refund_failed"),
    NotSent(reason="not reached"),
    NotSent(reason="rate limited", retry_after_seconds=99, cause=Cause.RATE_LIMITED),
    Unknown(reason="time-out"),
]
STATUSES, CHECKS = list(RefundStatus), [0, 2, 3]
answers = st.lists(st.sampled_from(ANSWERS), max_size=20)


@pytest.mark.parametrize(("status", "answer", "checks"), list(product(STATUSES, ANSWERS, CHECKS)))
def test_every_step_is_an_edge_and_is_booked_by_what_happened(status: RefundStatus, answer: RefundOutcome, checks: int) -> None:
    step = decide(status, checks, answer, DELAYS, received=True)
    assert step.status in EDGES[status]
    under_way = status not in {RefundStatus.SUCCEEDED, RefundStatus.FAILED}
    assert step.booked == (under_way and isinstance(answer, Succeeded))
    assert step.booked_back == (status is RefundStatus.SUCCEEDED and isinstance(answer, Failed))
    assert step.received
    ends = step.status in {RefundStatus.SUCCEEDED, RefundStatus.FAILED, RefundStatus.REVIEW}
    assert (step.check_seconds is None) == ends
    assert 0 <= step.checks - checks <= 1


def test_each_edge_is_taken_by_some_answer() -> None:
    taken = {
        (status, decide(status, checks, answer, DELAYS, received=True).status)
        for status, answer, checks in product(STATUSES, ANSWERS, CHECKS)
    }
    assert taken == {(before, after) for before, edges in EDGES.items() for after in edges}


def test_looks_follow_the_schedule_and_then_a_person_looks() -> None:
    status, checks, waited = RefundStatus.REQUESTED, 0, []
    while (step := decide(status, checks, Unknown(reason="?"), DELAYS, received=True)).review is None:
        status, checks = step.status, step.checks
        waited.append(step.check_seconds)
    assert waited == list(DELAYS)
    assert (step.status, step.review) == (RefundStatus.REVIEW, "outcome_unknown")


def test_a_provider_that_is_down_brings_no_review_and_names_its_own_time() -> None:
    step = decide(RefundStatus.REQUESTED, 3, ANSWERS[3], DELAYS, received=False)
    assert (step.status, step.checks, step.check_seconds, step.received) == (RefundStatus.REQUESTED, 3, 10, False)
    assert decide(RefundStatus.REQUESTED, 0, ANSWERS[4], DELAYS, received=False).check_seconds == 99


def test_a_failure_that_succeeds_after_all_is_for_a_person() -> None:
    """Its amount may have been refunded anew: booking it by itself could give back more than was paid."""
    step = decide(RefundStatus.FAILED, 0, ANSWERS[0], DELAYS, received=True)
    assert (step.status, step.booked, step.review) == (RefundStatus.FAILED, False, "succeeded_after_failing")


@given(answers)
def test_whatever_the_answers_it_is_booked_once_at_most_and_booked_back_only_after_that(history: list[RefundOutcome]) -> None:
    status, checks, booked, received = RefundStatus.REQUESTED, 0, 0, False
    for answer in history:
        step = decide(status, checks, answer, DELAYS, received=received)
        assert not (step.booked and step.booked_back)
        booked += step.booked
        booked -= step.booked_back
        assert booked in {0, 1}
        status, checks, received = step.status, step.checks, step.received
        assert booked == (status is RefundStatus.SUCCEEDED)
