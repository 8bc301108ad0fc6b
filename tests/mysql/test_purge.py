"""The purge of finished jobs: bounded, by index, and nothing that anybody still needs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

from billing_shards.jobs import purge, store
from billing_shards.payments.model import DeclineClass, Declined, Outcome, Succeeded
from billing_shards.payments.settle import Result, settle
from tests.mysql.shard_set import ShardSet, pretty
from tests.mysql.test_queue import claim, fill

PAID = Succeeded(provider_ref="ch_1")
HARD = Declined(decline_class=DeclineClass.HARD, code="stolen_card", provider_ref="ch_no")
SOFT = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds", provider_ref="ch_no")
DAY = 86_400


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
    for name, shards in shard_set.router.by_database(shard_set.shards).items():
        assert purge.purge(shard_set.router, retention_seconds, name, shards) is False


def test_jobs_that_finished_long_ago_are_deleted_and_nothing_else(shard_set: ShardSet) -> None:
    fill(shard_set, 6)
    finish(shard_set, 3, PAID, HARD, SOFT, PAID)
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


def test_retries_of_services_and_lanes_of_those_that_are_gone_are_purged_as_well(shard_set: ShardSet) -> None:
    fill(shard_set, 3)
    finish(shard_set, 3, PAID, HARD, PAID)
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
    rows = shard_set.explain(3, purge._q.purgeable, **params)
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
    params: dict[str, Any] = {"shard": 3, "lane": 0, "status": 2, "limit": 100, "retention_seconds": DAY}

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
