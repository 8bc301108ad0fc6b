"""The housekeeper process: invoices for the periods that begin, and the measures of what waits.

Two housekeepers may run at once: each skips the subscriptions that the other holds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC
from functools import partial
from typing import TypeVar

import structlog

from billing_shards import process, telemetry
from billing_shards.billing import scheduler
from billing_shards.errors import BillingShardsError
from billing_shards.jobs import store
from billing_shards.jobs.model import Lane
from billing_shards.outbox import events
from billing_shards.settings import ProcessSettings, ShardSetSpec
from billing_shards.shards.transactions import ShardRouter

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_THREADS = 2
_SCHEDULE_SECONDS = 1.0
_MEASURE_SECONDS = 5.0


class Housekeeper:
    """Works for all shards until told to stop."""

    def __init__(self, spec: ShardSetSpec, router: ShardRouter, shards: Sequence[int]) -> None:
        self._spec = spec
        self._router = router
        self._shards = shards
        self._stop = asyncio.Event()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sql")
        self._paused = spec.paused

    def stop(self) -> None:
        """`run` returns when the transaction that is under way has ended."""
        self._stop.set()

    def pause(self, paused: bool) -> None:
        """Write no invoices while paused."""
        self._paused = paused

    async def run(self) -> None:
        """Work until `stop`. A database that fails is logged and tried again; a fault of our own ends the process."""
        try:
            await asyncio.gather(
                self._until_stopped("schedule", self._schedule, _SCHEDULE_SECONDS),
                self._until_stopped("measure", self._measure, _MEASURE_SECONDS),
            )
        finally:
            self._threads.shutdown()

    async def _until_stopped(self, name: str, step: Callable[[str, Collection[int]], Awaitable[None]], seconds: float) -> None:
        """A step for each database in turn: one that is away does not hold up the others."""
        while not self._stop.is_set():
            for database, shards in self._router.by_database(self._shards).items():
                try:
                    await step(database, shards)
                except BillingShardsError as error:
                    telemetry.LOOP_ERRORS.labels(name).inc()
                    _log.warning("loop_failed", loop=name, database=database, error=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds * random.uniform(0.8, 1))  # noqa: S311

    async def _schedule(self, _: str, shards: Collection[int]) -> None:
        due = [] if self._paused else await self._in_thread(partial(scheduler.due_shards, self._router, list(shards)))
        for shard in due:
            if self._stop.is_set() or self._paused:
                return
            work = partial(
                scheduler.schedule_shard,
                self._router,
                shard,
                window_seconds=self._spec.smoothing.window_seconds,
                grace_seconds=self._spec.retry.grace_seconds,
            )
            count = await self._in_thread(work)
            _log.info("invoices_issued", shard=shard, invoices=count)

    async def _measure(self, database: str, shards: Collection[int]) -> None:
        await self._in_thread(partial(_measure, self._router, database, shards))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _measure(router: ShardRouter, database: str, shards: Collection[int]) -> None:
    started = time.monotonic()
    with router.connect(database) as connection:
        backlog = {(entry.shard, entry.lane): entry for entry in store.backlog(connection, shards)}
        unsent = events.count_unsent(connection, shards)
    for shard in shards:
        telemetry.OUTBOX_UNSENT.labels(shard).set(unsent.get(shard, 0))
        for lane in Lane:
            entry = backlog.get((shard, lane))
            oldest = entry.oldest_due_at if entry else None
            telemetry.JOBS_DUE.labels(shard, lane.name.lower()).set(entry.ready if entry else 0)
            telemetry.OLDEST_DUE.labels(shard, lane.name.lower()).set(oldest.replace(tzinfo=UTC).timestamp() if oldest else 0)
    _log.debug("measured", database=database, seconds=round(time.monotonic() - started, 3))


async def work(settings: ProcessSettings) -> None:
    """The housekeeper of a pod: all shards, until SIGTERM."""
    shard_set = process.from_settings(settings)
    probes = process.Probes()
    stop = asyncio.Event()
    process.stop_on_signals(stop.set)
    async with probes.serve(settings.metrics_port):
        router = await process.until_usable(lambda: process.router(shard_set, pool_size=_THREADS), stop)
        if router is None:
            return
        housekeeper = Housekeeper(shard_set.spec, router, range(shard_set.spec.shard_count))
        process.stop_on_signals(housekeeper.stop)
        watch = asyncio.create_task(process.watch_paused(settings, housekeeper.pause))
        probes.ready = True
        _log.info("housekeeper_started")
        try:
            await housekeeper.run()
        finally:
            probes.ready = False
            watch.cancel()
            router.close()


def main(settings: ProcessSettings) -> int:
    """Run the housekeeper process; its exit code."""
    return process.run_process(settings, work)
