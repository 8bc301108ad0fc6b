"""The claimer process: claim → charge → settle, with the leases renewed and the lost ones reaped.

SQL is sync and runs in threads; charges are asyncio tasks. Nothing waits for a full batch: while one settlement of a shard is
being committed the next outcomes gather, so batches grow with the load by themselves.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog

from billing_shards import process, telemetry
from billing_shards.errors import BillingShardsError, DatabaseError
from billing_shards.jobs import decide, store
from billing_shards.jobs.claims import Claims
from billing_shards.jobs.held import Held
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Job
from billing_shards.jobs.waiting import Waiting
from billing_shards.payments.charge import charge
from billing_shards.payments.providers import Providers
from billing_shards.payments.reap import reap
from billing_shards.payments.settle import Result, settle
from billing_shards.settings import ProcessSettings, ShardSetSpec
from billing_shards.shards.transactions import ShardRouter

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_SETTLING_THREADS = 4
CONNECTIONS = _SETTLING_THREADS + 1  # the one more for claims: a settlement that waits for a lock does not hold them up
"""To each database, beside the one for renewals."""
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
        self._held = Held(spec.claimer.in_flight, spec.claimer.batch, self._lanes)
        self._waiting = Waiting(spec.claimer.workers, spec.claimer.in_flight, self._lanes)
        self._claims = Claims(spec, router, shards, held=self._held, waiting=self._waiting, held_back=providers.held_back_seconds)
        self._outcomes: defaultdict[int, list[Result]] = defaultdict(list)
        self._settling: dict[int, asyncio.Task[None]] = {}
        self._settling_threads = self._threads_of("settle", _SETTLING_THREADS)
        self._renewal_threads = self._threads_of("renew", 1)
        self._fault: BaseException | None = None

    def stop(self) -> None:
        """Claim nothing more; `run` returns when what is under way is finished or given back."""
        self._claims.stop()

    def pause(self, paused: bool) -> None:
        """Claim nothing while paused."""
        self._claims.pause(paused)

    async def run(self) -> None:
        """Work until `stop`. Failures of databases and provider are logged and waited out; a fault of our own ends the process:
        leases bring its jobs back, and a job that ends process after process goes to review.
        """
        gc.freeze()  # what start-up made is never garbage: jobs by the thousand would have it looked through again and again
        lease = self._spec.claimer.lease_seconds
        claiming = [self._task(self._claims.run(name)) for name in self._router.databases]
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
            self._claims.close()
            for threads in (*self._settling_threads.values(), *self._renewal_threads.values()):
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

    # Charge

    async def _charge_forever(self) -> None:
        while True:
            job = await self._waiting.take()
            outcome = await charge(self._providers.named(job.provider), job, service=self._lanes.service(job.lane))
            self._waiting.done(job)
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
                await self._in_thread(self._settling_threads[self._router.owner(shard).name], write)
                break
            except BillingShardsError as error:
                failures += 1
                telemetry.LOOP_ERRORS.labels("settle").inc()
                _log.warning("settle_failed", shard=shard, error=str(error), jobs=len(results), failures=failures)
                await asyncio.sleep(decide.backoff(failures, random.random()))  # noqa: S311
        self._held.drop(result.job for result in results)

    # Keep and take back

    async def _renew(self, database: str) -> None:
        held = [job for job in self._held.jobs.values() if self._router.owner(job.shard).name == database]
        if held:
            renewed = await self._in_thread(self._renewal_threads[database], partial(self._renew_all, held))
            _log.debug("leases_renewed", database=database, held=len(held), renewed=renewed)

    def _renew_all(self, held: Sequence[Job]) -> int:
        """Shard by shard: one that is being handed over must not cost the others their leases."""
        by_shard: defaultdict[int, list[Job]] = defaultdict(list)
        for job in held:
            by_shard[job.shard].append(job)
        renewed = 0
        for shard, jobs in by_shard.items():
            try:
                renewed += store.renew(self._renewals, jobs, lease_seconds=self._spec.claimer.lease_seconds)
            except DatabaseError:
                raise
            except BillingShardsError as error:
                telemetry.LOOP_ERRORS.labels("renew").inc()
                _log.warning("renewal_failed", shard=shard, error=str(error), jobs=len(jobs))
        return renewed

    async def _reap(self, database: str) -> None:
        shards = self._router.by_database(self._shards).get(database)
        if shards:
            take_back = partial(reap, self._router, database, shards, settings=self._spec.claimer)
            await self._in_thread(self._settling_threads[database], take_back)

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
        await self._give_back(self._waiting.take_all())
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
                    await self._in_thread(self._settling_threads[database], partial(store.release, self._router, mine))
            except (BillingShardsError, TimeoutError) as error:
                _log.warning("release_failed", database=database, jobs=len(mine), error=str(error) or type(error).__name__)
            else:
                _log.info("jobs_released", database=database, jobs=len(mine))
            self._held.drop(mine)

    # Helpers

    def _threads_of(self, kind: str, count: int) -> dict[str, ThreadPoolExecutor]:
        return {name: ThreadPoolExecutor(count, thread_name_prefix=f"{kind}-{name}") for name in self._router.databases}

    async def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)


async def work(settings: ProcessSettings) -> None:
    """The claimer of a pod: the shards of its Deployment, until SIGTERM."""
    shard_set = process.from_settings(settings)
    probes = process.Probes()
    stop = asyncio.Event()
    process.stop_on_signals(stop.set)
    last = min(settings.last_shard, shard_set.spec.shard_count - 1)
    async with probes.serve(settings.metrics_port):
        router = await process.until_usable(lambda: process.router(shard_set, pool_size=CONNECTIONS), stop)
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
