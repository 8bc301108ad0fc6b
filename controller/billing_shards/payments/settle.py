"""Settlement: what a batch of outcomes writes, in one transaction on one shard.

Attempt, job, invoice, ledger entry and event change together or not at all. The lease token is the fence: where a lease was lost,
nothing of that job is written, and the rest of the batch is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

import structlog
from sqlalchemy import Connection

from billing_shards import telemetry
from billing_shards.db import Ids, Rows, queries
from billing_shards.jobs.model import Job, Status
from billing_shards.jobs.store import held_rows
from billing_shards.outbox import events
from billing_shards.outbox.events import Event
from billing_shards.payments.decide import AskCustomer, BeginAnew, CheckAfter, Decision, GiveUp, Paid, RetryAfter, Review, decide
from billing_shards.payments.model import (
    ActionRequired,
    AttemptOutcome,
    Declined,
    NotSent,
    Outcome,
    Pending,
    Succeeded,
    Unknown,
    Unresolvable,
)
from billing_shards.settings import RetrySpec
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_q = queries("jobs")
_s = queries("settle")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A claimed job and what the provider said. `draw` in [0, 1) is the jitter of its retry."""

    job: Job
    outcome: Outcome
    draw: float


Decided: TypeAlias = tuple[Result, Decision]


class _LeaseLostError(Exception):
    """Some job of the batch is not held any more: roll back, and write the batch without it."""


def settle(router: ShardRouter, shard: int, results: Sequence[Result], *, policy: RetrySpec) -> list[Job]:
    """Write the results of one shard's jobs; the jobs whose lease was lost, of which nothing was written.

    Raises what `ShardRouter.run` raises; then nothing was written.
    """
    settled: list[Decided] = []

    def body(transaction: ShardTransaction, only: Sequence[Result]) -> bool:
        settled[:] = [(r, decide(r.job, r.outcome, policy, r.draw)) for r in only]
        _write(transaction, settled)
        return True

    def committed(connection: Connection) -> bool | None:
        params = {"shard": shard, "held": held_rows(result.job for result, _ in settled)}
        return connection.exec_driver_sql(_q.finished, params).scalar_one() > 0 or None

    with telemetry.BATCH_SECONDS.labels("settle").time():
        try:
            router.run(shard, lambda transaction: body(transaction, results), committed=committed)
        except _LeaseLostError:
            router.run(shard, lambda transaction: body(transaction, _still_held(transaction, results)), committed=committed)
    _count(settled)
    kept = {id(result) for result, _ in settled}
    lost = [result.job for result in results if id(result) not in kept]
    if lost:
        telemetry.LEASES_LOST.inc(len(lost))
        _log.warning("lease_lost", shard=shard, jobs=[job.id for job in lost][:20], count=len(lost))
    return lost


def _still_held(transaction: ShardTransaction, results: Sequence[Result]) -> list[Result]:
    rows = transaction.read(_q.held, {"held": held_rows(result.job for result in results)})
    # By token as well: a process that stood still may have lost a job and claimed it anew, and bring both outcomes.
    held = {(row[0], row[1]) for row in rows}
    return [result for result in results if (result.job.id, result.job.token) in held]


def _write(transaction: ShardTransaction, settled: Sequence[Decided]) -> None:
    if not settled:
        return
    paid = [(result.job, decision) for result, decision in settled if isinstance(decision, Paid)]
    others = [(result, decision) for result, decision in settled if not isinstance(decision, Paid)]
    _finish_paid(transaction, paid)
    _finish_others(transaction, others)
    told = [event for result, decision in others if (event := _event(result, decision)) is not None]
    counts = {name: n for name, n in (("event", len(paid) + len(told)), ("ledger", len(paid))) if n}
    if counts:
        first = transaction.take_many(counts)
        _book(transaction, first, [job for job, _ in paid])
        events.write(transaction, first.get("event", 0) + len(paid), told)


def _finish_paid(transaction: ShardTransaction, paid: Sequence[tuple[Job, Paid]]) -> None:
    """The usual end, by statements that take little more than ids: jobs, attempts, invoices, subscriptions."""
    by_token: defaultdict[int, list[int]] = defaultdict(list)
    for job, _ in paid:
        by_token[job.token].append(job.id)
    for token, ids in by_token.items():
        params = {"token": token, "ids": Ids(ids)}
        if transaction.write(_q.finish_paid, params, table="billing_job", keys=[(job,) for job in ids]) != len(ids):
            raise _LeaseLostError
    if paid:
        rows = [(job.id, job.attempt_no, decision.provider_ref) for job, decision in paid]
        keys = [row[:2] for row in rows]
        transaction.write(_s.finish_paid_attempts, {"rows": Rows(rows)}, table="payment_attempt", keys=keys)
        _mark_paid(transaction, [job for job, _ in paid])


def _book(transaction: ShardTransaction, first: Mapping[str, int], paid: Sequence[Job]) -> None:
    """Ledger entry and event of each payment. `first` are numbers that the transaction took from its counters."""
    if paid:
        ids = [job.id for job in paid]
        for query, table, counter in ((_s.book_payments, "ledger_entry", "ledger"), (_s.tell_payments, "outbox", "event")):
            number = first[counter]
            keys = [(key,) for key in range(number, number + len(ids))]
            if transaction.write(query, {"ids": Rows(ids), "first": number}, table=table, keys=keys) != len(ids):
                raise AssertionError(f"shard {transaction.shard}: {table} has no row for each of {len(ids)} payments")


