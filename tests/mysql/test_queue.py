"""Claim, renew, release and reap on real servers, with the traps that queues on MySQL fall into."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from billing_shards import telemetry
from billing_shards.db import Rows
from billing_shards.jobs import store
from billing_shards.jobs.model import RENEWAL, RETRY, Job, Lane, Status, attempt_key
from billing_shards.payments.model import Succeeded
from billing_shards.payments.reap import reap
from billing_shards.payments.settle import Result, settle
from billing_shards.shards.transactions import ShardTransaction
from tests.mysql.pods import until
from tests.mysql.shard_set import DueJob, ShardSet, pretty


def fill(shard_set: ShardSet, count: int, shard: int = 3, *, prefix: str = "sub", **columns: Any) -> list[DueJob]:
    """Due jobs on one shard."""
    found: list[DueJob] = []
    number = 0
    while len(found) < count:
        if shard_set.shard_of(f"{prefix}-{number}") == shard:
            found.append(shard_set.add_due_job(f"{prefix}-{number}", **columns))
        number += 1
    return found


def claim(shard_set: ShardSet, shard: int = 3, *, limit: int = 100, lane: Lane = RENEWAL) -> list[Job]:
    return store.claim(shard_set.router, shard, lane, limit=limit, lease_seconds=60, provider="http").jobs


def status(shard_set: ShardSet, job: Job | DueJob) -> Any:
    number = job.id if isinstance(job, Job) else job.job
    query = (
        "SELECT status, lane, attempt_no, attempt_open, lost_leases, lease_token, TIMESTAMPDIFF(SECOND, NOW(6), due_at) AS due_in"
        " FROM billing_job WHERE shard_id = %(shard)s AND id = %(id)s"
    )
    return shard_set.rows(job.shard, query, id=number)[0]


def expire(shard_set: ShardSet, job: Job) -> None:
    shard_set.change(
        job.shard,
        "UPDATE billing_job SET due_at = NOW(6) - INTERVAL 1 SECOND WHERE shard_id = %(shard)s AND id = %(id)s",
        id=job.id,
    )


def test_claim_takes_due_jobs_in_order_and_opens_an_attempt_for_each(shard_set: ShardSet) -> None:
    later, sooner = fill(shard_set, 2)
    shard_set.change(3, "UPDATE billing_job SET due_at = '2020-01-01' WHERE shard_id = %(shard)s AND id = %(id)s", id=sooner.job)
    jobs = claim(shard_set)
    assert [job.id for job in jobs] == [sooner.job, later.job]
    assert [(job.attempt_no, job.resumed, job.amount, job.currency) for job in jobs] == [(1, False, 990, "USD")] * 2
    attempts = shard_set.rows(
        3, "SELECT job_id, attempt_no, idempotency_key, outcome, provider FROM payment_attempt ORDER BY job_id"
    )
    assert [tuple(row) for row in attempts] == [
        (due.job, 1, attempt_key(due.key, 1), 0, "http") for due in sorted((later, sooner), key=lambda due: due.job)
    ]
    row = status(shard_set, jobs[0])
    assert (row.status, row.lease_token, row.attempt_open) == (Status.PROCESSING, jobs[0].token, 1)
    assert 55 <= row.due_in <= 60


def test_claim_leaves_what_is_not_due_of_another_lane_or_claimed(shard_set: ShardSet) -> None:
    fill(shard_set, 1, overdue_seconds=-3600)
    fill_retry = shard_set.add_due_job("another", lane=1)
    assert claim(shard_set) == []
    assert [job.id for job in claim(shard_set, fill_retry.shard, lane=RETRY)] == [fill_retry.job]
    assert claim(shard_set, fill_retry.shard, lane=RETRY) == []


def test_a_claim_leaves_what_was_due_before_the_time_it_is_given(shard_set: ShardSet) -> None:
    early, late = fill(shard_set, 2)
    earlier = "UPDATE billing_job SET due_at = '2020-01-01' WHERE shard_id = %(shard)s AND id = %(id)s"
    shard_set.change(3, earlier, id=early.job)
    with shard_set.router.read(3) as connection:
        (due,) = store.next_due(connection, [3])
    assert due.at == datetime(2020, 1, 1)
    options: dict[str, Any] = {"limit": 10, "lease_seconds": 60, "provider": "http"}
    after = store.claim(shard_set.router, 3, RENEWAL, **options, since=datetime(2020, 1, 2)).jobs
    assert [job.id for job in after] == [late.job]
    assert [job.id for job in store.claim(shard_set.router, 3, RENEWAL, **options, since=due.at).jobs] == [early.job]


@pytest.mark.parametrize(("due", "more"), [(1, False), (3, False), (4, True)])
def test_a_claim_says_whether_another_one_is_worth_its_transaction(shard_set: ShardSet, due: int, more: bool) -> None:
    jobs = fill(shard_set, due)
    claimed = store.claim(shard_set.router, 3, RENEWAL, limit=3, lease_seconds=60, provider="http")
    assert (len(claimed.jobs), claimed.more) == (min(due, 3), more)
    left = [job for job in jobs if job.job not in {one.id for one in claimed.jobs}]
    assert [job.id for job in claim(shard_set)] == [job.job for job in left]


def test_two_claimers_take_disjoint_jobs_while_both_transactions_are_open(shard_set: ShardSet) -> None:
    """A claim that sorts would lock all candidates, and the second claimer would find none."""
    fill(shard_set, 40)
    first = second = frozenset[int]()
    query = store._q.claim_candidates
    with shard_set.router.read(3) as one, shard_set.router.read(3) as two:
        params = {"shard": 3, "lane": 0, "limit": 20, "since": store.FIRST}
        first = frozenset(row[0] for row in one.exec_driver_sql(query, params))
        second = frozenset(row[0] for row in two.exec_driver_sql(query, params))
        # Neither does an open claim keep the scheduler from adding a job to the same shard.
        fill(shard_set, 1, prefix="meanwhile")
    assert len(first) == len(second) == 20
    assert not first & second


@pytest.mark.parametrize("waiting", [0, 3])
def test_a_claim_under_way_keeps_nobody_from_adding_jobs(shard_set: ShardSet, waiting: int) -> None:
    """Under REPEATABLE READ it would lock the gaps around what it read, and the end of the index where it read nothing."""
    fill(shard_set, waiting)
    with shard_set.router.read(3) as connection:
        assert connection.exec_driver_sql("SELECT @@transaction_isolation").scalar_one() == "READ-COMMITTED"

    def body(transaction: ShardTransaction) -> None:
        params = {"lane": 0, "limit": 20, "since": store.FIRST}
        assert len(transaction.read(store._q.claim_candidates, params)) == waiting
        with ThreadPoolExecutor(1) as other:
            other.submit(fill, shard_set, 5, prefix="new").result(timeout=20)

    shard_set.router.run(3, body)
    assert shard_set.count("billing_job") == waiting + 5


def test_many_threads_claim_each_job_once_without_a_deadlock(shard_set: ShardSet) -> None:
    fill(shard_set, 200)
    start = threading.Barrier(6)

    def drain() -> list[int]:
        start.wait()
        mine: list[int] = []
        while jobs := claim(shard_set, limit=7):
            mine += [job.id for job in jobs]
        return mine

    with ThreadPoolExecutor(6) as pool:
        taken = [job for future in [pool.submit(drain) for _ in range(6)] for job in future.result()]
    assert len(taken) == len(set(taken)) == 200


def test_an_open_attempt_is_resumed_under_its_own_number_and_key(shard_set: ShardSet) -> None:
    (due,) = fill(shard_set, 1)
    (first,) = claim(shard_set)
    assert store.release(shard_set.router, [first]) == 1
    (second,) = claim(shard_set)
    assert second.resumed
    assert (second.attempt_no, second.attempt_key) == (1, first.attempt_key)
    assert second.token != first.token
    assert 0 <= second.attempt_age < 60
    assert shard_set.count("payment_attempt") == 1
    assert due.job == second.id


def test_a_renewal_needs_the_token(shard_set: ShardSet) -> None:
    fill(shard_set, 2)
    jobs = claim(shard_set)
    expire(shard_set, jobs[0])
    shard_set.change(3, "UPDATE billing_job SET lease_token = 1 WHERE shard_id = %(shard)s AND id = %(id)s", id=jobs[1].id)
    expire(shard_set, jobs[1])
    assert store.renew(shard_set.router, jobs, lease_seconds=300) == 1
    assert 290 <= status(shard_set, jobs[0]).due_in <= 300
    assert status(shard_set, jobs[1]).due_in < 0


def test_a_second_renewal_in_the_same_instant_still_finds_its_rows(shard_set: ShardSet) -> None:
    """Without FOUND_ROWS a row set to the value it has counts as lost."""
    fill(shard_set, 1)
    jobs = claim(shard_set)
    assert [store.renew(shard_set.router, jobs, lease_seconds=300) for _ in range(3)] == [1, 1, 1]


def reap_all(shard_set: ShardSet, lost_leases_max: int = 3) -> int:
    settings = shard_set.spec.claimer.model_copy(update={"lost_leases_max": lost_leases_max})
    groups = shard_set.router.by_database(shard_set.shards)
    return sum(reap(shard_set.router, name, shards, settings=settings) for name, shards in groups.items())


def test_the_reaper_takes_back_only_expired_leases_and_delays_them(shard_set: ShardSet) -> None:
    fill(shard_set, 2)
    lost, kept = claim(shard_set)
    expire(shard_set, lost)
    assert reap_all(shard_set) == 1
    assert reap_all(shard_set) == 0
    row = status(shard_set, lost)
    assert (row.status, row.lease_token, row.lost_leases, row.attempt_open) == (Status.READY, 0, 1, 1)
    assert 0 <= row.due_in <= 5
    assert status(shard_set, kept).status == Status.PROCESSING


def test_a_job_that_loses_every_worker_goes_to_review_with_an_event(shard_set: ShardSet) -> None:
    fill(shard_set, 1)
    for _ in range(3):
        shard_set.change(3, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s")
        (job,) = claim(shard_set)
        expire(shard_set, job)
        assert reap_all(shard_set) == 1
    row = status(shard_set, job)
    assert (row.status, row.lost_leases) == (Status.REVIEW, 3)
    assert claim(shard_set) == []
    events = shard_set.rows(3, "SELECT type, payload FROM outbox WHERE shard_id = %(shard)s ORDER BY id DESC LIMIT 1")
    assert events[0][0] == "payment.review"
    assert "workers_lost" in events[0][1]


def test_two_reapers_take_each_job_back_once(shard_set: ShardSet) -> None:
    fill(shard_set, 60)
    for job in claim(shard_set):
        expire(shard_set, job)
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: reap_all(shard_set), range(4)))
    assert sum(counts) == 60
    assert shard_set.count("billing_job", "lost_leases = 1") == 60


def test_a_worker_that_finishes_while_it_is_being_reaped_is_either_too_late_or_in_time(shard_set: ShardSet) -> None:
    """A reaper that looked before the job was finished must not take it back after: done and ready, it would be charged twice."""
    fill(shard_set, 40)
    jobs = claim(shard_set)
    start = threading.Barrier(2)

    def finish() -> int:
        start.wait()
        done = [Result(job=job, outcome=Succeeded(provider_ref="ch"), draw=0.0) for job in jobs]
        return sum(not settle(shard_set.router, 3, [one], policy=shard_set.spec.retry) for one in done)

    def take_back() -> int:
        start.wait()
        count = 0
        for job in reversed(jobs):
            expire(shard_set, job)
            count += reap_all(shard_set)
        return count

    def expire(shard_set: ShardSet, job: Job) -> None:
        ended = "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s AND id = %(id)s AND status = 1"
        shard_set.change(3, ended, id=job.id)

    with ThreadPoolExecutor(2) as pool:
        worker, reaper = pool.submit(finish), pool.submit(take_back)
        finished, reaped = worker.result(), reaper.result()
    assert finished + reaped == 40
    assert shard_set.count("billing_job", "status = 2 AND lost_leases = 0") == finished > 0
    assert shard_set.count("billing_job", "status = 0 AND lost_leases = 1 AND lease_token = 0") == reaped > 0
    assert shard_set.count("ledger_entry", "kind = 2") == shard_set.count("invoice", "status = 2") == finished


def test_a_job_that_was_reaped_and_claimed_again_is_the_new_workers_alone(shard_set: ShardSet) -> None:
    """The first worker, which was only slow, still sees it in work: by another's token."""
    fill(shard_set, 1)
    (first,) = claim(shard_set)
    expire(shard_set, first)
    assert reap_all(shard_set) == 1
    shard_set.change(3, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s")
    (second,) = claim(shard_set)
    late = Result(job=first, outcome=Succeeded(provider_ref="ch_1"), draw=0.0)
    assert settle(shard_set.router, 3, [late], policy=shard_set.spec.retry) == [first]
    assert store.renew(shard_set.router, [first], lease_seconds=60) == store.release(shard_set.router, [first]) == 0
    assert status(shard_set, second).lease_token == second.token
    mine = Result(job=second, outcome=Succeeded(provider_ref="ch_1"), draw=0.0)
    assert settle(shard_set.router, 3, [mine], policy=shard_set.spec.retry) == []
    assert shard_set.count("ledger_entry", "kind = 2") == 1


def test_whatever_a_dead_process_held_is_found_by_the_lease_alone(shard_set: ShardSet) -> None:
    """No row tells of a process: none can be forgotten, and none has to be there for its jobs to come back."""
    fill(shard_set, 3)
    fill(shard_set, 2, shard=6)
    for job in (*claim(shard_set), *claim(shard_set, 6)):
        expire(shard_set, job)
    assert reap_all(shard_set) == 5
    assert shard_set.count("billing_job", "status = 1") == 0


def test_a_settlement_that_is_a_deadlocks_victim_is_written_all_the_same(shard_set: ShardSet) -> None:
    """Somebody locks invoice and job in the other order, and has written more: the server rolls the settlement back. It lives."""
    (due,) = fill(shard_set, 1)
    (job,) = claim(shard_set)
    done = Result(job=job, outcome=Succeeded(provider_ref="ch"), draw=0.0)
    before = deadlocks_met()
    with ThreadPoolExecutor(1) as pool, shard_set.owners["a"].engine.connect() as other:
        other.exec_driver_sql("UPDATE subscription SET updated_at = NOW(6), notices = notices + 1 WHERE shard_id = 3")
        other.exec_driver_sql("UPDATE outbox SET sent_at = NOW(6) WHERE shard_id = 3")
        other.exec_driver_sql("UPDATE invoice SET issued_at = NOW(6) WHERE shard_id = 3 AND id = %(id)s", {"id": due.invoice})
        settling = pool.submit(settle, shard_set.router, 3, [done], policy=shard_set.spec.retry)
        waits = "SELECT COUNT(*) FROM performance_schema.data_lock_waits"
        with shard_set.site.servers[0].client() as connection, connection.cursor() as cursor:
            until(lambda: cursor.execute(waits) and cursor.fetchone() != (0,))
        other.exec_driver_sql("UPDATE billing_job SET checks = 0 WHERE shard_id = 3 AND id = %(id)s", {"id": due.job})
        other.commit()
        assert settling.result() == []
    assert deadlocks_met() > before
    assert shard_set.count("invoice", "status = 2") == shard_set.count("ledger_entry", "kind = 2") == 1


def deadlocks_met() -> float:
    return float(telemetry.TRANSACTION_RERUNS.labels("deadlock")._value.get())


def test_claiming_and_finishing_lock_only_their_own_rows(shard_set: ShardSet) -> None:
    """A list of ids must not become a scan: others' jobs, due or in work, stay free."""
    fill(shard_set, 30)
    mine, others = claim(shard_set, limit=10), claim(shard_set, limit=10)
    outcome = Succeeded(provider_ref="ch")
    with shard_set.owner(3) as holder:
        held = tuple(job.id for job in others)
        holder.exec_driver_sql("SELECT id FROM billing_job WHERE shard_id = 3 AND id IN %(ids)s FOR UPDATE", {"ids": held})
        assert store.renew(shard_set.router, mine, lease_seconds=60) == 10
        done = [Result(job=job, outcome=outcome, draw=0.0) for job in mine]
        assert settle(shard_set.router, 3, done, policy=shard_set.spec.retry) == []
        assert len(claim(shard_set, limit=10)) == 10


def test_next_due_sees_each_shard_and_lane_by_the_servers_clock(shard_set: ShardSet) -> None:
    fill(shard_set, 3)
    fill(shard_set, 1, shard=5, overdue_seconds=-600)
    found: list[store.Due] = []
    for name, shards in shard_set.router.by_database(shard_set.shards).items():
        with shard_set.router.connect(name) as connection:
            found += store.next_due(connection, shards)
    by_shard = {due.shard: due for due in found}
    assert by_shard.keys() == {3, 5}
    assert -120 < by_shard[3].in_seconds < -55
    assert 590 < by_shard[5].in_seconds <= 600


def test_backlog_counts_what_is_due_and_what_is_claimed(shard_set: ShardSet) -> None:
    fill(shard_set, 3)
    claim(shard_set, limit=1)
    with shard_set.router.read(3) as connection:
        (found,) = store.backlog(connection, [3])
    assert (found.ready, found.processing, found.lane) == (2, 1, RENEWAL)
    assert found.oldest_due_at is not None


def _explained(shard_set: ShardSet, query: str, **params: Any) -> dict[str, Any]:
    """The row of EXPLAIN that reads billing_job, on tables large enough for the optimizer to care."""
    rows = shard_set.explain(3, query, **params)
    return next(row for row in rows if row["table"] in ("billing_job", "j")) | {"all": pretty(rows)}


def test_explain_of_the_hot_queries(shard_set: ShardSet) -> None:
    fill(shard_set, 120)
    fill(shard_set, 120, shard=1)
    hot: dict[str, dict[str, Any]] = {
        "claim_candidates": {"lane": 0, "limit": 20, "since": store.FIRST},
        "expired_leases": {"lane": 0, "limit": 20},
        "claim": {"token": 1, "lease_seconds": 60, "ids": (1, 2, 3)},
        "next_due": {"shards": (1, 3)},
        "expired_lanes": {"shards": (1, 3)},
    }
    keys = {"claim": "PRIMARY"}
    for name, params in hot.items():
        row = _explained(shard_set, getattr(store._q, name), **params)
        assert row["key"] == keys.get(name, "claim"), row["all"]
        assert "filesort" not in (row["Extra"] or ""), row["all"]
        assert "temporary" not in (row["Extra"] or ""), row["all"]
    held = "[[1, 2], [3, 4]]"
    rows = "[[1, 2, 2, 0, 0, 0, 0]]"
    by_token: dict[str, dict[str, Any]] = {
        "renew": {"held": held, "lease_seconds": 60},
        "release": {"held": held},
        "held": {"held": held},
        "finish": {"rows": rows},
    }
    for name, params in by_token.items():
        row = _explained(shard_set, getattr(store._q, name), **params)
        assert (row["key"], row["type"]) == ("PRIMARY", "eq_ref"), row["all"]


def test_a_lost_answer_to_the_claims_commit_is_resolved_by_reading(
    shard_set: ShardSet, lose_commit: Callable[[bool], None]
) -> None:
    fill(shard_set, 2)
    lose_commit(True)
    after = claim(shard_set, limit=1)
    lose_commit(False)
    before = claim(shard_set, limit=1)
    assert len(after) == len(before) == 1
    for (job,) in (after, before):
        assert status(shard_set, job).lease_token == job.token
    assert shard_set.count("payment_attempt") == 2


def test_the_transaction_knows_what_it_touched(shard_set: ShardSet) -> None:
    (due,) = fill(shard_set, 1)
    touched: list[Any] = []

    def body(transaction: ShardTransaction) -> None:
        store.reap_in(transaction, RENEWAL, limit=1, jitter_seconds=0, lost_leases_max=9)
        touched.extend(transaction.touched)

    (job,) = claim(shard_set)
    expire(shard_set, job)
    shard_set.router.run(3, body)
    assert touched == [("billing_job", [(due.job,)])]


@pytest.mark.parametrize(
    "text", ["plain", "it's", 'say "no"', "back\\slash", "\\'; DROP TABLE x; --", "tab\tline\n\x00", "ümläut ✓ 𝄞"]
)
def test_rows_reach_the_server_as_they_are(shard_set: ShardSet, text: str) -> None:
    query = "SELECT r.id, r.word FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id INT PATH '$[0]', word TEXT PATH '$[1]')) AS r"
    with shard_set.router.read(3) as connection:
        found = connection.exec_driver_sql(query, {"rows": Rows([(1, text), (2, None)])}).all()
    assert [tuple(row) for row in found] == [(1, text), (2, None)]
