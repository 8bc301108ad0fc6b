"""Dunning on a shard: looks at subscriptions whose payment failed, was made, or is long due, and takes the steps of `dunning`.

Settlement only notes that a subscription is to be looked at (`next_dunning_at`): what its status becomes, the events that tell of
it, and what it owes are written here, in one transaction. It also brings a new payment method to jobs that could not be reached
when it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, assert_never

from billing_shards import telemetry
from billing_shards.accounts import ledger
from billing_shards.billing import rowstore, state
from billing_shards.billing.dunning import (
    Cancel,
    Course,
    FallPastDue,
    Notify,
    Reactivate,
    Standing,
    Step,
    Suspend,
    Unpaid,
    WriteOff,
    course,
)
from billing_shards.billing.model import ended
from billing_shards.billing.rowstore import Owed
from billing_shards.billing.state import Row
from billing_shards.jobs.model import Status as JobStatus
from billing_shards.outbox import events
from billing_shards.outbox.events import Event
from billing_shards.settings import DunningSpec
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_BUSY_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One subscription, what it owes, and what is to be done about it."""

    row: Row
    owed: tuple[Owed, ...]
    course: Course


def due_shards(router: ShardRouter, database: str, shards: Sequence[int]) -> list[int]:
    """Those of a database's shards where dunning has something to do. Raises `DatabaseError`s."""
    with router.connect(database) as connection:
        return rowstore.due_shards(connection, shards)


def dun_shard(router: ShardRouter, shard: int, policy: DunningSpec, *, grace_seconds: int, limit: int = 200) -> int:
    """Look at up to `limit` subscriptions of a shard that are due for it; how many there were.

    Jobs that are tried again with another payment method have `grace_seconds` for it. Raises what `ShardRouter.run` raises.
    """
    looks: list[_Look] = []

    def body(transaction: ShardTransaction) -> int:
        looks[:] = []
        rows = rowstore.lock_due(transaction, limit)
        if rows:
            owed = rowstore.owed(transaction.read, [row.terms.id for row in rows])
            owed |= bring_methods(transaction, rows, owed, grace_seconds=grace_seconds)
            looks[:] = [_look(row, owed.get(row.terms.id, ()), policy, transaction) for row in rows]
            _apply(transaction, looks)
        return len(rows)

    # Run again after it took place, it finds nothing due: every look moves `next_dunning_at` on.
    count = router.run(shard, body, committed=lambda _: None)
    for step in (step for look in looks for step in look.course.steps):
        telemetry.DUNNING_STEPS.labels(type(step).__name__.lower()).inc()
    return count


def bring_methods(
    transaction: ShardTransaction, rows: Sequence[Row], owed: dict[str, tuple[Owed, ...]], *, grace_seconds: int
) -> dict[str, tuple[Owed, ...]]:
    """Give jobs the payment method that their subscription has by now; what is owed anew, of the subscriptions that it changed.

    An open attempt keeps its method until it is resolved. What waits for a retry or the customer, or was given up, is due now.
    """
    wanted = {
        one.job: row.terms.payment_method
        for row in rows
        for one in owed.get(row.terms.id, ())
        if one.job is not None and one.payment_method != row.terms.payment_method and not one.unpaid.attempt_open
    }
    free = rowstore.free_jobs(transaction, wanted)
    if not free:
        return {}
    rowstore.take_method(transaction, {job: wanted[job] for job in free}, grace_seconds=grace_seconds)
    changed = [one for of_one in owed.values() for one in of_one if one.job in free]
    rowstore.reopen_invoices(transaction, [one.unpaid.invoice for one in changed if one.job_status is JobStatus.FAILED])
    return rowstore.owed(transaction.read, {one.subscription for one in changed})


def _look(row: Row, owed: tuple[Owed, ...], policy: DunningSpec, transaction: ShardTransaction) -> _Look:
    standing = row.standing(tuple(one.unpaid for one in owed))
    return _Look(row=row, owed=owed, course=course(standing, policy, transaction.now))


