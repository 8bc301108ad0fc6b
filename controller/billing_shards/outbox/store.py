"""The SQL of publishing: the lease of a shard, what may be sent under it, what became of it, and what is purged."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from billing_shards.db import Rows, queries
from billing_shards.outbox.model import Batch, Block, Blockage, Leased, StoredEvent
from billing_shards.shards.transactions import ShardTransaction

_q = queries("outbox")

_DUE_AGAIN_MAX = 50  # a batch has room for others
_LEASE_KEY = ("publish",)
_EVENT = ("id", "type", "subscription_id", "sent_at", "held")
_BLOCKAGE = ("event_id", "problem", "details", "failures")

SKIPPED = 2
"""`outbox.held` of an event that a person had skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits in a shard's outbox."""

    shard: int
    blocked: int
    """Subscriptions whose next event is not taken."""
    oldest: datetime | None
    """When the oldest event that could be sent was written."""


def shards_to_publish(connection: Connection, shards: Collection[int]) -> list[int]:
    """Those with something to send now."""
    return [row[0] for row in connection.exec_driver_sql(_q.shards_to_publish, {"rows": Rows(list(shards))})]


def take_lease(transaction: ShardTransaction, token: int, seconds: float) -> Leased | None:
    """Take the shard for a publisher, or renew it; None where it is ours now, until `seconds` from the server's now."""
    params = {"token": token, "seconds": seconds}
    transaction.write(_q.take_lease, params, table="shard_task", keys=[_LEASE_KEY])
    holder, left = transaction.read(_q.lease)[0]
    return None if holder == token else Leased(seconds=float(left))


def release_lease(transaction: ShardTransaction, token: int) -> None:
    """Let another publisher take the shard at once; nothing where it is not ours."""
    transaction.write(_q.release_lease, {"token": token}, table="shard_task", keys=[_LEASE_KEY])


def read_batch(transaction: ShardTransaction, limit: int) -> Batch:
    """The first `limit` events that are to be sent, and those that were not taken and are due to be tried again."""
    rows = transaction.read(_q.unsent, {"limit": limit})
    again = transaction.read(_q.due_again, {"limit": min(limit, _DUE_AGAIN_MAX)})
    return Batch(
        events=[_event(transaction.shard, row) for row in (*again, *(row for row in rows if not row[5]))],
        behind=[_event(transaction.shard, row) for row in rows if row[5]],
        full=len(rows) == limit,
    )


def _event(shard: int, row: Sequence[Any]) -> StoredEvent:
    number, kind, subscription, payload, created_at = row[:5]
    return StoredEvent(
        shard=shard,
        number=number,
        type=kind,
        subscription=subscription,
        payload=json.loads(payload),
        created_at=created_at,
    )


def mark_sent(transaction: ShardTransaction, numbers: Sequence[int]) -> None:
    """Note that the broker has these events, unless that is noted already."""
    if numbers:
        transaction.write(_q.mark_sent, {"rows": Rows(numbers)}, table="outbox", keys=_keys(numbers))


def lock_blocked(transaction: ShardTransaction, subscriptions: Collection[str]) -> list[Blockage]:
    """Those of the subscriptions that are blocked. Their rows stay locked to the end of the transaction."""
    if not subscriptions:
        return []
    rows = transaction.read(_q.lock_blocked, {"subscriptions": tuple(subscriptions)})
    return [Blockage(subscription=row[0], number=row[1], failures=row[2]) for row in rows]


def lock_unsent(transaction: ShardTransaction, numbers: Sequence[int]) -> set[int]:
    """Those of the events that are not sent, and not skipped. Their rows stay locked to the end of the transaction."""
    if not numbers:
        return set()
    return {row[0] for row in transaction.read(_q.lock_unsent, {"rows": Rows(numbers)})}


def block(transaction: ShardTransaction, blocks: Sequence[Block]) -> None:
    """Block subscriptions, or note that their event was tried again."""
    if blocks:
        rows = [(b.subscription, b.number, b.problem, b.details, b.failures, b.seconds) for b in blocks]
        keys = [(b.subscription,) for b in blocks]
        transaction.write(_q.block, {"rows": Rows(rows)}, table="outbox_blocked", keys=keys)


