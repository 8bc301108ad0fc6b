"""Looks at charges that wait for the customer: a payment is found though no webhook told of it, and nothing is asked for ever."""

from __future__ import annotations

import pytest

from billing_shards.db import queries
from billing_shards.jobs.model import NEVER, RETRY, Status
from billing_shards.payments import customers
from billing_shards.payments.asker import Asker
from billing_shards.payments.model import ActionRequired, AttemptOutcome, DeclineClass, Declined, Pending
from billing_shards.process import ShardSet as Named
from billing_shards.process import providers
from billing_shards.shards.shardset import ManifestSecrets
from tests.mysql.money import SHARD, Money
from tests.mysql.shard_set import DueJob, pretty

O = AttemptOutcome  # noqa: E741 - short names for a table
DUE = "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s AND status = 4 AND due_at < '9999-01-01'"


def look(money: Money, *, again: bool = True) -> bool:
    """A housekeeper's step; with `again`, the time of the next look has come."""
    if again:
        money.shard_set.change(SHARD, DUE)
    named = Named(name="main", spec=money.shard_set.spec, secrets=ManifestSecrets({}))
    with Asker(money.shard_set.router, lambda: providers(named), money.shard_set.spec) as asker:
        return asker.customers(money.database, [SHARD])


def first_charge(money: Money) -> str:
    """Its id."""
    return str(next(money.fake.charges())["id"])


@pytest.fixture
def waiting(money: Money) -> DueJob:
    due = money.due(payment_method="pm_requires_action")
    money.work()
    row = money.job(due)
    assert (row.status, row.attempt_open, row.checks) == (Status.AWAITING_CUSTOMER, 0, 0)
    assert 5 <= row.due_in <= money.shard_set.spec.retry.check_delays_seconds[0]
    return due


def test_a_payment_that_no_webhook_told_of_is_found(money: Money, waiting: DueJob) -> None:
    money.fake.complete(first_charge(money))
    assert not look(money, again=False)
    assert look(money)
    assert (money.job(waiting).status, money.outcomes(waiting)) == (Status.READY, [O.PENDING])
    assert money.broken() == {}
    assert money.work(RETRY) == 1
    assert (money.invoice(waiting), money.outcomes(waiting)) == (2, [O.SUCCEEDED])
    assert money.told(waiting) == ["payment.action_required", "payment.succeeded"]
    assert money.broken() == {}


def test_one_that_failed_goes_on_as_any_decline(money: Money, waiting: DueJob) -> None:
    money.fake.complete(first_charge(money), fails=True)
    assert look(money)
    money.work(RETRY)
    assert (money.job(waiting).status, money.outcomes(waiting)) == (Status.AWAITING_CUSTOMER, [O.DECLINED])
    assert money.told(waiting) == ["payment.action_required"] * 2
    assert not look(money)
    assert money.broken() == {}


def test_a_customer_who_does_nothing_is_looked_for_by_the_schedule_and_then_no_more(money: Money, waiting: DueJob) -> None:
    delays = money.shard_set.spec.retry.check_delays_seconds
    for checks, delay in enumerate([*delays[1:], None], start=1):
        assert look(money)
        row = money.job(waiting)
        assert (row.status, row.attempt_open, row.checks) == (Status.AWAITING_CUSTOMER, 0, checks)
        assert money.outcomes(waiting) == [O.ACTION_REQUIRED]
        if delay is not None:
            assert delay - 5 <= row.due_in <= delay
    assert money.one("SELECT due_at FROM billing_job WHERE shard_id = %(shard)s") == NEVER
    assert not look(money)
    assert money.told(waiting) == ["payment.action_required"]
    assert money.broken() == {}


def test_a_webhook_still_tells_when_nobody_looks_any_more(money: Money, waiting: DueJob) -> None:
    money.shard_set.change(SHARD, "UPDATE billing_job SET due_at = '9999-12-31', checks = 10 WHERE shard_id = %(shard)s")
    money.fake.complete(first_charge(money))
    money.hear("charge.succeeded", f"{waiting.shard}/{waiting.invoice}/1")
    money.apply()
    row = money.job(waiting)
    assert (row.status, row.checks) == (Status.READY, 0)  # looks at an attempt that is opened again are counted anew
    money.work(RETRY)
    assert money.invoice(waiting) == 2