def _finish_others(transaction: ShardTransaction, others: Sequence[Decided]) -> None:
    if others:
        _finish_jobs(transaction, others)
        _finish_attempts(transaction, [result for result, _ in others])
        _mark_unpaid(transaction, [(r, d) for r, d in others if isinstance(d, RetryAfter | BeginAnew | AskCustomer | GiveUp)])


def _finish_jobs(transaction: ShardTransaction, settled: Sequence[Decided]) -> None:
    rows = [(r.job.id, r.job.token, *_job_after(r.job, decision)) for r, decision in settled]
    keys = [(row[0],) for row in rows]
    found = transaction.write(_q.finish, {"rows": Rows(rows)}, table="billing_job", keys=keys)
    if found != len(rows):
        raise _LeaseLostError


def _job_after(job: Job, decision: Decision) -> tuple[int, int, float | None, int, int]:
    """Status, lane, seconds until it is due (None: never), attempt open, checks."""
    match decision:
        case RetryAfter():
            return Status.READY, job.lane.again, decision.seconds, 0, 0
        case BeginAnew():
            return Status.READY, job.lane.again, 0, 0, 0
        case CheckAfter():
            return Status.READY, job.lane.again, decision.seconds, 1, decision.checks
        case AskCustomer():
            return Status.AWAITING_CUSTOMER, job.lane.again, decision.look_seconds, 0, 0
        case GiveUp():
            return Status.FAILED, job.lane, 0, 0, 0
        case Review():
            return Status.REVIEW, job.lane.again, 0, 1, job.checks
        case Paid():
            raise AssertionError("a payment is finished by statements of its own")
        case _:
            assert_never(decision)


def _finish_attempts(transaction: ShardTransaction, results: Iterable[Result]) -> None:
    rows = [(r.job.id, r.job.attempt_no, *told) for r in results if (told := _attempt_after(r.job, r.outcome)) is not None]
    if rows:
        keys = [row[:2] for row in rows]
        transaction.write(_s.finish_attempts, {"rows": Rows(rows)}, table="payment_attempt", keys=keys)


def _attempt_after(job: Job, outcome: Outcome) -> tuple[int, str | None, str | None, int] | None:
    """Outcome, provider's reference, code, finished or not; None where nothing was learnt."""
    if job.canceling and not isinstance(outcome, Declined):
        return None  # it is to be canceled still, whatever it has become on the way
    match outcome:
        case Declined():
            return AttemptOutcome.DECLINED, outcome.provider_ref, outcome.code, 1
        case ActionRequired():
            return AttemptOutcome.ACTION_REQUIRED, outcome.provider_ref, None, 1
        case Pending():
            return AttemptOutcome.PENDING, outcome.provider_ref, None, 0
        case Unknown() | NotSent() | Unresolvable():
            return None
        case Succeeded():
            raise AssertionError("a payment is finished by statements of its own")
        case _:
            assert_never(outcome)


def _mark_paid(transaction: ShardTransaction, paid: Sequence[Job]) -> None:
    ids = [job.invoice for job in paid]
    found = transaction.write(_s.pay_invoices, {"ids": Ids(ids)}, table="invoice", keys=[(invoice,) for invoice in ids])
    if found != len(ids):
        raise AssertionError(f"shard {transaction.shard}: {len(ids) - found} of {len(ids)} paid invoices were not open")
    _look_at(transaction, [job.subscription for job in paid if job.attempt_no > 1 or job.resumed])


def _mark_unpaid(transaction: ShardTransaction, unpaid: Sequence[Decided]) -> None:
    given_up = tuple(result.job.invoice for result, decision in unpaid if isinstance(decision, GiveUp))
    if given_up:
        transaction.write(_s.give_up_invoices, {"ids": given_up}, table="invoice", keys=[(i,) for i in given_up])
    _look_at(transaction, [result.job.subscription for result, _ in unpaid])


def _look_at(transaction: ShardTransaction, subscriptions: Sequence[str]) -> None:
    """What becomes of subscriptions whose payment failed, or came after a failure, is for dunning to judge."""
    if subscriptions:
        keys = [(subscription,) for subscription in subscriptions]
        transaction.write(_s.look_at_subscriptions, {"ids": tuple(subscriptions)}, table="subscription", keys=keys)


def _event(result: Result, decision: Decision) -> Event | None:
    job = result.job
    facts: dict[str, Any] = {
        "invoice": job.invoice,
        "amount": job.amount,
        "currency": job.currency,
        "attempt": job.attempt_no,
    }
    match decision:
        case RetryAfter():
            facts["code"], facts["retry_seconds"] = _code(result.outcome), round(decision.seconds)
            kind = "payment.failed"
        case AskCustomer():
            facts["code"], facts["reason"] = _code(result.outcome), decision.reason
            kind = "payment.action_required"
        case GiveUp():
            facts["code"], facts["reason"] = _code(result.outcome), decision.reason
            kind = "payment.given_up"
        case Review():
            facts["reason"] = decision.reason
            kind = "payment.review"
        case CheckAfter() | BeginAnew() | Paid():
            return None  # a payment's event is written with its ledger entry
        case _:
            assert_never(decision)
    return Event(type=kind, subscription=job.subscription, payload=facts)


def _code(outcome: Outcome) -> str | None:
    return outcome.code if isinstance(outcome, Declined) else None


def _count(settled: Iterable[Decided]) -> None:
    for name, n in Counter(type(decision).__name__.lower() for _, decision in settled).items():
        telemetry.OUTCOMES.labels(name).inc(n)
