"""The housekeeper's chores about events: measuring what waits, and purging what was sent long ago."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from billing_shards import telemetry
from billing_shards.outbox import rounds, store
from billing_shards.settings import OutboxSpec
from billing_shards.shards.transactions import ShardRouter

PURGE_BATCH = 1000
"""Events of a shard that one step deletes: few enough that no lock and no purge lag of the server is felt."""


def measure(router: ShardRouter, database: str, shards: Sequence[int]) -> bool:
    """Set the gauges of a database's shards; there is never more to do. Raises `DatabaseError`s."""
    with router.connect(database) as connection:
        waiting = store.measure(connection, shards)
    for one in waiting:
        telemetry.OUTBOX_BLOCKED.labels(one.shard).set(one.blocked)
        telemetry.OUTBOX_OLDEST.labels(one.shard).set(one.oldest.replace(tzinfo=UTC).timestamp() if one.oldest else 0)
    return False


def purge(router: ShardRouter, spec: OutboxSpec, database: str, shards: Sequence[int]) -> bool:
    """Delete one batch of each shard that has events older than their retention; never at once more, so that it goes slowly.

    Raises what `ShardRouter.run` raises.
    """
    with router.connect(database) as connection:
        outlived = store.shards_to_purge(connection, shards, spec.retention_seconds)
    for shard in outlived:
        count = rounds.purge(router, shard, retention_seconds=spec.retention_seconds, limit=PURGE_BATCH)
        telemetry.EVENTS_PURGED.inc(count)
    return False
