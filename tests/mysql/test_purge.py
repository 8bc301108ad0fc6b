"""The purge of finished jobs: bounded, by index, and nothing that anybody still needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from billing_shards.accounts import ledger
from billing_shards.audit.auditor import audit
from billing_shards.audit.model import ProviderCharge
from billing_shards.cli import invoice
from billing_shards.jobs import purge, store
from billing_shards.jobs.model import RETRY
from billing_shards.payments.model import DeclineClass, Declined, Outcome, Succeeded
from billing_shards.payments.settle import Result, settle
from tests.mysql.shard_set import DueJob, ShardSet, pretty
from tests.mysql.test_queue import claim, fill

PAID_LATER = Succeeded(provider_ref="ch_2")
PAID = Succeeded(provider_ref="ch_1")
HARD = Declined(decline_class=DeclineClass.HARD, code="stolen_card", provider_ref="ch_no")
SOFT = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds", provider_ref="ch_no")
DAY = 86_400
START = datetime.now(UTC).date() - timedelta(days=10)
START_OF_LANE = {"finished_at": datetime(1970, 1, 1), "job": 0}
SHARDS = {"once": 3, "again": 2, "never": 1}


def finish(shard_set: ShardSet, shard: int, *outcomes: Outcome) -> None:
    """Claim as many due renewals and settle them so."""
    jobs = claim(shard_set, shard, limit=len(outcomes))
    results = [Result(job=job, outcome=outcome, draw=0.0) for job, outcome in zip(jobs, outcomes, strict=True)]
    assert settle(shard_set.router, shard, results, policy=shard_set.spec.retry) == []


def age(shard_set: ShardSet, seconds: int = 2 * DAY) -> None:
    """All jobs of all shards finished so long ago."""
    for shard in shard_set.shards:
        shard_set.change(
            shard,
            "UPDATE billing_job SET due_at = NOW(6) - INTERVAL %(seconds)s SECOND, updated_at = due_at"
            " WHERE shard_id = %(shard)s AND status IN (2, 3)",
            seconds=seconds,
        )


def purge_all(shard_set: ShardSet, retention_seconds: int = DAY) -> None:
    made = purge.Purge(shard_set.router, retention_seconds)
    for name, shards in shard_set.router.by_database(shard_set.shards).items():
        assert made.step(name, shards) is False


def test_jobs_that_finished_long_ago_are_deleted_and_nothing_else(shard_set: ShardSet) -> None:
    given_up = fill(shard_set, 6)[1]
    finish(shard_set, 3, PAID, HARD, SOFT, PAID)
    void = "UPDATE invoice SET status = 4 WHERE shard_id = %(shard)s AND id = %(id)s"
    assert shard_set.change(3, void, id=given_up.invoice)
    age(shard_set)
    fill(shard_set, 1, prefix="just")
    finish(shard_set, 3, PAID)
    tables = ("invoice", "payment_attempt", "ledger_entry", "outbox", "subscription")
    before = {table: shard_set.count(table) for table in tables}
    recent = shard_set.count("billing_job", "status = 2 AND due_at > NOW(6) - INTERVAL 1 HOUR")
    purge_all(shard_set)
    assert {table: shard_set.count(table) for table in tables} == before
    assert shard_set.count("billing_job", f"status IN (2, 3) AND due_at < NOW(6) - INTERVAL {DAY} SECOND") == 0
    assert shard_set.count("billing_job", "status = 2") == recent == 1
    assert shard_set.count("billing_job", "status = 0") == 3


def test_a_job_whose_invoice_is_not_final_is_kept(shard_set: ShardSet) -> None:
    """It cannot be, and were it so, the audit would tell: the purge must not wipe the trace away."""
    one, two = fill(shard_set, 2)
    finish(shard_set, 3, PAID, PAID)
    age(shard_set)
    shard_set.change(3, "UPDATE invoice SET status = 1 WHERE shard_id = %(shard)s AND id = %(id)s", id=one.invoice)
    shard_set.change(3, "UPDATE billing_job SET due_at = '2020-01-01' WHERE shard_id = %(shard)s AND id = %(id)s", id=one.job)
    purge_all(shard_set)
    assert [row[0] for row in shard_set.rows(3, "SELECT id FROM billing_job")] == [one.job]
    assert two.job != one.job


def test_a_job_that_somebody_looks_into_is_left_and_waited_for_by_nobody(shard_set: ShardSet) -> None:
    one, _ = fill(shard_set, 2)
    finish(shard_set, 3, PAID, PAID)
    age(shard_set)
    with shard_set.owner(3) as connection:
        connection.exec_driver_sql("SELECT id FROM billing_job WHERE shard_id = 3 AND id = %(id)s FOR UPDATE", {"id": one.job})
        purge_all(shard_set)
        assert shard_set.count("billing_job") == 1
    purge_all(shard_set)
    assert shard_set.count("billing_job") == 0


def test_a_step_is_bounded_and_the_oldest_go_first(shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "_BATCH", 4)
    monkeypatch.setattr(purge, "_STEP", 10)
    for shard in (1, 2, 3):
        due = fill(shard_set, 6, shard)
        finish(shard_set, shard, *[PAID] * 6)
        age(shard_set)
        oldest = due[2]
        older = "UPDATE billing_job SET due_at = '2020-01-01' WHERE shard_id = %(shard)s AND id = %(id)s"
        shard_set.change(shard, older, id=oldest.job)
    purge_all(shard_set)
    assert shard_set.count("billing_job") == 18 - 10
    shard_set_left = {row[0] for shard in (1, 2, 3) for row in shard_set.rows(shard, "SELECT due_at FROM billing_job")}
    assert all(moment.year > 2020 for moment in shard_set_left)
    purge_all(shard_set)
    assert shard_set.count("billing_job") == 0


def test_jobs_of_uncollectible_invoices_are_kept_and_are_in_nobodys_way(
    shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payment method given later has them tried again. More of them than a batch, older than all, must not hide the others."""
    monkeypatch.setattr(purge, "_BATCH", 2)
    fill(shard_set, 8)
    finish(shard_set, 3, *[HARD] * 7)
    age(shard_set)
    last = max(row[0] for row in shard_set.rows(3, "SELECT invoice_id FROM billing_job WHERE status = 3"))
    assert shard_set.change(3, "UPDATE invoice SET status = 4 WHERE shard_id = %(shard)s AND id = %(id)s", id=last)
    made = purge.Purge(shard_set.router, DAY)
    for _ in range(4):
        made.step("a", [3])
    assert shard_set.count("billing_job", "status = 3") == 6
    assert shard_set.count("billing_job", f"invoice_id = {last}") == 0
    first = min(row[0] for row in shard_set.rows(3, "SELECT invoice_id FROM billing_job WHERE status = 3"))
    shard_set.change(3, "UPDATE invoice SET status = 4 WHERE shard_id = %(shard)s AND id = %(id)s", id=first)
    for _ in range(4):
        made.step("a", [3])
    assert shard_set.count("billing_job", "status = 3") == 5


