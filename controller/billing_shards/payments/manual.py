"""Acts upon a job by hand: each one transaction that writes who did it, and why, with what it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from billing_shards import acts
from billing_shards.db import queries
from billing_shards.errors import NotFound, NotPossible
from billing_shards.jobs import manual
from billing_shards.jobs.manual import Change, Refused, Verb
from billing_shards.jobs.model import Lane, Status
from billing_shards.jobs.store import cancel_waiting
from billing_shards.outbox import events
from billing_shards.outbox.events import Event
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_q = queries("jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a job was, and what it is now: status, lane, whether an attempt is open, and the invoice's status."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]


def act(router: ShardRouter, shard: int, job: int, verb: Verb, *, actor: str, reason: str) -> Done:
    """Do `verb` to a job, and leave the act.

    Raises `NotFound`, `NotPossible` with the reason, `InvalidInput` for actor or reason, and what `ShardRouter.run` raises.
    """
    actor, reason = acts.checked_actor(actor), acts.checked_reason(reason)
    tried: list[tuple[acts.Act, Done]] = []

    def body(transaction: ShardTransaction) -> Done:
        found = transaction.read(_q.lock_job, {"job": job})
        if not found:
            raise NotFound(f"job {shard}/{job}: is not there; one that finished long ago is deleted, its invoice tells of it")
        row = found[0]
        change = manual.decide(verb, Status(row[1]), invoice_status=row[5], attempt_open=bool(row[2]))
        if isinstance(change, Refused):
            raise NotPossible(f"job {shard}/{job}: {change.reason}")
        waiting = _write(transaction, job, row, change, verb)
        done = Done(before=_state(Status(row[1]), row[0], row[2], row[5]), after=_after(change, row, waiting=waiting))
        written = acts.Act(
            actor=actor,
            act=verb.value,
            subscription=row[3],
            subject=f"job:{job}",
            reason=reason,
            before=done.before,
            after=done.after,
        )
        tried.append((written, done))
        acts.write(transaction, written)
        if change.status is Status.REVIEW:
            told = Event(type="payment.review", subscription=row[3], payload={"invoice": row[4], "reason": "set_aside"})
            events.write(transaction, transaction.take("event", 1), [told])
        return done

    def committed(connection: Connection) -> Done | None:
        written, done = tried[-1]
        return done if acts.written(connection, shard, written) else None

    return router.run(shard, body, committed=committed)


def _write(transaction: ShardTransaction, job: int, row: Sequence[Any], change: Change, verb: Verb) -> bool:
    """Whether the job's last attempt, which waited for the customer, is to be canceled now."""
    params = {
        "job": job,
        "status": int(change.status),
        "lane": int(Lane(row[0]).again if change.again else row[0]),
        "due_now": change.due_now,
        "drop_lease": verb is Verb.RELEASE,
        "closes": change.closes,
    }
    transaction.write(_q.change_job, params, table="billing_job", keys=[(job,)])
    if change.closes:
        attempt = {"job": job, "attempt_no": row[6]}
        transaction.write(_q.close_attempt, attempt, table="payment_attempt", keys=[(job, row[6])])
    if change.reopens:
        transaction.write(_q.reopen_uncollectible, {"invoice": row[4]}, table="invoice", keys=[(row[4],)])
    return bool(cancel_waiting(transaction, [job]))


def _state(status: Status, lane: int, attempt_open: object, invoice_status: int) -> dict[str, Any]:
    return {
        "status": status.name.lower(),
        "lane": int(lane),
        "attempt_open": bool(attempt_open),
        "invoice_status": invoice_status,
    }


def _after(change: Change, row: Sequence[Any], *, waiting: bool) -> dict[str, Any]:
    lane = Lane(row[0]).again if change.again else row[0]
    attempt_open = waiting or (bool(row[2]) and not change.closes)
    return _state(change.status, lane, attempt_open, 1 if change.reopens else row[5])
