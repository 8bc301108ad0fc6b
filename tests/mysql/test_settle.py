"""Settlement on real servers: what each decision writes, all or nothing, and only under the lease."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from billing_shards.jobs.model import RETRY, Job, Status
from billing_shards.payments.model import (
    ActionRequired,
    AttemptOutcome,
    DeclineClass,
    Declined,
    NotSent,
    Outcome,
    Pending,
    Succeeded,
    Unknown,
    Unresolvable,
)
from billing_shards.payments.settle import Result, settle
from tests.mysql.shard_set import ShardSet
from tests.mysql.test_queue import claim, expire, fill, reap_all, status

SOFT = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds", provider_ref="ch_no")
HARD = Declined(decline_class=DeclineClass.HARD, code="stolen_card", provider_ref="ch_no")


def settled(shard_set: ShardSet, *results: tuple[Job, Outcome]) -> list[Job]:
    batch = [Result(job=job, outcome=outcome, draw=0.0) for job, outcome in results]
    return settle(shard_set.router, batch[0].job.shard, batch, policy=shard_set.spec.retry)


def facts(shard_set: ShardSet, job: Job) -> dict[str, Any]:
    """Everything about a job that settlement may change."""
    shard = job.shard
    attempt = shard_set.rows(
        shard,
        "SELECT outcome, provider_ref, code, finished_at IS NOT NULL FROM payment_attempt"
        " WHERE shard_id = %(shard)s AND job_id = %(id)s AND attempt_no = %(no)s",
        id=job.id,
        no=job.attempt_no,
    )[0]
    entries = shard_set.rows(
        shard,
        "SELECT debit_account, credit_account, amount, currency FROM ledger_entry"
        " WHERE shard_id = %(shard)s AND invoice_id = %(id)s AND kind = 2",
        id=job.invoice,
    )
    told = shard_set.rows(
        shard,
        "SELECT type FROM outbox WHERE shard_id = %(shard)s AND subscription_id = %(id)s"
        " AND type <> 'invoice.issued' ORDER BY id",
        id=job.subscription,
    )
    invoice = "SELECT status FROM invoice WHERE shard_id = %(shard)s AND id = %(id)s"
    to_dunning = "SELECT next_dunning_at IS NOT NULL FROM subscription WHERE shard_id = %(shard)s AND id = %(id)s AND status = 1"
    return {
        "job": status(shard_set, job),
        "attempt": tuple(attempt),
        "entries": [tuple(entry) for entry in entries],
        "events": [row[0] for row in told],
        "invoice": shard_set.rows(shard, invoice, id=job.invoice)[0][0],
        "to_dunning": bool(shard_set.rows(shard, to_dunning, id=job.subscription)[0][0]),
    }


UNKNOWN, NONE = (AttemptOutcome.UNKNOWN, None, None, 0), list[str]()


@pytest.mark.parametrize(
    ("outcome", "job_status", "lane", "attempt_open", "attempt", "events", "invoice", "to_dunning"),
    [
        (Succeeded(provider_ref="ch_1"), Status.SUCCEEDED, 0, 0, (1, "ch_1", None, 1), ["payment.succeeded"], 2, False),
        (SOFT, Status.READY, 1, 0, (2, "ch_no", "insufficient_funds", 1), ["payment.failed"], 1, True),
        (HARD, Status.FAILED, 0, 0, (2, "ch_no", "stolen_card", 1), ["payment.given_up"], 3, True),
        (
            ActionRequired(provider_ref="ch_a"),
            Status.AWAITING_CUSTOMER,
            1,
            0,
            (3, "ch_a", None, 1),
            ["payment.action_required"],
            1,
            True,
        ),
        (Pending(provider_ref="ch_p"), Status.READY, 1, 1, (5, "ch_p", None, 0), NONE, 1, False),
        (Unknown(reason="time-out"), Status.READY, 1, 1, UNKNOWN, NONE, 1, False),
        (NotSent(reason="refused"), Status.READY, 1, 1, UNKNOWN, NONE, 1, False),
        (Unresolvable(reason="forgotten"), Status.REVIEW, 1, 1, UNKNOWN, ["payment.review"], 1, False),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int | list | tuple) else "",
)
def test_what_each_outcome_writes(
    shard_set: ShardSet,
    outcome: Outcome,
    job_status: Status,
    lane: int,
    attempt_open: int,
    attempt: tuple[Any, ...],
    events: list[str],
    invoice: int,
    to_dunning: bool,
) -> None:
    fill(shard_set, 1)
    (job,) = claim(shard_set)
    assert settled(shard_set, (job, outcome)) == []
    found = facts(shard_set, job)
    assert (found["job"].status, found["job"].lane, found["job"].attempt_open) == (job_status, lane, attempt_open)
    assert found["attempt"] == attempt
    assert found["events"] == events
    assert (found["invoice"], found["to_dunning"]) == (invoice, to_dunning)
    payment = ("clearing:http", f"receivable:{job.subscription}", 990, "USD")
    assert found["entries"] == ([payment] if isinstance(outcome, Succeeded) else [])


def test_a_failed_charge_begins_a_new_attempt_and_dunning_is_told_of_its_success(shard_set: ShardSet) -> None:
    fill(shard_set, 1)
    (first,) = claim(shard_set)
    settled(shard_set, (first, SOFT))
    assert 295 <= status(shard_set, first).due_in <= 300
    assert claim(shard_set, lane=RETRY) == []
    shard_set.change(3, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s")
    (second,) = claim(shard_set, lane=RETRY)
    assert (second.attempt_no, second.resumed) == (2, False)
    assert second.attempt_key != first.attempt_key
    settled(shard_set, (second, Succeeded(provider_ref="ch_2")))
    found = facts(shard_set, second)
    assert (found["invoice"], found["to_dunning"]) == (2, True)
    assert found["events"] == ["payment.failed", "payment.succeeded"]


def test_a_lost_lease_writes_nothing_of_that_job_and_all_of_the_others(shard_set: ShardSet) -> None:
    """A stale worker's outcome must not finish a job that another has claimed since."""
    fill(shard_set, 5)
    jobs = claim(shard_set)
    stale = jobs[2]
    expire(shard_set, stale)
    reap_all(shard_set)
    shard_set.change(3, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s AND status = 0")
    (reclaimed,) = claim(shard_set)
    before = facts(shard_set, stale)
    lost = settled(shard_set, *((job, Succeeded(provider_ref=f"ch_{job.id}")) for job in jobs))
    assert lost == [stale]
    assert facts(shard_set, stale) == before
    assert shard_set.count("billing_job", "status = 2") == 4
    assert shard_set.count("ledger_entry", "kind = 2") == 4
    assert settled(shard_set, (reclaimed, Succeeded(provider_ref="ch"))) == []
    assert shard_set.count("ledger_entry", "kind = 2") == 5


def test_outcomes_of_a_job_that_was_lost_and_claimed_anew_by_the_same_process_are_told_apart(shard_set: ShardSet) -> None:
    fill(shard_set, 2)
    jobs = claim(shard_set)
    expire(shard_set, jobs[0])
    reap_all(shard_set)
    shard_set.change(3, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s AND status = 0")
    (again,) = claim(shard_set)
    both = (*jobs, again)
    assert settled(shard_set, *((job, Succeeded(provider_ref="ch_1")) for job in both)) == [jobs[0]]
    assert shard_set.count("billing_job", "status = 2") == 2
    assert shard_set.count("ledger_entry", "kind = 2") == 2


def test_a_job_is_finished_once(shard_set: ShardSet) -> None:
    fill(shard_set, 1)
    (job,) = claim(shard_set)
    assert settled(shard_set, (job, Succeeded(provider_ref="ch_1"))) == []
    assert settled(shard_set, (job, HARD)) == [job]
    assert facts(shard_set, job)["invoice"] == 2


@pytest.mark.parametrize("after", [True, False])
def test_a_lost_answer_to_commit_settles_once(shard_set: ShardSet, lose_commit: Callable[[bool], None], after: bool) -> None:
    fill(shard_set, 3)
    jobs = claim(shard_set)
    lose_commit(after)
    assert settled(shard_set, *((job, Succeeded(provider_ref=f"ch_{job.id}")) for job in jobs)) == []
    assert shard_set.count("ledger_entry", "kind = 2") == 3
    assert shard_set.count("outbox", "type = 'payment.succeeded'") == 3


def test_numbers_have_no_gap_even_after_a_rollback(shard_set: ShardSet) -> None:
    fill(shard_set, 6)
    jobs = claim(shard_set)
    expire(shard_set, jobs[0])
    reap_all(shard_set)
    settled(shard_set, *((job, Succeeded(provider_ref="ch")) for job in jobs))
    for table in ("ledger_entry", "outbox"):
        numbers = [row[0] for row in shard_set.rows(3, f"SELECT id FROM {table} WHERE shard_id = %(shard)s ORDER BY id")]
        assert numbers == list(range(1, len(numbers) + 1))


def test_an_event_tells_the_whole_payment(shard_set: ShardSet) -> None:
    fill(shard_set, 1)
    (job,) = claim(shard_set)
    settled(shard_set, (job, Succeeded(provider_ref="ch_1")))
    (row,) = shard_set.rows(3, "SELECT payload FROM outbox WHERE type = 'payment.succeeded' AND shard_id = %(shard)s")
    assert json.loads(row[0]) == {
        "invoice": job.invoice,
        "amount": 990,
        "currency": "USD",
        "attempt": 1,
        "provider_ref": "ch_1",
    }


def test_the_application_cannot_change_the_ledger(shard_set: ShardSet) -> None:
    fill(shard_set, 1)
    for statement in ("UPDATE ledger_entry SET amount = 1", "DELETE FROM ledger_entry", "DROP TABLE ledger_entry"):
        with shard_set.router.read(3) as connection, pytest.raises(Exception, match=r"\(1142,"):
            connection.exec_driver_sql(statement)
