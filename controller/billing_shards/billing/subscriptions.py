"""What a person does to one subscription: look at it, change it, end it. Each act leaves a row in `manual_act` and an event.

Each function does all it does in one transaction. They raise `NotFound`, `NotPossible` (not in this state), `InvalidInput` and
what `ShardRouter.run` raises; then nothing was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import Connection

from billing_shards import acts
from billing_shards.billing import rowstore, state
from billing_shards.billing.dunner import bring_methods
from billing_shards.billing.model import Status, describe, ended
from billing_shards.billing.rowstore import Owed
from billing_shards.billing.state import Row
from billing_shards.billing.terms import Change, Span
from billing_shards.errors import NotFound
from billing_shards.outbox import events
from billing_shards.shards.model import shard_of
from billing_shards.shards.transactions import ShardRouter, ShardTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class By:
    """Who does it, and why."""

    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Which subscription, of a set of how many shards."""

    id: str
    shard_count: int

    @property
    def shard(self) -> int:
        """Where it is."""
        return shard_of(self.id, self.shard_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All about one subscription."""

    row: Row
    shard: int
    now: datetime
    owed: tuple[Owed, ...]
    spans: Sequence[Span]
    """Terms it had before."""
    acts: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doing:
    """One act: what it is called, the row as it shall be, and the event that tells of it."""

    act: str
    change: Callable[[Row, datetime], Row]
    event: Callable[[Row, Row], events.Event]


def show(router: ShardRouter, subject: Subject) -> View:
    """Everything about a subscription. Raises `NotFound`."""
    with router.read(subject.shard) as connection:
        read = rowstore.reader(connection, subject.shard)
        found = rowstore.find(read, subject.id)
        if found is None:
            raise NotFound(f"subscription {subject.id}: there is none")
        row, now = found
        return View(
            row=row,
            shard=subject.shard,
            now=now,
            owed=rowstore.owed(read, [subject.id]).get(subject.id, ()),
            spans=rowstore.spans(read, subject.id),
            acts=acts.of_subscription(connection, subject.shard, subject.id),
        )


def update(router: ShardRouter, subject: Subject, change: Change, *, by: By) -> Row:
    """New terms, from the next period on."""
    return _do(
        router,
        subject,
        _Doing(
            act="subscription.update",
            change=lambda row, now: state.updated(row, change, now),
            event=_updated,
        ),
        by=by,
    )


def cancel(router: ShardRouter, subject: Subject, *, at_period_end: bool, write_off: bool = False, by: By) -> Row:
    """End it: now, or when the period that runs now is over.

    What it owes is still collected, unless `write_off`: then no new attempt is begun, and what is not paid is booked as bad debt,
    each invoice as soon as no attempt at it is open.
    """

    def event(before: Row, after: Row) -> events.Event:
        if after.status is Status.CANCELED:
            facts = ended("asked_for", write_off=write_off)
            return events.Event(type="subscription.canceled", subscription=subject.id, payload=facts)
        return _updated(before, after)

    return _do(
        router,
        subject,
        _Doing(
            act="subscription.cancel",
            change=lambda row, now: state.canceled(row, now, at_period_end=at_period_end, write_off=write_off),
            event=event,
        ),
        by=by,
    )


def change_payment_method(router: ShardRouter, subject: Subject, method: str, *, grace_seconds: int, by: By) -> Row:
    """Charge by another method from now on.

    What waits for a retry or for the customer, or was given up, is tried with it at once, and has `grace_seconds` for it; an open
    attempt keeps its method until it is resolved.
    """

    def bring(transaction: ShardTransaction, row: Row) -> None:
        bring_methods(transaction, [row], rowstore.owed(transaction.read, [subject.id]), grace_seconds=grace_seconds)

    return _do(
        router,
        subject,
        _Doing(
            act="subscription.method",
            change=lambda row, now: state.with_method(row, method, now),
            event=lambda _, __: events.Event(type="payment_method.changed", subscription=subject.id, payload={}),
        ),
        by=by,
        then=bring,
    )


def catch_up(router: ShardRouter, subject: Subject, *, periods: int | None = None, skip_to: date | None = None, by: By) -> Row:
    """The word for a subscription that is held: invoice so many of the periods it missed, or leave out those before a day."""
    return _do(
        router,
        subject,
        _Doing(
            act="subscription.catch_up",
            change=lambda row, now: state.caught_up(row, now, periods=periods, skip_to=skip_to),
            event=_updated,
        ),
        by=by,
    )


def _do(
    router: ShardRouter,
    subject: Subject,
    doing: _Doing,
    *,
    by: By,
    then: Callable[[ShardTransaction, Row], None] = lambda _transaction, _row: None,
) -> Row:
    done: list[tuple[acts.Act, Row]] = []

    def body(transaction: ShardTransaction) -> Row:
        before = _locked(transaction, subject)
        after = doing.change(before, transaction.now)
        act = acts.Act(
            actor=by.actor,
            act=doing.act,
            subscription=subject.id,
            subject=f"subscription:{subject.id}",
            reason=by.reason,
            before=_facts(before),
            after=_facts(after),
        )
        done[:] = [(act, after)]
        rowstore.save(transaction, [after])
        span = state.closed(before, after)
        rowstore.insert_spans(transaction, [] if span is None else [span])
        then(transaction, after)
        acts.write(transaction, act)
        events.write(transaction, transaction.take("event", 1), [doing.event(before, after)])
        return after

    def committed(connection: Connection) -> Row | None:
        act, after = done[0]
        return after if acts.written(connection, subject.shard, act) else None

    return router.run(subject.shard, body, committed=committed)


def _locked(transaction: ShardTransaction, subject: Subject) -> Row:
    rows = rowstore.lock(transaction, [subject.id])
    if not rows:
        raise NotFound(f"subscription {subject.id}: there is none")
    return rows[0]


def _updated(before: Row, after: Row) -> events.Event:
    old, new = _facts(before), _facts(after)
    changes = {name: value for name, value in new.items() if value != old[name]}
    return events.Event(type="subscription.updated", subscription=after.terms.id, payload={"changes": changes})


def _facts(row: Row) -> dict[str, Any]:
    """What acts and events tell of a subscription. The payment method is told to nobody."""
    return {
        **describe(row.terms),
        "status": row.status.name.lower(),
        "next_period_start": row.span.next_day.isoformat(),
        "next_invoice_at": None if row.next_invoice_at is None else row.next_invoice_at.isoformat(),
        "held": row.held_since is not None,
        "catch_up_until": row.catch_up_until,
        "cancel_at": None if row.cancel_at is None else row.cancel_at.isoformat(),
        "write_off": row.write_off,
    }
