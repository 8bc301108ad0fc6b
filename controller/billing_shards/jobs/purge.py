"""The purge: finished jobs are deleted after a while, slowly. Invoice, attempts, ledger and events still tell what they did."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import structlog

from billing_shards import telemetry
from billing_shards.db import queries
from billing_shards.jobs.model import Lane, Status
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_q = queries("jobs")
_log = structlog.get_logger(__name__)

SECONDS = 2.0
"""Between two steps."""
_BATCH = 500  # rows a transaction: some 20 ms, during which the scheduler waits for no lock of it
_STEP = 4000  # rows a step of a database: 2,000 a second keep up with 170 million charges a day
_FINISHED = (Status.SUCCEEDED, Status.FAILED)


def purge(router: ShardRouter, retention_seconds: int, database: str, shards: Sequence[int]) -> bool:
    """A step: delete jobs of a database that finished longer ago than `retention_seconds`, the oldest of each lane first.

    Never one whose invoice is not final. Always False: what is left waits for the next step. Raises what `router.run` does.
    """
    with router.connect(database) as connection:
        params = {"shards": tuple(shards), "retention_seconds": retention_seconds}
        rows = [
            (row[0], Lane(row[1]), status)
            for status in _FINISHED
            for row in connection.exec_driver_sql(_q.purgeable_lanes, {**params, "status": int(status)})
        ]
    random.shuffle(rows)  # where a step does not suffice for all, each has its turn
    left = _STEP
    for shard, lane, status in rows:
        if left <= 0:
            break
        body = partial(_purge, lane=lane, status=status, limit=min(_BATCH, left), retention_seconds=retention_seconds)
        # Run twice it does no harm: what it deleted is not there any more.
        left -= router.run(shard, body, committed=lambda _: None)
    if left < _STEP:
        telemetry.JOBS_PURGED.inc(_STEP - left)
        _log.info("jobs_purged", database=database, jobs=_STEP - left)
    return False


def _purge(transaction: ShardTransaction, *, lane: Lane, status: Status, limit: int, retention_seconds: int) -> int:
    params = {"lane": int(lane), "status": int(status), "limit": limit, "retention_seconds": retention_seconds}
    ids = tuple(row[0] for row in transaction.read(_q.purgeable, params))
    if not ids:
        return 0
    return transaction.write(_q.purge, {"ids": ids}, table="billing_job", keys=[(job,) for job in ids])
