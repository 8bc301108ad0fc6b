"""The claimer process: claim → charge → settle, with the leases renewed and the lost ones reaped.

SQL is sync and runs in threads; charges are asyncio tasks. Nothing waits for a full batch: while one settlement of a shard is
being committed the next outcomes gather, so batches grow with the load by themselves.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog

from billing_shards import process, telemetry
from billing_shards.errors import BillingShardsError, DatabaseError
from billing_shards.jobs import decide, store
from billing_shards.jobs.agenda import Agenda
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

_SETTLING_THREADS = 4  # and one that claims: a settlement that waits for a lock does not hold up the claims of other shards
CONNECTIONS = _SETTLING_THREADS + 1
"""To each database, beside the one for renewals."""
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
        self._held = Held(spec.claimer.in_flight, spec.claimer.batch, self._lanes)
        self._waiting = Waiting(spec.claimer.workers, spec.claimer.in_flight, self._lanes)
        self._outcomes: defaultdict[int, list[Result]] = defaultdict(list)
        self._settling: dict[int, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._set_aside: dict[int, float] = {}
        self._refusals: Counter[int] = Counter()
        self._settling_threads = self._threads_of("settle", _SETTLING_THREADS)
        self._claiming_threads = self._threads_of("claim", 1)
        self._renewal_threads = self._threads_of("renew", 1)
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
            for threads in (self._settling_threads, self._claiming_threads, self._renewal_threads):
                for pool in threads.values():
                    pool.shutdown(wait=False)
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
                self._held.note_due(database, ())  # no share is kept for a database that is away
                telemetry.LOOP_ERRORS.labels("claim").inc()
                _log.warning("claim_failed", database=database, error=str(error), failures=failures)
                rest = _backoff(failures)
            await self._sleep(rest)

    async def _claim_round(self, database: str) -> float:
        """Look which lanes have due jobs, and claim; seconds to rest before the next look."""
        longest = self._spec.claimer.idle_poll_seconds
        shards = self._router.by_database(self._shards).get(database)
        if self._paused or not shards:
            return longest
        now = asyncio.get_running_loop().time()
        able = [shard for shard in shards if self._set_aside.get(shard, 0.0) <= now]
        due = await self._in_thread(self._claiming_threads[database], partial(self._look, database, able)) if able else []
        ready = [entry for entry in due if entry.in_seconds <= 0]
        if not ready:
            self._held.note_due(database, ())
            soonest = min((entry.in_seconds for entry in due), default=None)
            return decide.rest(soonest, longest, random.random())  # noqa: S311
        random.shuffle(ready)  # claimers of the same shards should not meet at the same one
        await self._claim_all(database, Agenda(ready), until=now + longest)
        return 0.0

    def _look(self, database: str, shards: Collection[int]) -> list[store.Due]:
        with self._router.connect(database) as connection:
            return store.next_due(connection, shards)

    async def _claim_all(self, database: str, agenda: Agenda, *, until: float) -> None:
        """Claim what the agenda lists, always of a lane that has room: one that has none waits, and no other behind it.

        Not for long: meanwhile jobs of other lanes may have fallen due. Lanes whose provider would be sent nothing are left out:
        their jobs would only be claimed and given back, again and again.
        """
        clock = asyncio.get_running_loop().time
        while agenda and not self._stop.is_set() and not self._paused:
            lanes = [lane for lane in agenda.lanes if not self._providers.held_back_seconds(self._lanes.provider(lane))]
            self._held.note_due(database, lanes)
            chosen = self._held.choose(lanes)
            if chosen is not None:
                lane, room = chosen
                await self._claim(database, agenda, agenda.take(lane), min(room, self._spec.claimer.batch))
            elif clock() < until:
                await self._held.change(until - clock())
            if clock() >= until:
                return

    async def _claim(self, database: str, agenda: Agenda, entry: store.Due, limit: int) -> None:
        """Claim from a lane of a shard. A shard that refuses is left alone for a while; a database that does, raises."""
        claim = partial(
            store.claim,
            self._router,
            entry.shard,
            entry.lane,
            limit=limit,
            lease_seconds=self._spec.claimer.lease_seconds,
            provider=self._lanes.provider(entry.lane),
            since=entry.at,
        )
        jobs: list[Job] = []
        self._held.reserve(entry.lane, limit)
        try:
            jobs = await self._in_thread(self._claiming_threads[database], claim)
        except DatabaseError:
            raise
        except BillingShardsError as error:
            self._leave_alone(entry.shard, error)
            return
        finally:
            self._held.claimed(entry.lane, limit, jobs)
        self._refusals.pop(entry.shard, None)
        telemetry.JOBS_CLAIMED.labels(self._lanes.label(entry.lane)).inc(len(jobs))
        if len(jobs) == limit:
            agenda.again(entry)
        self._waiting.put(jobs)

    def _leave_alone(self, shard: int, error: BillingShardsError) -> None:
        self._refusals[shard] += 1
        self._set_aside[shard] = asyncio.get_running_loop().time() + _backoff(self._refusals[shard])
        telemetry.LOOP_ERRORS.labels("claim").inc()
        _log.warning("claim_failed", shard=shard, error=str(error), failures=self._refusals[shard])

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
                await asyncio.sleep(_backoff(failures))
        self._held.drop(result.job for result in results)

    # Keep and take back

    async def _renew(self, database: str) -> None:
        held = [job for job in self._held.jobs.values() if self._router.owner(job.shard).name == database]
        if held:
            renew = partial(store.renew, self._renewals, held, lease_seconds=self._spec.claimer.lease_seconds)
            renewed = await self._in_thread(self._renewal_threads[database], renew)
            _log.debug("leases_renewed", database=database, held=len(held), renewed=renewed)

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
                    await self._in_thread(self._claiming_threads[database], partial(store.release, self._router, mine))
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

    def _threads_of(self, kind: str, count: int) -> dict[str, ThreadPoolExecutor]:
        return {name: ThreadPoolExecutor(count, thread_name_prefix=f"{kind}-{name}") for name in self._router.databases}

    async def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)


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