def test_retries_of_services_and_lanes_of_those_that_are_gone_are_purged_as_well(shard_set: ShardSet) -> None:
    fill(shard_set, 3)
    finish(shard_set, 3, PAID, PAID, PAID)
    age(shard_set)
    shard_set.change(3, "UPDATE billing_job SET lane = 140 + id %% 3 WHERE shard_id = %(shard)s")
    purge_all(shard_set)
    assert shard_set.count("billing_job") == 0


def test_explain_of_the_purge(shard_set: ShardSet) -> None:
    """The delete by primary key even of a small table, or the optimizer would lock all of it."""
    fill(shard_set, 120)
    fill(shard_set, 40, 1)
    finish(shard_set, 3, *[PAID] * 80)
    age(shard_set)
    params: dict[str, Any] = {"lane": 0, "status": 2, "limit": 500, "retention_seconds": DAY}
    rows = shard_set.explain(3, purge._q.purgeable, **params, **START_OF_LANE)
    jobs = next(row for row in rows if row["table"] == "j")
    assert (jobs["key"], jobs["type"]) == ("claim", "range"), pretty(rows)
    assert "filesort" not in (jobs["Extra"] or ""), pretty(rows)
    assert next(row for row in rows if row["table"] == "i")["type"] == "eq_ref", pretty(rows)
    rows = shard_set.explain(3, purge._q.purge, ids=tuple(range(1, 101)))
    assert (rows[0]["key"], rows[0]["type"]) == ("PRIMARY", "range"), pretty(rows)
    rows = shard_set.explain(3, purge._q.purgeable_lanes, shards=(1, 3), status=2, retention_seconds=DAY)
    assert rows[0]["key"] == "claim", pretty(rows)
    assert "Using index for group-by" in rows[0]["Extra"], pretty(rows)


