"""The reaper: jobs whose worker was lost become ready again; those that lose worker after worker are set aside for review."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import structlog

from billing_shards import telemetry
from billing_shards.errors import BillingShardsError, DatabaseError
from billing_shards.jobs import store
from billing_shards.jobs.model import Lane
from billing_shards.outbox import events
from billing_shards.outbox.events import Event
from billing_shards.settings import ClaimerSpec
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_log = structlog.get_logger(__name__)

_BATCH = 500
_JITTER_SECONDS = 5.0


def reap(router: ShardRouter, database: str, shards: Collection[int], *, settings: ClaimerSpec) -> int:
    """Take back the expired jobs of a database's shards, a bounded batch a lane; how many. Raises `DatabaseError`s."""
    with router.connect(database) as connection:
        stricken = store.expired_lanes(connection, shards)
    count = 0
    for shard, lane in stricken:
        body = partial(_reap, lane=lane, lost_leases_max=settings.lost_leases_max)
        try:
            # Run twice it does no harm: what it reaped is not expired any more.
            count += router.run(shard, body, committed=lambda _: None)
        except DatabaseError:
            raise
        except BillingShardsError as error:  # one shard that is being handed over must not keep the others' jobs lost
            telemetry.LOOP_ERRORS.labels("reap").inc()
            _log.warning("reap_failed", shard=shard, error=str(error))
    return count


def _reap(transaction: ShardTransaction, *, lane: Lane, lost_leases_max: int) -> int:
    reaped = store.reap_in(transaction, lane, limit=_BATCH, jitter_seconds=_JITTER_SECONDS, lost_leases_max=lost_leases_max)
    told = [
        Event(
            type="payment.review",
            subscription=job.subscription,
            payload={"invoice": job.invoice, "reason": "workers_lost"},
        )
        for job in reaped
        if job.to_review
    ]
    if told:
        events.write(transaction, transaction.take("event", len(told)), told)
    for to_review in (False, True):
        count = sum(job.to_review is to_review for job in reaped)
        telemetry.JOBS_REAPED.labels("review" if to_review else "ready").inc(count)
    if reaped:
        _log.info("jobs_reaped", shard=transaction.shard, lane=lane, jobs=len(reaped), review=len(told))
    return len(reaped)