def _apply(transaction: ShardTransaction, looks: Sequence[_Look]) -> None:
    now = transaction.now
    after = {look.row.terms.id: state.followed(look.row, look.course.after, look.course.look_again_at, now) for look in looks}
    entries, told, left = _write_off(transaction, looks)
    for subscription in left:
        after[subscription] = replace(after[subscription], next_dunning_at=now + timedelta(seconds=_BUSY_SECONDS))
    rowstore.save(transaction, list(after.values()))
    spans = [state.closed(look.row, after[look.row.terms.id]) for look in looks]
    rowstore.insert_spans(transaction, [span for span in spans if span is not None])
    steps = [_event(look, step, after[look.row.terms.id]) for look in looks for step in look.course.steps]
    written = [event for event in steps if event is not None] + told
    if not written:
        return
    counts = {"event": len(written), "ledger": len(entries)} if entries else {"event": len(written)}
    first = transaction.take_many(counts)
    ledger.book(transaction, first.get("ledger", 0), entries)
    events.write(transaction, first["event"], written)


def _write_off(transaction: ShardTransaction, looks: Sequence[_Look]) -> tuple[list[ledger.Entry], list[Event], frozenset[str]]:
    """Stop the jobs of invoices that are not collected any more; what is to be booked and told of them.

    A job that somebody has just begun to work on is left, with its invoice: those subscriptions are to be looked at again.
    """
    wanted = [
        one
        for look in looks
        for step in look.course.steps
        if isinstance(step, WriteOff)
        for one in look.owed
        if one.unpaid.invoice in step.invoices
    ]
    free = rowstore.free_jobs(transaction, [one.job for one in wanted if one.job is not None])
    chosen = [one for one in wanted if one.job is None or one.job in free]
    if not chosen:
        return [], [], frozenset(one.subscription for one in wanted)
    rowstore.stop_jobs(transaction, free)
    if rowstore.write_off_invoices(transaction, [one.unpaid.invoice for one in chosen]) != len(chosen):
        raise AssertionError(f"shard {transaction.shard}: an invoice to be written off was not unpaid")
    of_invoice = rowstore.services(transaction, {one.unpaid.invoice: one.key for one in chosen})
    entries = [_entry(one, of_invoice[one.unpaid.invoice]) for one in chosen]
    left = frozenset(one.subscription for one in wanted if one not in chosen)
    return entries, [_written_off(one) for one in chosen], left


def _entry(one: Owed, service: str) -> ledger.Entry:
    return ledger.written_off(
        invoice=one.unpaid.invoice,
        subscription=one.subscription,
        service=service,
        amount=one.unpaid.amount,
        currency=one.unpaid.currency,
        job_key=one.key,
    )


def _written_off(one: Owed) -> Event:
    return Event(type="invoice.written_off", subscription=one.subscription, payload=_facts(one.unpaid))


def _facts(unpaid: Unpaid) -> dict[str, Any]:
    return {"invoice": unpaid.invoice, "amount": unpaid.amount, "currency": unpaid.currency}


def _event(look: _Look, step: Step, after: Row) -> Event | None:
    standing = look.row.standing(tuple(one.unpaid for one in look.owed))
    match step:
        case FallPastDue():
            kind, facts = "past_due", _owes(standing)
        case Notify():
            kind, facts = "notice", {"number": step.number, **_owes(standing)}
        case Suspend():
            kind, facts = "suspended", {"reason": step.reason, **_owes(standing)}
        case Reactivate():
            next_period = None if after.next_invoice_at is None else after.span.next_day.isoformat()
            kind, facts = "reactivated", {"was": standing.status.name.lower(), "next_period_start": next_period}
        case Cancel():
            kind, facts = "canceled", ended(step.reason, write_off=step.write_off)
        case WriteOff():
            return None
        case _:
            assert_never(step)
    return Event(type=f"subscription.{kind}", subscription=look.row.terms.id, payload=facts)


def _owes(standing: Standing) -> dict[str, Any]:
    return {"invoices": [_facts(one) for one in standing.late]}
