"""The purge: finished jobs are deleted after a while, slowly. Invoice, attempts, ledger and events still tell what they did."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import structlog

from billing_shards import telemetry
from billing_shards.db import queries
from billing_shards.jobs.model import Lane, Status
from billing_shards.jobs.store import FIRST
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_q = queries("jobs")
_log = structlog.get_logger(__name__)

SECONDS = 2.0
"""Between two steps."""
_BATCH = 500  # rows a transaction: some 20 ms, during which the scheduler waits for no lock of it
_STEP = 4000  # rows a step of a database: 2,000 a second keep up with 170 million charges a day
_FINISHED = (Status.SUCCEEDED, Status.FAILED)

Place = tuple[datetime, int]
"""When a job finished, and its id: where in its lane's finished jobs it is."""
_START: Place = (FIRST, 0)
Part = tuple[int, Lane, Status]
"""A shard's lane, and how its jobs finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """What one transaction looked at and deleted; `last` is None where it reached the end."""

    seen: int
    deleted: int
    last: Place | None


class Purge:
    """Deletes jobs that finished longer ago than `retention_seconds` and whose invoice is paid or void.

    The job of an uncollectible invoice is kept: a payment method given later has it tried again. So that such jobs are not looked
    at again and again, each lane is gone through from its oldest to its youngest, and then from the start.
    """

    def __init__(self, router: ShardRouter, retention_seconds: int) -> None:
        self._router = router
        self._retention_seconds = retention_seconds
        self._places: dict[Part, Place | None] = {}

    def step(self, database: str, shards: Sequence[int]) -> bool:
        """A bounded piece. Always False: what is left waits for the next step. Raises what `ShardRouter.run` does."""
        parts = self._parts(database, shards)
        random.shuffle(parts)  # where a step does not suffice for all, each has its turn
        seen = deleted = 0
        for part in parts:
            if seen >= _STEP:
                break
            body = partial(self._delete, part=part, limit=min(_BATCH, _STEP - seen))
            # Run twice it does no harm: what it deleted is not there any more.
            batch = self._router.run(part[0], body, committed=lambda _: None)
            self._places[part] = batch.last
            seen, deleted = seen + batch.seen, deleted + batch.deleted
        if deleted:
            telemetry.JOBS_PURGED.inc(deleted)
            _log.info("jobs_purged", database=database, jobs=deleted)
        return False

    def _parts(self, database: str, shards: Sequence[int]) -> list[Part]:
        params = {"shards": tuple(shards), "retention_seconds": self._retention_seconds}
        with self._router.connect(database) as connection:
            return [
                (row[0], Lane(row[1]), status)
                for status in _FINISHED
                for row in connection.exec_driver_sql(_q.purgeable_lanes, {**params, "status": int(status)})
            ]

    def _delete(self, transaction: ShardTransaction, *, part: Part, limit: int) -> _Batch:
        _, lane, status = part
        finished_at, job = self._places.get(part) or _START
        place = {"finished_at": finished_at, "job": job}
        params = {"lane": int(lane), "status": int(status), "limit": limit, "retention_seconds": self._retention_seconds}
        rows = transaction.read(_q.purgeable, {**params, **place})
        ids = tuple(row[0] for row in rows if row[2])
        if ids:
            transaction.write(_q.purge, {"ids": ids}, table="billing_job", keys=[(number,) for number in ids])
        return _Batch(seen=len(rows), deleted=len(ids), last=(rows[-1][1], rows[-1][0]) if len(rows) == limit else None)