def test_two_purges_of_the_same_shard_meet_without_a_deadlock(shard_set: ShardSet) -> None:
    """Trap 3: disjoint lists of ids, and a plan that reads the whole table, are a deadlock every time."""
    fill(shard_set, 200)
    finish(shard_set, 3, *[PAID] * 100)
    finish(shard_set, 3, *[PAID] * 100)
    age(shard_set)
    query = purge._q.purgeable
    params: dict[str, Any] = {"lane": 0, "status": 2, "limit": 100, "retention_seconds": DAY, **START_OF_LANE}
    params["shard"] = 3

    def chosen(connection: Connection) -> tuple[int, ...]:
        return tuple(row[0] for row in connection.exec_driver_sql(query, params))

    with shard_set.router.read(3) as one, shard_set.router.read(3) as two:
        first, second = chosen(one), chosen(two)
        assert len(first) == len(second) == 100
        assert not set(first) & set(second)
        assert one.exec_driver_sql(purge._q.purge, {"shard": 3, "ids": first}).rowcount == 100
        assert two.exec_driver_sql(purge._q.purge, {"shard": 3, "ids": second}).rowcount == 100
        one.commit()
        two.commit()
    assert shard_set.count("billing_job") == 0


def test_a_purged_job_is_claimed_or_reaped_no_more(shard_set: ShardSet) -> None:
    fill(shard_set, 1)
    finish(shard_set, 3, PAID)
    age(shard_set)
    purge_all(shard_set)
    assert claim(shard_set) == []
    with shard_set.router.read(3) as connection:
        assert store.next_due(connection, [3]) == []
        assert store.lanes_in_use(connection, [3]) == ()


# After the purge: the audit and the story


