"""The housekeeper process: invoices for the periods that begin, and the measures of what waits.

Two housekeepers may run at once: each skips the subscriptions that the other holds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from functools import partial

import structlog

from billing_shards import process, publishing, receiver, telemetry
from billing_shards.billing import dunner, scheduler
from billing_shards.errors import BillingShardsError
from billing_shards.jobs import purge, store
from billing_shards.jobs.lanes import Lanes
from billing_shards.outbox import events, keeping
from billing_shards.payments.asker import Asker
from billing_shards.payments.webhooks.apply import Applier
from billing_shards.payments.webhooks.store import count_waiting
from billing_shards.settings import ProcessSettings, ShardSetSpec
from billing_shards.shards.transactions import ShardRouter

_log = structlog.get_logger(__name__)

_CONNECTIONS = 4  # to each database: chores wait for one another rather than crowd it
_MEASURE_SECONDS = 5.0
_PURGE_SECONDS = 5.0
_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """Something to be done for a database's shards again and again."""

    name: str
    seconds: float
    """Rest between two steps that found nothing left to do."""
    step: Callable[[str, Sequence[int]], bool]
    """A bounded piece of the work on one database, run in a thread; whether there is more to do at once.

    It is given the database's name and the shards that it is believed to own. Raises `BillingShardsError`s, which are logged.
    """
    while_paused: bool = True


class Housekeeper:
    """Does its chores for all shards until told to stop. One that is slow, or whose database is away, holds up no other."""

    def __init__(self, router: ShardRouter, shards: Sequence[int], chores: Sequence[Chore], *, paused: bool = False) -> None:
        self._router = router
        self._shards = shards
        self._chores = chores
        self._stop = asyncio.Event()
        self._threads = ThreadPoolExecutor(len(chores) * len(router.databases), thread_name_prefix="sql")
        self._paused = paused

    def stop(self) -> None:
        """`run` returns when the steps that are under way have ended."""
        self._stop.set()

    def pause(self, paused: bool) -> None:
        """Leave out the chores that are not for a paused set."""
        self._paused = paused

    async def run(self) -> None:
        """Work until `stop`. A database that fails is logged and tried again; a fault of our own ends the process."""
        try:
            async with asyncio.TaskGroup() as group:
                for chore in self._chores:
                    for database in self._router.databases:
                        group.create_task(self._until_stopped(chore, database))
        finally:
            self._threads.shutdown()

    async def _until_stopped(self, chore: Chore, database: str) -> None:
        while not self._stop.is_set():
            more = False
            shards = self._router.by_database(self._shards).get(database)
            if shards and not (self._paused and not chore.while_paused):
                try:
                    more = await self._in_thread(partial(chore.step, database, shards))
                except BillingShardsError as error:
                    telemetry.LOOP_ERRORS.labels(chore.name).inc()
                    _log.warning("loop_failed", loop=chore.name, database=database, error=str(error))
            if not more:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), chore.seconds * random.uniform(0.8, 1))  # noqa: S311

    async def _in_thread(self, work: Callable[[], bool]) -> bool:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def chores(spec: ShardSetSpec, router: ShardRouter, asker: Asker) -> list[Chore]:
    """Everything that a housekeeper does."""
    lanes = Lanes(spec)
    webhooks = Applier(spec, router)
    return [
        Chore(name="schedule", seconds=1.0, step=partial(_schedule, spec, router, lanes), while_paused=False),
        Chore(name="dunning", seconds=1.0, step=partial(_dun, spec, router), while_paused=False),
        Chore(name="measure", seconds=_MEASURE_SECONDS, step=partial(_measure, router, lanes)),
        Chore(
            name="purge_jobs",
            seconds=purge.SECONDS,
            step=purge.Purge(router, spec.claimer.finished_jobs_retention_seconds).step,
        ),
        Chore(name="measure_events", seconds=_MEASURE_SECONDS, step=partial(keeping.measure, router)),
        Chore(name="apply_webhooks", seconds=1.0, step=webhooks.apply),
        Chore(name="purge_webhooks", seconds=60.0, step=webhooks.purge),
        Chore(name="push_refunds", seconds=1.0, step=asker.refunds, while_paused=False),
        Chore(name="look_at_customers", seconds=_LOOK_SECONDS, step=asker.customers, while_paused=False),
        Chore(name="purge_events", seconds=_PURGE_SECONDS, step=partial(keeping.purge, router, spec.outbox)),
    ]


