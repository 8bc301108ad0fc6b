"""Dunning over its whole product: every state, every kind of debt, every moment of the policy."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.billing.dunning import (
    EDGES,
    Cancel,
    Course,
    FallPastDue,
    Notify,
    Reactivate,
    Rest,
    Standing,
    Step,
    Suspend,
    Unpaid,
    WriteOff,
    course,
    decide,
    transition,
)
from billing_shards.billing.model import Status
from billing_shards.settings import DunningSpec

DAY = 86_400
POLICY = DunningSpec(
    notices_seconds=(1 * DAY, 3 * DAY, 7 * DAY), suspend_after_seconds=14 * DAY, cancel_after_seconds=60 * DAY, write_off=True
)
START = datetime(2026, 1, 1)


def days(count: float) -> datetime:
    return START + timedelta(days=count)


def unpaid(number: int = 1, *, late: bool = True, given_up: bool = False, attempt_open: bool = False) -> Unpaid:
    return Unpaid(invoice=number, amount=990, currency="USD", late=late, given_up=given_up, attempt_open=attempt_open)


FRESH = unpaid(1, late=False)
FIRST_TRY = unpaid(2, late=False, attempt_open=True)
RETRIED = unpaid(3)
RETRYING = unpaid(4, attempt_open=True)
GIVEN_UP = unpaid(5, given_up=True)
KINDS = (FRESH, FIRST_TRY, RETRIED, RETRYING, GIVEN_UP)


def standing(
    status: Status,
    *owed: Unpaid,
    past_due: float | None = 0,
    suspended: float | None = 0,
    notices: int = 0,
    write_off: bool = False,
) -> Standing:
    since = None if past_due is None or status is Status.ACTIVE else days(past_due)
    stopped = None if suspended is None or status in {Status.ACTIVE, Status.PAST_DUE} else days(suspended)
    return Standing(
        status=status, past_due_since=since, suspended_since=stopped, notices=notices, write_off=write_off, unpaid=owed
    )


DEBTS = [debt for size in (0, 1, 2, len(KINDS)) for debt in combinations(KINDS, size)]
MOMENTS = (0.0, 1.0, 7.0, 13.99, 14.0, 60.0, 400.0)
EVERYTHING = [
    (standing(status, *debt, notices=notices, write_off=write_off), replace_policy, days(day))
    for status, debt, notices, write_off, replace_policy, day in product(
        Status, DEBTS, (0, 3), (False, True), (POLICY, POLICY.model_copy(update={"suspend_when_given_up": False})), MOMENTS
    )
]


def test_the_whole_product_keeps_to_the_edges_and_uses_each() -> None:
    used = set()
    for before, policy, now in EVERYTHING:
        step = decide(before, policy, now)
        if isinstance(step, Rest):
            continue
        after = transition(before, step, policy, now)
        if after.status is not before.status:
            assert after.status in EDGES[before.status], (before, step)
            used.add((before.status, after.status))
        else:
            assert after != before, (before, step)  # a step that changes nothing would be taken for ever
    assert used == {(status, to) for status, others in EDGES.items() for to in others}


def test_the_whole_product_comes_to_rest_at_a_later_moment() -> None:
    for before, policy, now in EVERYTHING:
        found = course(before, policy, now)
        assert decide(found.after, policy, now) == Rest(until=found.look_again_at)
        if found.look_again_at is not None:
            assert found.look_again_at > now
        assert course(found.after, policy, now).steps == ()


def test_the_whole_product_ends_nothing_while_money_may_have_been_taken() -> None:
    for before, policy, now in EVERYTHING:
        for step in course(before, policy, now).steps:
            if isinstance(step, Cancel):
                assert not before.is_unresolved
            if isinstance(step, WriteOff):
                assert all(not one.attempt_open for one in before.unpaid if one.invoice in step.invoices)


def test_the_whole_product_suspends_nobody_who_owes_nothing_late() -> None:
    for before, policy, now in EVERYTHING:
        after = course(before, policy, now).after
        if not before.late and before.status is not Status.CANCELED:
            assert after.status is Status.ACTIVE
            assert (after.past_due_since, after.suspended_since) == (None, None)
            assert after.notices == (before.notices if before.status is Status.ACTIVE else 0)
        if before.status is Status.CANCELED:
            assert after.status is Status.CANCELED


@pytest.mark.parametrize(
    ("before", "day", "step"),
    [
        (standing(Status.ACTIVE), 0, Rest(until=None)),
        (standing(Status.ACTIVE, FRESH, FIRST_TRY), 400, Rest(until=None)),
        (standing(Status.ACTIVE, RETRIED), 0, FallPastDue()),
        (standing(Status.ACTIVE, GIVEN_UP), 0, FallPastDue()),
        (standing(Status.PAST_DUE, RETRIED), 0.5, Rest(until=days(1))),
        (standing(Status.PAST_DUE, RETRIED), 1, Notify(number=1)),
        (standing(Status.PAST_DUE, RETRIED, notices=1), 1, Rest(until=days(3))),
        (standing(Status.PAST_DUE, RETRIED), 8, Notify(number=3)),  # nobody looked for a week: told once
        (standing(Status.PAST_DUE, RETRIED, notices=3), 8, Rest(until=days(14))),
        (standing(Status.PAST_DUE, RETRIED), 14, Suspend(reason="unpaid_too_long")),
        (standing(Status.PAST_DUE, RETRYING), 14, Suspend(reason="unpaid_too_long")),
        (standing(Status.PAST_DUE, GIVEN_UP), 0, Suspend(reason="given_up")),
        (standing(Status.PAST_DUE, RETRIED, GIVEN_UP), 0, Suspend(reason="given_up")),
        (standing(Status.PAST_DUE, FRESH), 14, Reactivate()),
        (standing(Status.SUSPENDED, RETRIED, notices=3), 59, Rest(until=days(60))),
        (standing(Status.SUSPENDED, RETRIED, suspended=5), 3, Notify(number=2)),
        (standing(Status.SUSPENDED, RETRIED), 60, Cancel(reason="suspended_too_long", write_off=True)),
        (standing(Status.SUSPENDED, RETRIED, FIRST_TRY), 60, Rest(until=days(60) + timedelta(hours=1))),
        (standing(Status.SUSPENDED), 400, Reactivate()),
        (standing(Status.CANCELED, RETRIED, GIVEN_UP), 400, Rest(until=None)),
        (standing(Status.CANCELED, FRESH, RETRYING, GIVEN_UP, write_off=True), 0, WriteOff(invoices=(1, 5))),
        (standing(Status.CANCELED, RETRYING, write_off=True), 0, Rest(until=START + timedelta(hours=1))),
        (standing(Status.CANCELED, write_off=True), 0, Rest(until=None)),
    ],
)
def test_each_step_has_its_moment(before: Standing, day: float, step: Step | Rest) -> None:
    assert decide(before, POLICY, days(day)) == step


def test_given_up_may_wait_for_the_end_of_the_grace() -> None:
    policy = POLICY.model_copy(update={"suspend_when_given_up": False})
    before = standing(Status.PAST_DUE, GIVEN_UP, notices=3)
    assert decide(before, policy, days(13)) == Rest(until=days(14))
    assert decide(before, policy, days(14)) == Suspend(reason="unpaid_too_long")


def test_a_new_debt_begins_with_no_notice_told() -> None:
    found = course(standing(Status.ACTIVE, RETRIED, notices=3), POLICY, days(5))
    assert found.steps == (FallPastDue(),)
    assert (found.after.notices, found.after.past_due_since, found.look_again_at) == (0, days(5), days(6))


def test_without_notices_only_the_ends_are_told() -> None:
    policy = POLICY.model_copy(update={"notices_seconds": ()})
    assert decide(standing(Status.PAST_DUE, RETRIED), policy, days(8)) == Rest(until=days(14))


def test_a_suspension_is_not_followed_by_a_notice_of_the_same_moment() -> None:
    found = course(standing(Status.PAST_DUE, GIVEN_UP), POLICY, days(3))
    assert found.steps == (Suspend(reason="given_up"),)
    assert (found.after.notices, found.look_again_at) == (2, days(7))


def test_nobody_is_canceled_by_the_look_that_suspends() -> None:
    """Nobody looked for a year: each state has its whole time, from when it was entered."""
    found = course(standing(Status.PAST_DUE, RETRIED), POLICY, days(365))
    assert found.steps == (Suspend(reason="unpaid_too_long"),)
    assert found.look_again_at == days(365 + 60)


def test_a_canceled_one_is_written_off_by_the_same_look() -> None:
    found = course(standing(Status.SUSPENDED, RETRIED, FRESH), POLICY, days(60))
    assert found.steps == (Cancel(reason="suspended_too_long", write_off=True), WriteOff(invoices=(3, 1)))
    kept = course(standing(Status.SUSPENDED, RETRIED), POLICY.model_copy(update={"write_off": False}), days(60))
    assert kept.steps == (Cancel(reason="suspended_too_long", write_off=False),)
    assert kept.look_again_at is None


policies = st.builds(
    lambda notices, suspend, cancel, at_once, write_off: DunningSpec(
        notices_seconds=tuple(sorted(notices)),
        suspend_after_seconds=suspend,
        cancel_after_seconds=cancel,
        suspend_when_given_up=at_once,
        write_off=write_off,
    ),
    st.sets(st.integers(1, 100 * DAY), max_size=5),
    st.integers(1, 60 * DAY),
    st.integers(1, 60 * DAY),
    st.booleans(),
    st.booleans(),
)
looks = st.lists(st.integers(0, 40 * DAY), min_size=1, max_size=30)
payments = st.none() | st.integers(0, 29)


def check_time(
    step: Step, now: datetime, policy: DunningSpec, entered: dict[Status, datetime], notices: list[int], *, given_up: bool
) -> None:
    match step:
        case FallPastDue():
            entered[Status.PAST_DUE] = now
            notices.clear()
        case Notify():
            notices.append(step.number)
            assert now >= entered[Status.PAST_DUE] + timedelta(seconds=policy.notices_seconds[step.number - 1])
        case Suspend():
            entered[Status.SUSPENDED] = now
            early = now < entered[Status.PAST_DUE] + timedelta(seconds=policy.suspend_after_seconds)
            assert not early or (given_up and policy.suspend_when_given_up)
        case Cancel():
            assert now >= entered[Status.SUSPENDED] + timedelta(seconds=policy.cancel_after_seconds)
        case WriteOff():
            assert policy.write_off
        case Reactivate():
            pass


@given(policies, looks, payments, st.booleans())
def test_whenever_it_is_looked_at_time_is_kept_and_payment_mends(
    policy: DunningSpec, waits: list[int], paid_at: int | None, given_up: bool
) -> None:
    """Looks come whenever they come. No state is left early, notices ascend, and a payment brings all but the end back."""
    now, found = START, Course(steps=(), after=standing(Status.ACTIVE), look_again_at=None)
    debt = (unpaid(given_up=given_up),)
    entered: dict[Status, datetime] = {}
    notices: list[int] = []
    for number, wait in enumerate(waits):
        now += timedelta(seconds=wait)
        is_paid = paid_at is not None and number >= paid_at
        before = replace(found.after, unpaid=() if is_paid else debt)
        found = course(before, policy, now)
        for step in found.steps:
            check_time(step, now, policy, entered, notices, given_up=given_up)
            assert is_paid or not isinstance(step, Reactivate)
        assert all(before < after for before, after in pairwise(notices))
        if is_paid and before.status is not Status.CANCELED:
            assert found.after.status is Status.ACTIVE
        if not is_paid:
            assert found.after.status is not Status.ACTIVE


@given(policies, st.booleans())
def test_looking_when_it_was_said_to_ends_every_debt(policy: DunningSpec, given_up: bool) -> None:
    now, found = START, course(standing(Status.ACTIVE, unpaid(given_up=given_up)), policy, START)
    for _ in range(20):
        if found.look_again_at is None:
            break
        now = found.look_again_at
        found = course(found.after, policy, now)
    assert found.after.status is Status.CANCELED
    assert now <= START + timedelta(seconds=policy.suspend_after_seconds + policy.cancel_after_seconds)