def hold(transaction: ShardTransaction, numbers: Sequence[int]) -> None:
    """Set events aside until their subscription is no longer blocked. The caller holds its row in `outbox_blocked`."""
    if numbers:
        transaction.write(_q.hold, {"rows": Rows(numbers)}, table="outbox", keys=_keys(numbers))


def unblock(transaction: ShardTransaction, subscriptions: Sequence[str]) -> None:
    """Let go of all events that are set aside. The caller holds the subscriptions' rows in `outbox_blocked`."""
    if not subscriptions:
        return
    params = {"subscriptions": tuple(subscriptions)}
    transaction.write(_q.unblock, params, table="outbox_blocked", keys=[(one,) for one in subscriptions])
    held = [row[0] for row in transaction.read(_q.held_of, params)]
    if held:
        transaction.write(_q.let_go, {"rows": Rows(held)}, table="outbox", keys=_keys(held))


def read_event(transaction: ShardTransaction, number: int) -> Mapping[str, Any] | None:
    """One event, as it may be no longer."""
    return _named(transaction.read(_q.event, {"id": number}), _EVENT)


def lock_event(transaction: ShardTransaction, number: int) -> Mapping[str, Any] | None:
    """One event, locked to the end of the transaction."""
    return _named(transaction.read(_q.lock_event, {"id": number}), _EVENT)


def lock_blockage(transaction: ShardTransaction, subscription: str) -> Mapping[str, Any] | None:
    """How a subscription is blocked, locked to the end of the transaction."""
    return _named(transaction.read(_q.lock_blockage, {"subscription": subscription}), _BLOCKAGE)


def _named(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> Mapping[str, Any] | None:
    return dict(zip(names, rows[0], strict=True)) if rows else None


def skip(transaction: ShardTransaction, number: int) -> None:
    """Never send this event."""
    transaction.write(_q.skip, {"id": number}, table="outbox", keys=[(number,)])


def try_now(transaction: ShardTransaction, subscriptions: Sequence[str]) -> None:
    """Have the events that block these subscriptions tried again at once."""
    params = {"subscriptions": tuple(subscriptions)}
    transaction.write(_q.try_now, params, table="outbox_blocked", keys=[(one,) for one in subscriptions])


def blocked(connection: Connection, shards: Collection[int], limit: int) -> list[Mapping[str, Any]]:
    """Subscriptions that are blocked, with the event and the reason, the oldest first."""
    rows = connection.exec_driver_sql(_q.blocked, {"shards": tuple(shards), "limit": limit})
    return [dict(row) for row in rows.mappings()]


def measure(connection: Connection, shards: Collection[int]) -> list[Waiting]:
    """What waits in each shard's outbox."""
    rows = connection.exec_driver_sql(_q.measure, {"rows": Rows(list(shards))})
    return [Waiting(shard=row[0], blocked=row[1], oldest=row[2]) for row in rows]


def shards_to_purge(connection: Connection, shards: Collection[int], retention_seconds: int) -> list[int]:
    """Those with events that were sent, or skipped, longer ago than that."""
    params = {"rows": Rows(list(shards)), "retention_seconds": retention_seconds}
    return [row[0] for row in connection.exec_driver_sql(_q.shards_to_purge, params)]


def purge(transaction: ShardTransaction, *, retention_seconds: int, limit: int) -> int:
    """Delete up to `limit` events of that age, and note how many, for the audit; how many were deleted."""
    params = {"retention_seconds": retention_seconds, "limit": limit}
    numbers = [row[0] for row in transaction.read(_q.outlived, params)]
    if not numbers:
        return 0
    count = transaction.write(_q.purge, {"rows": Rows(numbers)}, table="outbox", keys=_keys(numbers))
    if count:
        line = {"count": count, "line": max(numbers) + 1}
        transaction.write(_q.note_purged, line, table="outbox_purged", keys=[()])
    return count


def _keys(numbers: Sequence[int]) -> list[tuple[int]]:
    return [(number,) for number in numbers]
