"""The claimer process: claim → charge → settle, with the leases renewed and the lost ones reaped.

SQL is sync and runs in threads; charges are asyncio tasks. Nothing waits for a full batch: while one settlement of a shard is
being committed the next outcomes gather, so batches grow with the load by themselves.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog

from billing_shards import process, telemetry
from billing_shards.errors import BillingShardsError
from billing_shards.jobs import decide, store
from billing_shards.jobs.held import Held
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Job, Lane
from billing_shards.payments.charge import charge
from billing_shards.payments.providers import Providers
from billing_shards.payments.reap import reap
from billing_shards.payments.settle import Result, settle
from billing_shards.settings import ProcessSettings, ShardSetSpec
from billing_shards.shards.transactions import ShardRouter

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_THREADS = 4
_BACKOFF_SECONDS_MAX = 10.0
_DRAIN_SECONDS = 40.0  # of the pod's 60 s of grace
_RELEASE_SECONDS = 5.0


class Claimer:
    """Works the queue of `shards` until told to stop.

    Each database has threads of its own: one that is slow or away holds up nothing of the others. `renewals` is a router of its
    own: leases are renewed on connections that busy workers cannot use up.
    """

    def __init__(
        self,
        spec: ShardSetSpec,
        router: ShardRouter,
        renewals: ShardRouter,
        providers: Providers,
        shards: Sequence[int],
    ) -> None:
        self._spec = spec
        self._router = router
        self._renewals = renewals
        self._providers = providers
        self._shards = shards
        self._lanes = Lanes(spec)
        self._held = Held(spec.claimer.in_flight, self._lanes)
        self._claimed: asyncio.Queue[Job] = asyncio.Queue()
        self._outcomes: defaultdict[int, list[Result]] = defaultdict(list)
        self._settling: dict[int, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._threads = {name: ThreadPoolExecutor(_THREADS, thread_name_prefix=f"sql-{name}") for name in router.databases}
        self._renewal_threads = {name: ThreadPoolExecutor(1, thread_name_prefix=f"renew-{name}") for name in router.databases}
        self._fault: BaseException | None = None
        self._paused = spec.paused

    def stop(self) -> None:
        """Claim nothing more; `run` returns when what is under way is finished or given back."""
        self._stop.set()
        self._held.wake()

    def pause(self, paused: bool) -> None:
        """Claim nothing while paused."""
        self._paused = paused

    async def run(self) -> None:
        """Work until `stop`. Failures of databases and provider are logged and waited out; a fault of our own ends the process:
        leases bring its jobs back, and a job that ends process after process goes to review.
        """
        gc.freeze()  # what start-up made is never garbage: jobs by the thousand would have it looked through again and again
        lease = self._spec.claimer.lease_seconds
        claiming = [self._task(self._claim_until_stopped(name)) for name in self._router.databases]
        others = [
            *(self._task(self._charge_forever()) for _ in range(self._spec.claimer.workers)),
            *(self._task(self._forever("renew", self._renew, name, lease / 3)) for name in self._router.databases),
            *(self._task(self._forever("reap", self._reap, name, max(1.0, lease / 10))) for name in self._router.databases),
        ]
        try:
            await asyncio.gather(*claiming, return_exceptions=True)
            await self._drain()
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            for threads in (*self._threads.values(), *self._renewal_threads.values()):
                threads.shutdown(wait=False)
        if self._fault is not None:
            raise self._fault

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_fault)
        return task

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = self._fault or fault
            self.stop()

    # Claim

    async def _claim_until_stopped(self, database: str) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                rest = await self._claim_round(database)
                failures = 0
            except BillingShardsError as error:
                failures += 1
                telemetry.LOOP_ERRORS.labels("claim").inc()
                _log.warning("claim_failed", database=database, error=str(error), failures=failures)
                rest = _backoff(failures)
            await self._sleep(rest)

    async def _claim_round(self, database: str) -> float:
        """Look which lanes have due jobs and claim until none is left; seconds to rest before the next look."""
        shards = self._router.by_database(self._shards).get(database)
        if self._paused or not shards:
            return self._spec.claimer.idle_poll_seconds
        due = await self._in_thread(database, partial(self._look, database, shards))
        ready = deque(entry for entry in due if entry.in_seconds <= 0)
        if not ready:
            soonest = min((entry.in_seconds for entry in due), default=None)
            return decide.rest(soonest, self._spec.claimer.idle_poll_seconds, random.random())  # noqa: S311
        random.shuffle(ready)  # claimers of the same shards should not meet at the same one
        while ready and not self._stop.is_set() and not self._paused:
            await self._claim_next(database, ready)
        return 0.0

    def _look(self, database: str, shards: Collection[int]) -> list[store.Due]:
        with self._router.connect(database) as connection:
            return store.next_due(connection, shards)

    async def _claim_next(self, database: str, ready: deque[store.Due]) -> None:
        entry = ready.popleft()
        settings = self._spec.claimer
        limit = min(settings.batch, await self._room_for(entry.lane, {other.lane for other in ready}))
        if limit == 0:
            return
        claim = partial(
            store.claim,
            self._router,
            entry.shard,
            entry.lane,
            limit=limit,
            lease_seconds=settings.lease_seconds,
            provider=self._lanes.provider(entry.lane),
        )
        jobs: list[Job] = []
        self._held.reserve(entry.lane, limit)
        try:
            jobs = await self._in_thread(database, claim)
        finally:
            self._held.claimed(entry.lane, limit, jobs)
        telemetry.JOBS_CLAIMED.labels(self._lanes.label(entry.lane)).inc(len(jobs))
        if len(jobs) == limit:
            ready.append(entry)
        for job in jobs:
            self._claimed.put_nowait(job)

    async def _room_for(self, lane: Lane, due: Collection[Lane]) -> int:
        """Wait until a worthwhile claim of `lane` fits; how many. 0 when told to stop."""
        settings = self._spec.claimer
        worthwhile = min(settings.batch, max(1, settings.in_flight // 4), max(1, self._held.share(lane)))
        while not self._stop.is_set():
            if room := self._held.take(lane, due, worthwhile):
                return room
            await self._held.change()
        return 0

    # Charge

    async def _charge_forever(self) -> None:
        while True:
            job = await self._claimed.get()
            outcome = await charge(self._providers.named(job.provider), job)
            self._outcomes[job.shard].append(Result(job=job, outcome=outcome, draw=random.random()))  # noqa: S311
            if job.shard not in self._settling:
                self._settling[job.shard] = self._task(self._settle(job.shard))

    # Settle

    async def _settle(self, shard: int) -> None:
        """Settle a shard's outcomes batch by batch until none is left."""
        try:
            while self._outcomes[shard]:
                results, self._outcomes[shard] = self._outcomes[shard], []
                await self._settle_batch(shard, results)
        finally:
            del self._settling[shard]

    async def _settle_batch(self, shard: int, results: list[Result]) -> None:
        """Commit one batch, however long the database is away: the outcomes are known nowhere else. Leases are renewed
        meanwhile; where they are lost all the same, the next holder asks the provider.
        """
        write = partial(settle, self._router, shard, results, policy=self._spec.retry)
        failures = 0
        while True:
            try:
                await self._in_thread(self._router.owner(shard).name, write)
                break
            except BillingShardsError as error:
                failures += 1
                telemetry.LOOP_ERRORS.labels("settle").inc()
                _log.warning("settle_failed", shard=shard, error=str(error), jobs=len(results), failures=failures)
                await asyncio.sleep(_backoff(failures))
        self._held.drop(result.job for result in results)

    # Keep and take back

    async def _renew(self, database: str) -> None:
        held = [job for job in self._held.jobs.values() if self._router.owner(job.shard).name == database]
        if held:
            renew = partial(store.renew, self._renewals, held, lease_seconds=self._spec.claimer.lease_seconds)
            loop = asyncio.get_running_loop()
            renewed = await loop.run_in_executor(self._renewal_threads[database], renew)
            _log.debug("leases_renewed", database=database, held=len(held), renewed=renewed)

    async def _reap(self, database: str) -> None:
        shards = self._router.by_database(self._shards).get(database)
        if shards:
            await self._in_thread(database, partial(reap, self._router, database, shards, settings=self._spec.claimer))

    async def _forever(self, name: str, step: Callable[[str], Awaitable[None]], database: str, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds * random.uniform(0.8, 1))  # noqa: S311
            try:
                await step(database)
            except BillingShardsError as error:
                telemetry.LOOP_ERRORS.labels(name).inc()
                _log.warning("loop_failed", loop=name, database=database, error=str(error))

    # Stop

    async def _drain(self) -> None:
        """Let charges finish and settle them; what has not begun, or does not finish in time, is given back."""
        _log.info("draining", held=len(self._held.jobs))
        while not self._claimed.empty():
            await self._give_back([self._claimed.get_nowait() for _ in range(self._claimed.qsize())])
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while self._held.jobs and self._fault is None:
                    await self._held.change()
        for task in self._settling.values():
            task.cancel()
        await self._give_back(list(self._held.jobs.values()))

    async def _give_back(self, jobs: Sequence[Job]) -> None:
        """Best effort: a database that is away has the leases, which end by themselves."""
        for database in self._router.databases:
            mine = [job for job in jobs if self._router.owner(job.shard).name == database]
            if not mine:
                continue
            try:
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._in_thread(database, partial(store.release, self._router, mine))
            except (BillingShardsError, TimeoutError) as error:
                _log.warning("release_failed", database=database, jobs=len(mine), error=str(error) or type(error).__name__)
            else:
                _log.info("jobs_released", database=database, jobs=len(mine))
            self._held.drop(mine)

    # Helpers

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)

    async def _in_thread(self, database: str, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads[database], work)


