"""The two transactions of a publisher's round, with the broker between them: take what may be sent, record what became of it.

Both are on the shard's owner, also the one that only reads: rows of a database that the shard has left are never sent. What the
broker has confirmed is noted whoever has the lease by now, for it is true; `decide` tells why order does not depend on the lease.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from billing_shards.outbox import decide, store
from billing_shards.outbox.model import Answer, Batch, Leased, Record, Refused
from billing_shards.shards.transactions import ShardRouter, ShardTransaction


def take(router: ShardRouter, shard: int, *, token: int, lease_seconds: float, limit: int) -> Batch | Leased:
    """Take or renew the shard's lease, and read what may be sent under it. Raises what `ShardRouter.run` raises."""

    def body(transaction: ShardTransaction) -> Batch | Leased:
        return store.take_lease(transaction, token, lease_seconds) or store.read_batch(transaction, limit)

    return router.run(shard, body, committed=lambda _: None)  # done twice it does no harm


def record(router: ShardRouter, shard: int, batch: Batch, answers: Sequence[Answer]) -> Record:
    """Write what the broker said of a batch. Raises what `ShardRouter.run` raises; then the events are sent again."""
    draw = random.random()  # noqa: S311 - spreads retries

    def body(transaction: ShardTransaction) -> Record:
        subscriptions = {event.subscription for event in (*batch.events, *batch.behind)}
        refused = [answer.event.number for answer in answers if isinstance(answer, Refused)]
        found = decide.record(
            batch,
            answers,
            blocked=store.lock_blocked(transaction, subscriptions),
            unsent=store.lock_unsent(transaction, refused),
            draw=draw,
        )
        store.mark_sent(transaction, found.sent)
        store.unblock(transaction, found.release)
        store.block(transaction, found.blocks)
        store.hold(transaction, found.hold)
        return found

    return router.run(shard, body, committed=lambda _: None)  # done twice it does no harm, but for one failure more counted


def release(router: ShardRouter, shard: int, *, token: int) -> None:
    """Let another publisher take the shard at once. Raises what `ShardRouter.run` raises."""
    router.run(shard, lambda transaction: store.release_lease(transaction, token), committed=lambda _: None)


def purge(router: ShardRouter, shard: int, *, retention_seconds: int, limit: int) -> int:
    """Delete up to `limit` events of a shard that outlived their retention; how many. Raises what `ShardRouter.run` raises."""

    def body(transaction: ShardTransaction) -> int:
        return store.purge(transaction, retention_seconds=retention_seconds, limit=limit)

    return router.run(shard, body, committed=lambda _: None)  # done again, it deletes the next ones