def test_one_that_waits_for_another_method_is_not_looked_at(money: Money) -> None:
    due = money.due()
    (job,) = money.claim()
    money.settle(job, Declined(decline_class=DeclineClass.NEW_METHOD, code="expired_card", provider_ref="ch_no"))
    assert money.job(due).status == Status.AWAITING_CUSTOMER
    assert money.one("SELECT due_at FROM billing_job WHERE shard_id = %(shard)s") == NEVER
    # As a version had it that knew of no looks.
    money.shard_set.change(SHARD, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s")
    assert look(money, again=False)
    assert money.one("SELECT due_at FROM billing_job WHERE shard_id = %(shard)s") == NEVER
    assert (money.job(due).status, money.outcomes(due)) == (Status.AWAITING_CUSTOMER, [O.DECLINED])
    assert not look(money, again=False)
    assert money.fake.summary()["requests"] == 0


@pytest.mark.parametrize("provider", ["http", "gone"])
def test_a_provider_that_says_nothing_changes_nothing(money: Money, waiting: DueJob, provider: str) -> None:
    """It does not know the charge, or is not listed any more."""
    change = "UPDATE payment_attempt SET provider = %(provider)s WHERE shard_id = %(shard)s"
    money.shard_set.change(SHARD, change, provider=provider)
    money.fake.reset()
    assert look(money)
    row = money.job(waiting)
    assert (row.status, row.checks, money.outcomes(waiting)) == (Status.AWAITING_CUSTOMER, 1, [O.ACTION_REQUIRED])


def test_a_customer_who_gave_another_method_meanwhile_is_left_to_the_cancel(money: Money, waiting: DueJob) -> None:
    """The look was under way when the attempt was opened again for another reason."""
    assert customers.take(money.shard_set.router, SHARD, RETRY, policy=money.shard_set.spec.retry) is None
    money.shard_set.change(SHARD, DUE)
    (one,) = customers.take(money.shard_set.router, SHARD, RETRY, policy=money.shard_set.spec.retry) or []
    assert str(one.attempt) == f"{waiting.shard}/{waiting.invoice}/1"
    for change in ("UPDATE billing_job SET status = 0, attempt_open = 1", "UPDATE payment_attempt SET outcome = 7"):
        money.shard_set.change(SHARD, change + " WHERE shard_id = %(shard)s")
    assert customers.hurry(money.shard_set.router, SHARD, [one.attempt]) == 0
    assert money.outcomes(waiting) == [O.CANCELING]


def test_which_answers_say_that_the_customer_has_acted() -> None:
    declined = Declined(decline_class=DeclineClass.RETRYABLE, code="canceled")
    assert [customers.waits_no_more(one) for one in (Pending(provider_ref="c"), declined)] == [True, True]
    assert not customers.waits_no_more(ActionRequired(provider_ref="ch"))


def test_the_looks_read_the_claim_index(money: Money) -> None:
    _c = queries("customers")
    for number in range(300):
        money.due(f"other{number}")
    plan = money.shard_set.explain(SHARD, _c.due_lanes, shards=(SHARD,))
    assert [(row["key"], "group-by" in row["Extra"]) for row in plan] == [("claim", True)], pretty(plan)
    plan = money.shard_set.explain(SHARD, _c.due, lane=0, limit=20)
    assert [(row["key"], row["type"]) for row in plan] == [("claim", "range"), ("PRIMARY", "eq_ref")], pretty(plan)
    assert "filesort" not in plan[0]["Extra"]
    plan = money.shard_set.explain(SHARD, _c.put_off, rows="[[1, 5, 1]]")
    assert [row["key"] for row in plan] == [None, "PRIMARY"], pretty(plan)
