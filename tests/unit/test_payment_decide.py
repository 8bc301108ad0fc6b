"""The retry rules over the whole product of job states and outcomes."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.jobs.model import RENEWAL, RETRY, Job, Lane, attempt_key, clock, job_key
from billing_shards.payments.decide import (
    AskCustomer,
    BeginAnew,
    CheckAfter,
    Decision,
    GiveUp,
    Paid,
    RetryAfter,
    Review,
    decide,
    look_seconds,
)
from billing_shards.payments.declines import classify
from billing_shards.payments.model import (
    ActionRequired,
    DeclineClass,
    Declined,
    NotSent,
    Outcome,
    Pending,
    Succeeded,
    Unknown,
    Unresolvable,
)
from billing_shards.settings import RetrySpec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = RetrySpec()
OUTCOMES: tuple[Outcome, ...] = (
    Succeeded(provider_ref="ch_1"),
    *(Declined(decline_class=c, code="x") for c in DeclineClass),
    ActionRequired(),
    Pending(provider_ref="ch_1"),
    NotSent(reason="refused"),
    NotSent(reason="rate limited", retry_after_seconds=7200),
    Unknown(reason="time-out"),
    Unknown(reason="in flight", retry_after_seconds=1),
    Unresolvable(reason="forgotten"),
)
ENDS = (Paid, RetryAfter, BeginAnew, AskCustomer, GiveUp)


def job(
    *,
    attempt_no: int = 1,
    checks: int = 0,
    grace: timedelta = timedelta(days=14),
    lane: Lane = RENEWAL,
    canceling: bool = False,
) -> Job:
    return Job(
        shard=1,
        id=2,
        lane=lane,
        subscription="sub",
        invoice=3,
        amount=990,
        currency="USD",
        payment_method="pm",
        provider="http",
        key=bytes(32),
        attempt_no=attempt_no,
        checks=checks,
        resumed=canceling or checks > 0,
        canceling=canceling,
        attempt_age=0,
        claimed_at=clock(),
        grace_seconds=int(grace.total_seconds()),
        token=9,
    )


@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
def test_every_state_and_outcome_has_one_decision_and_only_known_outcomes_close_an_attempt(outcome: Outcome) -> None:
    known = isinstance(outcome, Succeeded | Declined | ActionRequired)
    product = itertools.product(range(1, 9), range(12), (timedelta(0), timedelta(days=14)), (RENEWAL, RETRY), (0.0, 0.999))
    for attempt_no, checks, grace, lane, draw in product:
        decision = decide(job(attempt_no=attempt_no, checks=checks, grace=grace, lane=lane), outcome, POLICY, draw)
        assert isinstance(decision, ENDS) is known, (outcome, decision)
        if isinstance(decision, RetryAfter):
            assert attempt_no < POLICY.attempts_max
            assert timedelta(seconds=decision.seconds) <= grace


@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
def test_an_attempt_that_is_to_be_canceled_ends_by_money_or_by_the_word_that_there_will_be_none(
    outcome: Outcome,
) -> None:
    product = itertools.product(range(1, 9), range(12), (timedelta(seconds=-1), timedelta(days=14)), (RENEWAL, RETRY))
    for attempt_no, checks, grace, lane in product:
        canceling = job(attempt_no=attempt_no, checks=checks, grace=grace, lane=lane, canceling=True)
        decision = decide(canceling, outcome, POLICY, 0.5)
        if isinstance(outcome, Succeeded):
            assert decision == Paid(provider_ref="ch_1")
        elif isinstance(outcome, Declined):  # whatever the class, and whatever is left of grace and attempts
            assert decision == BeginAnew()
        else:
            assert isinstance(decision, CheckAfter | Review), (outcome, decision)


def test_a_charge_that_waits_for_the_customer_is_looked_at_by_the_schedule_and_then_no_more() -> None:
    looks = [look_seconds(looks, POLICY) for looks in range(len(POLICY.check_delays_seconds) + 2)]
    assert looks == [*POLICY.check_delays_seconds, None, None]


def test_a_charge_that_cannot_be_canceled_is_for_a_person_in_the_end() -> None:
    looks = [decide(job(checks=n, canceling=True), ActionRequired(), POLICY, 0.0) for n in range(11)]
    assert [look.seconds for look in looks if isinstance(look, CheckAfter)] == list(POLICY.check_delays_seconds)
    assert looks[-1] == Review(reason="outcome_unknown")


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Succeeded(provider_ref="ch"), Paid(provider_ref="ch")),
        (Declined(decline_class=DeclineClass.HARD, code="lost_card"), GiveUp(reason="hard_decline")),
        (Declined(decline_class=DeclineClass.NEW_METHOD, code="expired_card"), AskCustomer(reason="new_payment_method")),
        (Declined(decline_class=DeclineClass.CUSTOMER, code="authentication_required"), AskCustomer(reason="action_required")),
        (ActionRequired(), AskCustomer(reason="action_required", look_seconds=10)),
        (Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds"), RetryAfter(seconds=300)),
        (Unknown(reason="x"), CheckAfter(seconds=10, checks=1)),
        (Unknown(reason="x", retry_after_seconds=1), CheckAfter(seconds=1, checks=1)),
        (Pending(provider_ref="ch", next_check_seconds=5), CheckAfter(seconds=5, checks=1)),
        (NotSent(reason="x"), CheckAfter(seconds=10, checks=0)),
        (NotSent(reason="x", retry_after_seconds=60), CheckAfter(seconds=60, checks=0)),
        (Unresolvable(reason="gone"), Review(reason="gone")),
    ],
    ids=repr,
)
def test_first_attempt(outcome: Outcome, expected: Decision) -> None:
    assert decide(job(), outcome, POLICY, 0.0) == expected


def test_retry_schedule_then_end() -> None:
    decline = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds")
    waits = [decide(job(attempt_no=n), decline, POLICY, 0.0) for n in range(1, 7)]
    assert waits == [
        *(RetryAfter(seconds=s) for s in (300, 1800, 7200, 43_200, 86_400)),
        GiveUp(reason="attempts_exhausted"),
    ]


def test_no_attempt_begins_after_the_grace_period() -> None:
    decline = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds")
    assert decide(job(grace=timedelta(seconds=299)), decline, POLICY, 0.0) == GiveUp(reason="grace_ended")


def test_looks_at_an_unknown_outcome_end_in_review() -> None:
    looks = [decide(job(checks=n), Unknown(reason="x"), POLICY, 0.0) for n in range(11)]
    assert [look.seconds for look in looks if isinstance(look, CheckAfter)] == list(POLICY.check_delays_seconds)
    assert looks[-1] == Review(reason="outcome_unknown")


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 5))
def test_jitter_only_lengthens_and_is_bounded(draw: float, attempt_no: int) -> None:
    decline = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds")
    decision = decide(job(attempt_no=attempt_no), decline, POLICY, draw)
    assert isinstance(decision, RetryAfter)
    base = POLICY.delays_seconds[attempt_no - 1]
    assert base <= decision.seconds <= base * (1 + POLICY.jitter)


@pytest.mark.parametrize(
    ("code", "advice", "expected"),
    [
        ("insufficient_funds", None, DeclineClass.RETRYABLE),
        ("do_not_honor", None, DeclineClass.RETRYABLE),
        ("never_heard_of", None, DeclineClass.RETRYABLE),
        ("stolen_card", None, DeclineClass.HARD),
        ("expired_card", None, DeclineClass.NEW_METHOD),
        ("resource_missing", None, DeclineClass.NEW_METHOD),
        ("authentication_required", None, DeclineClass.CUSTOMER),
        ("insufficient_funds", "do_not_try_again", DeclineClass.HARD),
        ("stolen_card", "try_again_later", DeclineClass.RETRYABLE),
        ("insufficient_funds", "confirm_card_data", DeclineClass.NEW_METHOD),
        ("stolen_card", "unheard_of_advice", DeclineClass.HARD),
    ],
)
def test_advice_outranks_the_code(code: str, advice: str | None, expected: DeclineClass) -> None:
    assert classify(code, advice) is expected


def test_keys_differ_by_period_and_attempt_and_stay_the_same_otherwise() -> None:
    start = NOW.date()
    first = job_key("sub", start, 1)
    assert first == job_key("sub", start, 1)
    assert len({first, job_key("sub", start + timedelta(days=1), 1), job_key("sub2", start, 1), job_key("sub", start, 2)}) == 4
    assert attempt_key(first, 1) == attempt_key(first, 1) != attempt_key(first, 2)