@pytest.fixture
def purged(shard_set: ShardSet) -> tuple[DueJob, DueJob, DueJob]:
    """Jobs that are deleted: paid at once, paid at the second attempt, written off."""
    once, again, never = (_add(shard_set, name) for name in ("once", "again", "never"))
    for due, outcome in ((once, PAID), (again, SOFT), (never, HARD)):
        finish(shard_set, due.shard, outcome)
    shard_set.change(again.shard, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s AND status = 0")
    (retried,) = claim(shard_set, again.shard, lane=RETRY)
    settle(shard_set.router, again.shard, [Result(job=retried, outcome=PAID_LATER, draw=0.0)], policy=shard_set.spec.retry)
    write_off(shard_set, never)
    age(shard_set)
    purge_all(shard_set)
    assert shard_set.count("billing_job") == 0
    return once, again, never


def write_off(shard_set: ShardSet, due: DueJob) -> None:
    """As dunning does in the end."""
    facts: dict[str, Any] = {"invoice": due.invoice, "subscription": due.subscription, "amount": 990, "currency": "USD"}
    entry = ledger.written_off(service="video", job_key=due.key, **facts)
    shard_set.router.run(due.shard, lambda transaction: ledger.book(transaction, transaction.take("ledger", 1), [entry]))
    void = "UPDATE invoice SET status = 4 WHERE shard_id = %(shard)s AND id = %(id)s"
    assert shard_set.change(due.shard, void, id=due.invoice)


def _add(shard_set: ShardSet, name: str) -> DueJob:
    """A subscription with one period, on a shard of its own, as the scheduler leaves it."""
    subscription = next(f"{name}-{n}" for n in range(999) if shard_set.shard_of(f"{name}-{n}") == SHARDS[name])
    month = {"interval_unit": 1, "interval_count": 30, "next_period": 1}
    next_at = datetime.combine(START + timedelta(days=30), datetime.min.time())
    shard_set.add_subscription(subscription, start_date=START, next_invoice_at=next_at, **month)
    return shard_set.add_due_job(subscription, period_start=START)


def broken(shard_set: ShardSet, *charges: ProviderCharge) -> dict[str, int]:
    report = audit(shard_set.router, shard_set.spec, provider_charges=charges or None)
    return {result.rule.name: result.offenders for result in report.rules if result.offenders}


def charge_of(due: DueJob, attempt: int, provider_ref: str) -> ProviderCharge:
    reference = f"{due.shard}/{due.invoice}/{attempt}"
    return ProviderCharge(id=provider_ref, reference=reference, status="succeeded", amount=990, currency="USD")


def test_the_audit_is_clean_after_a_purge_and_still_holds_the_providers_list_against_the_attempts(
    shard_set: ShardSet, purged: tuple[DueJob, DueJob, DueJob]
) -> None:
    once, again, never = purged
    listed = [charge_of(once, 1, "ch_1"), charge_of(again, 2, "ch_2")]
    assert broken(shard_set, *listed) == {}
    assert broken(shard_set, *listed, charge_of(never, 1, "ch_3")) == {"charge_attempt": 1}
    assert broken(shard_set, *listed, charge_of(again, 1, "ch_3")) == {"charge_attempt": 1, "double_charges": 1}
    assert broken(shard_set, listed[0]) == {"missing_charges": 1}


_ATTEMPT = " WHERE shard_id = %(shard)s AND job_id = %(job)s"
TAMPERED = {
    "open invoice without a job": (
        0,
        "UPDATE invoice SET status = 1 WHERE shard_id = %(shard)s AND id = %(invoice)s",
        "invoice_job",
    ),
    "success unknown": (0, "UPDATE payment_attempt SET outcome = 0" + _ATTEMPT, "open_attempts"),
    "other amount": (1, "UPDATE payment_attempt SET amount = 1" + _ATTEMPT + " AND attempt_no = 1", "attempt_job"),
    "gap": (1, "UPDATE payment_attempt SET attempt_no = 3" + _ATTEMPT + " AND attempt_no = 2", "attempt_numbers"),
    "other key": (
        1,
        "UPDATE payment_attempt SET idempotency_key = RANDOM_BYTES(32)" + _ATTEMPT + " AND attempt_no = 2",
        "attempt_keys",
    ),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_the_audit_still_sees_what_is_wrong_with_a_purged_job(
    shard_set: ShardSet, purged: tuple[DueJob, DueJob, DueJob], how: str
) -> None:
    which, statement, rule = TAMPERED[how]
    due = purged[which]
    assert shard_set.change(due.shard, statement, job=due.job, invoice=due.invoice) == 1
    found = broken(shard_set)
    assert rule in found


def test_the_story_of_a_purged_job_is_still_told(shard_set: ShardSet, purged: tuple[DueJob, DueJob, DueJob]) -> None:
    _, again, never = purged
    facts = invoice.read(shard_set.router, invoice.Which(shard=again.shard, subscription=again.subscription))
    assert facts is not None
    assert facts.job is None
    told = [(one.what, one.details) for one in invoice.story(facts)]
    assert [what for what, _ in told if what.startswith("attempt")] == [
        "attempt 1 begun",
        "attempt 1 declined",
        "attempt 2 begun",
        "attempt 2 succeeded",
    ]
    assert ("attempt 2 succeeded", "charge ch_2") in told
    assert not [what for what, _ in told if what == "nothing"]
    facts = invoice.read(shard_set.router, invoice.Which(shard=never.shard, id=never.invoice))
    assert facts is not None
    assert [attempt["code"] for attempt in facts.attempts] == ["stolen_card"]
