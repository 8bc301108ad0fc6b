"""Dunning on real servers: from a charge that fails to the end, and back by a payment; each look whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from billing_shards.billing import subscriptions
from billing_shards.billing.model import Status
from billing_shards.db import queries
from billing_shards.jobs.model import Status as JobStatus
from billing_shards.payments.model import Unknown
from tests.mysql.faults import KilledError, killed_after
from tests.mysql.life import BY, HARD, NEW_METHOD, PAID, SOFT, START, Life
from tests.mysql.shard_set import ShardSet, pretty

UNKNOWN = Unknown(reason="time-out")


@pytest.fixture
def life(make_shard_set: Callable[..., ShardSet]) -> Life:
    """Charged at once, tried four times: after a day, a week, and again a week. Suspended when all that is over."""
    return Life(
        make_shard_set(
            shardCount=2,
            smoothing={"windowSeconds": 0},
            retry={"delaysSeconds": [86_400, 7 * 86_400], "attemptsMax": 4, "jitter": 0, "graceSeconds": 40 * 86_400},
            dunning={
                "noticesSeconds": [2 * 86_400, 5 * 86_400, 30 * 86_400],
                "suspendAfterSeconds": 10 * 86_400,
                "cancelAfterSeconds": 60 * 86_400,
            },
        )
    )


def test_a_debt_that_is_never_paid_runs_through_every_state_to_the_end(life: Life) -> None:
    life.schedule()
    assert life.charge(SOFT) == 1
    statuses: list[tuple[int, Status]] = []
    for day in range(91):
        life.at(day)
        life.schedule()
        life.charge(SOFT)
        life.dun()
        if not statuses or statuses[-1][1] is not life.status():
            statuses.append((day, life.status()))
    assert statuses == [(0, Status.PAST_DUE), (10, Status.SUSPENDED), (70, Status.CANCELED)]
    assert life.events() == [
        "subscription.past_due",
        "subscription.notice",
        "subscription.notice",
        "subscription.suspended",
        "payment.given_up",
        "subscription.notice",
        "subscription.canceled",
        "invoice.written_off",
    ]
    assert [told["number"] for told in life.told("subscription.notice")] == [1, 2, 3]
    (invoice,) = life.told("invoice.issued")
    debt = {"invoice": invoice["invoice"], "amount": 990, "currency": "USD"}
    assert life.told("subscription.past_due") == [{"invoices": [debt]}]
    assert life.told("subscription.suspended") == [{"reason": "unpaid_too_long", "invoices": [debt]}]
    assert life.told("subscription.canceled") == [{"reason": "suspended_too_long", "write_off": True}]
    assert life.told("payment.given_up")[0]["reason"] == "attempts_exhausted"
    assert life.periods() == [("2024-01-31", "2024-02-29", 4)]  # none of the suspension's
    assert life.entries(3) == [("bad-debt:video", "receivable:sub-1", 990, "USD")]
    assert (life.row.next_invoice_at, life.row.next_dunning_at) == (None, None)
    assert life.is_clean()


@pytest.mark.parametrize(
    ("outcome", "events"),
    [
        (HARD, ["payment.given_up", "subscription.past_due", "subscription.suspended"]),
        (NEW_METHOD, ["payment.action_required", "subscription.past_due"]),
        (SOFT, ["subscription.past_due"]),
        (UNKNOWN, []),
    ],
)
def test_each_failure_has_its_beginning(life: Life, outcome: Any, events: list[str]) -> None:
    life.schedule()
    life.charge(outcome)
    life.dun()
    assert life.events() == events
    suspended = "subscription.suspended" in events
    wanted = Status.SUSPENDED if suspended else Status.PAST_DUE if events else Status.ACTIVE
    assert life.status() is wanted
    assert (life.row.next_invoice_at is None) is suspended
    assert life.is_clean()


def test_a_retry_that_succeeds_ends_it(life: Life) -> None:
    life.schedule()
    life.charge(SOFT)
    life.dun()
    life.at(1)
    assert life.charge(PAID) == 1
    life.dun()
    assert life.events() == ["subscription.past_due", "payment.succeeded", "subscription.reactivated"]
    assert life.told("subscription.reactivated") == [{"was": "past_due", "next_period_start": "2024-02-29"}]
    assert (life.status(), life.row.past_due_since, life.row.next_dunning_at) == (Status.ACTIVE, None, None)
    assert life.is_clean()


def test_of_two_late_invoices_both_must_be_paid(life: Life) -> None:
    life.schedule()
    life.charge(SOFT)
    life.at(0.01)
    life.dun()
    life.shard_set.change(life.shard, "UPDATE billing_job SET due_at = '2024-03-05' WHERE shard_id = %(shard)s")
    life.at(29)
    life.schedule()
    first = life.claim()
    assert len(first) == 1
    life.settle(first, SOFT)
    life.at(30)
    (second,) = life.claim()
    life.settle([second], PAID)
    life.dun()
    assert life.status() is not Status.ACTIVE
    life.at(34)
    assert life.charge(PAID) == 1
    life.dun()
    assert life.status() is Status.ACTIVE
    assert life.is_clean()


def test_of_a_suspension_no_period_is_invoiced(life: Life) -> None:
    """Suspended in the first period, paid in the third: the second is left out, and what is left of the third is free."""
    life.schedule()
    life.charge(HARD)
    life.dun()
    life.at(40)
    assert life.schedule() == 0
    subscriptions.change_payment_method(life.shard_set.router, life.subject, "pm_new", grace_seconds=86_400, by=BY)
    assert life.charge(PAID) == 1
    life.dun()
    assert life.told("subscription.reactivated") == [{"was": "suspended", "next_period_start": "2024-03-31"}]
    assert str(life.row.next_invoice_at) == "2024-03-31 00:00:00"
    assert life.is_clean()
    life.at(60)
    assert life.schedule() == 1
    assert [period[:2] for period in life.periods()] == [("2024-01-31", "2024-02-29"), ("2024-03-31", "2024-04-30")]
    assert life.is_clean()


def test_a_suspension_within_one_period_leaves_nothing_out(life: Life) -> None:
    life.schedule()
    life.charge(HARD)
    life.dun()
    life.at(20)
    subscriptions.change_payment_method(life.shard_set.router, life.subject, "pm_new", grace_seconds=86_400, by=BY)
    life.charge(PAID)
    life.dun()
    assert str(life.row.next_invoice_at) == "2024-02-29 00:00:00"
    assert life.shard_set.count("subscription_span") == 0
    life.at(30)
    assert life.schedule() == 1
    assert life.is_clean()


def test_an_open_attempt_keeps_its_method_until_it_is_resolved(life: Life) -> None:
    life.schedule()
    jobs = life.claim()
    subscriptions.change_payment_method(life.shard_set.router, life.subject, "pm_new", grace_seconds=86_400, by=BY)
    assert life.jobs() == [(JobStatus.PROCESSING, 0, "pm_ok", 1)]
    life.settle(jobs, SOFT)
    assert life.claim() == []
    life.dun()
    assert life.jobs() == [(JobStatus.READY, 1, "pm_new", 1)]
    (job,) = life.claim()  # at once, not after a day
    assert (job.payment_method, job.attempt_no, job.resumed) == ("pm_new", 2, False)


def test_a_canceled_ones_open_attempt_is_resolved_before_its_debt_is_written_off(life: Life) -> None:
    life.schedule()
    jobs = life.claim()
    subscriptions.cancel(life.shard_set.router, life.subject, at_period_end=False, write_off=True, by=BY)
    life.dun()
    assert (life.events(), life.periods()[0][2]) == (["subscription.canceled"], 1)
    life.settle(jobs, SOFT)
    life.dun()
    assert life.events() == ["subscription.canceled", "invoice.written_off"]
    assert life.jobs() == [(JobStatus.FAILED, 1, "pm_ok", 1)]
    assert life.is_clean()


def test_a_canceled_ones_open_attempt_may_still_bring_the_money(life: Life) -> None:
    life.schedule()
    jobs = life.claim()
    subscriptions.cancel(life.shard_set.router, life.subject, at_period_end=False, write_off=True, by=BY)
    life.dun()
    life.settle(jobs, PAID)
    life.at(1)
    life.dun()
    assert (life.periods()[0][2], life.entries(3), life.row.next_dunning_at) == (2, [], None)
    assert life.is_clean()


def test_a_job_that_is_being_worked_on_is_left_to_the_next_look(life: Life) -> None:
    """Its row is locked by another transaction: nobody waits, and nothing is written off half."""
    life.schedule()
    subscriptions.cancel(life.shard_set.router, life.subject, at_period_end=False, write_off=True, by=BY)
    with life.shard_set.owner(life.shard) as other:
        other.exec_driver_sql("SELECT id FROM billing_job WHERE shard_id = %(shard)s FOR UPDATE", {"shard": life.shard})
        life.dun()
        assert life.entries(3) == []
    assert life.row.next_dunning_at == START + timedelta(seconds=60)
    life.at(1)
    life.dun()
    assert len(life.entries(3)) == 1
    assert life.is_clean()


def test_an_invoice_is_written_off_for_the_service_it_was_issued_for(life: Life) -> None:
    life.schedule()
    life.shard_set.change(life.shard, "UPDATE subscription SET service = 'music' WHERE shard_id = %(shard)s")
    subscriptions.cancel(life.shard_set.router, life.subject, at_period_end=False, write_off=True, by=BY)
    life.dun()
    assert life.entries(3) == [("bad-debt:video", "receivable:sub-1", 990, "USD")]


def test_killed_between_any_two_steps_it_leaves_nothing_half_done(life: Life) -> None:
    """The longest look: it cancels, writes off, books and tells."""
    life.schedule()
    life.charge(HARD)
    life.dun()
    life.at(61)
    steps = 0
    while life.status() is not Status.CANCELED:
        steps += 1
        try:
            with killed_after(life.shard_set, steps):
                life.dun()
        except KilledError:
            if life.status() is not Status.CANCELED:
                assert (life.entries(3), life.periods()[0][2]) == ([], 3)
                assert "subscription.canceled" not in life.events()
    assert steps > 10
    life.dun()
    assert life.events().count("subscription.canceled") == len(life.entries(3)) == 1
    assert life.is_clean()


@pytest.mark.parametrize("after", [True, False])
def test_a_lost_answer_to_commit_is_told_once(life: Life, lose_commit: Callable[[bool], None], after: bool) -> None:
    life.schedule()
    life.charge(SOFT)
    lose_commit(after)
    life.dun()
    assert life.events() == ["subscription.past_due"]
    assert life.is_clean()


def test_the_looks_read_their_indexes(life: Life) -> None:
    life.schedule()
    life.charge(SOFT)
    for number in range(300):
        life.shard_set.add_subscription(f"other-{number}", next_invoice_at=None)
    _d = queries("dunning")
    plan = life.shard_set.explain(life.shard, _d.due_shards, shards=(0, 1))
    assert [(row["key"], "group-by" in row["Extra"]) for row in plan] == [("dunning", True)], pretty(plan)
    plan = life.shard_set.explain(life.shard, _d.due, now=life.now, limit=200)
    assert [(row["key"], row["type"]) for row in plan] == [("dunning", "range")], pretty(plan)
    assert plan[0]["rows"] < 10
    assert "filesort" not in plan[0]["Extra"]
    plan = life.shard_set.explain(life.shard, _d.unpaid_invoices, subscriptions=("sub-1",))
    assert [row["key"] for row in plan] == ["period"], pretty(plan)
    plan = life.shard_set.explain(life.shard, _d.jobs, keys='[["00"]]')
    assert [row["key"] for row in plan] == [None, "idempotency", "PRIMARY"], pretty(plan)
    assert plan[2]["type"] == "eq_ref"
    plan = life.shard_set.explain(life.shard, _d.issued_for, keys='[["00"]]')
    assert [row["key"] for row in plan] == [None, "idempotency"], pretty(plan)
    plan = life.shard_set.explain(life.shard, queries("subscriptions").lock, ids=("sub-1",))
    assert [row["key"] for row in plan] == ["PRIMARY"], pretty(plan)