def _schedule(spec: ShardSetSpec, router: ShardRouter, lanes: Lanes, _: str, shards: Sequence[int]) -> bool:
    """One batch of each due shard."""
    due = scheduler.due_shards(router, shards)
    for shard in due:
        count = scheduler.schedule_shard(
            router,
            shard,
            lanes=lanes,
            grace_seconds=spec.retry.grace_seconds,
            missed_max=spec.billing.catch_up_periods_max,
        )
        _log.info("invoices_issued", shard=shard, invoices=count)
    return bool(due)


def _dun(spec: ShardSetSpec, router: ShardRouter, database: str, shards: Sequence[int]) -> bool:
    """One batch of each shard where a payment failed or was made, or a step of dunning is due."""
    due = dunner.due_shards(router, database, shards)
    for shard in due:
        dunner.dun_shard(router, shard, spec.dunning, grace_seconds=spec.retry.grace_seconds)
    return bool(due)


def _measure(router: ShardRouter, lanes: Lanes, database: str, shards: Sequence[int]) -> bool:
    started = time.monotonic()
    with router.connect(database) as connection:
        backlog = {(entry.shard, entry.lane): entry for entry in store.backlog(connection, shards)}
        unsent = events.count_unsent(connection, shards)
        webhooks = count_waiting(connection, shards)
    for shard in shards:
        telemetry.WEBHOOKS_WAITING.labels(shard).set(webhooks.get(shard, 0))
        telemetry.OUTBOX_UNSENT.labels(shard).set(unsent.get(shard, 0))
        for lane in {*lanes, *(lane for of_shard, lane in backlog if of_shard == shard)}:
            entry = backlog.get((shard, lane))
            oldest = entry.oldest_due_at if entry else None
            telemetry.JOBS_DUE.labels(shard, lanes.label(lane)).set(entry.ready if entry else 0)
            telemetry.OLDEST_DUE.labels(shard, lanes.label(lane)).set(oldest.replace(tzinfo=UTC).timestamp() if oldest else 0)
    _log.debug("measured", database=database, seconds=round(time.monotonic() - started, 3))
    return False


async def work(settings: ProcessSettings) -> None:
    """The housekeeper of a pod: all shards, until SIGTERM."""
    shard_set = process.from_settings(settings)
    probes = process.Probes()
    stop = asyncio.Event()
    process.stop_on_signals(stop.set)
    async with probes.serve(settings.metrics_port):
        router = await process.until_usable(lambda: process.router(shard_set, pool_size=_CONNECTIONS), stop)
        if router is None:
            return
        spec = shard_set.spec
        asker = Asker(router, lambda: process.providers(shard_set), spec)
        housekeeper = Housekeeper(router, range(spec.shard_count), chores(spec, router, asker), paused=spec.paused)
        process.stop_on_signals(housekeeper.stop)
        watch = asyncio.create_task(process.watch_paused(settings, housekeeper.pause))
        probes.ready = True
        _log.info("housekeeper_started")
        try:
            with asker:
                async with publishing.running(shard_set), receiver.running(shard_set, settings.webhook_port):
                    await housekeeper.run()
        finally:
            probes.ready = False
            watch.cancel()
            router.close()


def main(settings: ProcessSettings) -> int:
    """Run the housekeeper process; its exit code."""
    return process.run_process(settings, work)