def _backoff(failures: int) -> float:
    longest = min(_BACKOFF_SECONDS_MAX, 0.2 * 2.0**failures)
    return longest * random.uniform(0.5, 1)  # noqa: S311


async def work(settings: ProcessSettings) -> None:
    """The claimer of a pod: the shards of its Deployment, until SIGTERM."""
    shard_set = process.from_settings(settings)
    probes = process.Probes()
    stop = asyncio.Event()
    process.stop_on_signals(stop.set)
    last = min(settings.last_shard, shard_set.spec.shard_count - 1)
    async with probes.serve(settings.metrics_port):
        router = await process.until_usable(lambda: process.router(shard_set, pool_size=_THREADS), stop)
        renewals = await process.until_usable(lambda: process.router(shard_set, pool_size=1), stop)
        if router is None or renewals is None:
            return
        providers = process.providers(shard_set)
        claimer = Claimer(shard_set.spec, router, renewals, providers, range(settings.first_shard, last + 1))
        process.stop_on_signals(claimer.stop)
        watch = asyncio.create_task(process.watch_paused(settings, claimer.pause))
        probes.ready = True
        _log.info("claimer_started", first_shard=settings.first_shard, last_shard=last)
        try:
            await claimer.run()
        finally:
            probes.ready = False
            watch.cancel()
            await providers.close()
            router.close()
            renewals.close()


def main(settings: ProcessSettings) -> int:
    """Run the claimer process; its exit code."""
    return process.run_process(settings, work)
