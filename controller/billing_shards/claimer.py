"""The claimer process: claim → charge → settle, with the leases renewed and the lost ones reaped.

SQL is sync and runs in threads; charges are asyncio tasks. Nothing waits for a full batch: while one settlement of a shard is
being committed the next outcomes gather, so batches grow with the load by themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from billing_shards import process, telemetry
from billing_shards.errors import BillingShardsError
from billing_shards.jobs import decide, store
from billing_shards.jobs.model import Job, Lane
from billing_shards.payments.charge import charge
from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.reap import reap
from billing_shards.payments.settle import Result, settle
from billing_shards.settings import ProcessSettings, ShardSetSpec
from billing_shards.shards.transactions import ShardRouter

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_THREADS = 4
_BACKOFF_SECONDS_MAX = 10.0
_DRAIN_SECONDS = 40.0  # of the pod's 60 s of grace


@dataclass(slots=True)
class _Held:
    """What this process holds claimed."""

    jobs: dict[tuple[int, int], Job]
    lanes: Counter[Lane]

    def add(self, job: Job) -> None:
        self.jobs[job.shard, job.id] = job
        self.lanes[job.lane] += 1

    def drop(self, job: Job) -> None:
        # A job whose lease was lost may have been claimed here again: then it is held under the newer token.
        if (held := self.jobs.get((job.shard, job.id))) is not None and held.token == job.token:
            del self.jobs[job.shard, job.id]
            self.lanes[job.lane] -= 1


class Claimer:
    """Works the queue of `shards` until told to stop.

    `renewals` is a router of its own: leases are renewed on connections that busy workers cannot use up.
    """

    def __init__(
        self,
        spec: ShardSetSpec,
        router: ShardRouter,
        renewals: ShardRouter,
        gateway: PaymentGateway,
        shards: Sequence[int],
    ) -> None:
        self._spec = spec
        self._router = router
        self._renewals = renewals
        self._gateway = gateway
        self._shards = shards
        self._held = _Held(jobs={}, lanes=Counter())
        self._outcomes: defaultdict[int, list[Result]] = defaultdict(list)
        self._settling: dict[int, asyncio.Task[None]] = {}
        self._charges: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._stop = asyncio.Event()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sql")
        self._renewal_thread = ThreadPoolExecutor(1, thread_name_prefix="renewal")
        self._fault: BaseException | None = None
        self._paused = spec.paused

    def stop(self) -> None:
        """Claim nothing more; `run` returns when what is under way is finished or given back."""
        self._stop.set()
        self._room.set()

    def pause(self, paused: bool) -> None:
        """Claim nothing while paused."""
        self._paused = paused

    async def run(self) -> None:
        """Work until `stop`. Failures of databases and provider are logged and waited out; a fault of our own ends the process:
        leases bring its jobs back, and a job that ends process after process goes to review.
        """
        loops = [
            asyncio.create_task(self._forever("renew", self._renew, self._spec.claimer.lease_seconds / 3)),
            asyncio.create_task(self._forever("reap", self._reap, max(1.0, self._spec.claimer.lease_seconds / 10))),
        ]
        for loop in loops:
            loop.add_done_callback(self._note_fault)
        try:
            await self._claim_until_stopped()
            await self._drain()
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            self._threads.shutdown()
            self._renewal_thread.shutdown()
        if self._fault is not None:
            raise self._fault

    # Claim

    async def _claim_until_stopped(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                rest = await self._claim_round()
                failures = 0
            except BillingShardsError as error:
                failures += 1
                telemetry.LOOP_ERRORS.labels("claim").inc()
                _log.warning("claim_failed", error=str(error), failures=failures)
                rest = min(_BACKOFF_SECONDS_MAX, 0.2 * 2**failures) * random.uniform(0.5, 1)  # noqa: S311
            await self._sleep(rest)

    async def _claim_round(self) -> float:
        """Look which lanes have due jobs and claim until none is left; seconds to rest before the next look."""
        if self._paused:
            return self._spec.claimer.idle_poll_seconds
        due = await self._look()
        ready = deque(entry for entry in due if entry.in_seconds <= 0)
        if not ready:
            soonest = min((entry.in_seconds for entry in due), default=None)
            return decide.rest(soonest, self._spec.claimer.idle_poll_seconds, random.random())  # noqa: S311
        while ready and not self._stop.is_set():
            await self._claim_next(ready)
        return 0.0

    async def _look(self) -> list[store.Due]:
        groups = self._router.by_database(self._shards)
        looks = [self._in_thread(partial(self._look_at, name, shards)) for name, shards in groups.items()]
        due = [entry for found in await asyncio.gather(*looks) for entry in found]
        random.shuffle(due)  # claimers of the same shards should not meet at the same one
        return due

    def _look_at(self, database: str, shards: Collection[int]) -> list[store.Due]:
        with self._router.connect(database) as connection:
            return store.next_due(connection, shards)

    async def _claim_next(self, ready: deque[store.Due]) -> None:
        entry = ready.popleft()
        settings = self._spec.claimer
        limit = min(settings.batch, await self._room_for(entry.lane, {other.lane for other in ready}))
        if limit == 0:
            return
        jobs = await self._in_thread(
            partial(
                store.claim,
                self._router,
                entry.shard,
                entry.lane,
                limit=limit,
                lease_seconds=settings.lease_seconds,
                provider=self._gateway.name,
            )
        )
        if len(jobs) == limit:
            ready.append(entry)
        for job in jobs:
            self._start(job)

    async def _room_for(self, lane: Lane, due: Collection[Lane]) -> int:
        """Wait until a worthwhile claim of `lane` fits; how many. 0 when told to stop."""
        workers = self._spec.claimer.workers
        worthwhile = min(self._spec.claimer.batch, max(1, workers // 4))
        while not self._stop.is_set():
            room = decide.room(lane, self._held.lanes, due, workers)
            if room >= min(worthwhile, max(1, decide.share_of(lane, workers))) or (room and not self._held.jobs):
                return room
            self._room.clear()
            await self._room.wait()
        return 0

    # Charge

    def _start(self, job: Job) -> None:
        self._held.add(job)
        telemetry.IN_FLIGHT.set(len(self._held.jobs))
        task = asyncio.create_task(self._charge(job))
        self._charges.add(task)
        task.add_done_callback(self._charged)

    def _charged(self, task: asyncio.Task[None]) -> None:
        self._charges.discard(task)
        self._note_fault(task)

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault
            self.stop()

    async def _charge(self, job: Job) -> None:
        outcome = await charge(self._gateway, job)
        self._outcomes[job.shard].append(Result(job=job, outcome=outcome, draw=random.random()))  # noqa: S311
        self._settle_soon(job.shard)

    # Settle

    def _settle_soon(self, shard: int) -> None:
        if shard not in self._settling:
            task = self._settling[shard] = asyncio.create_task(self._settle(shard))
            task.add_done_callback(self._note_fault)

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
        failures = 0
        while True:
            try:
                await self._in_thread(
                    partial(settle, self._router, shard, results, provider=self._gateway.name, policy=self._spec.retry)
                )
                break
            except BillingShardsError as error:
                failures += 1
                telemetry.LOOP_ERRORS.labels("settle").inc()
                _log.warning("settle_failed", shard=shard, error=str(error), jobs=len(results), failures=failures)
                await asyncio.sleep(min(_BACKOFF_SECONDS_MAX, 0.2 * 2**failures) * random.uniform(0.5, 1))  # noqa: S311
        for result in results:
            self._held.drop(result.job)
        telemetry.IN_FLIGHT.set(len(self._held.jobs))
        self._room.set()

    # Keep and take back

    async def _renew(self) -> None:
        held = list(self._held.jobs.values())
        if held:
            lease = self._spec.claimer.lease_seconds
            loop = asyncio.get_running_loop()
            work = partial(store.renew, self._renewals, held, lease_seconds=lease)
            renewed = await loop.run_in_executor(self._renewal_thread, work)
            _log.debug("leases_renewed", held=len(held), renewed=renewed)

    async def _reap(self) -> None:
        for database, shards in self._router.by_database(self._shards).items():
            await self._in_thread(partial(reap, self._router, database, shards, settings=self._spec.claimer))

    async def _forever(self, name: str, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds * random.uniform(0.8, 1))  # noqa: S311
            try:
                await step()
            except BillingShardsError as error:
                telemetry.LOOP_ERRORS.labels(name).inc()
                _log.warning("loop_failed", loop=name, error=str(error))

    # Stop

    async def _drain(self) -> None:
        """Let charges finish and settle them; what does not finish in time is given back for others to resolve."""
        _log.info("draining", held=len(self._held.jobs))
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while self._charges or self._settling:
                    await asyncio.wait([*self._charges, *self._settling.values()])
        for task in [*self._charges, *self._settling.values()]:
            task.cancel()
        left = list(self._held.jobs.values())
        if left:
            try:
                await self._in_thread(partial(store.release, self._router, left))
            except BillingShardsError as error:
                _log.warning("release_failed", error=str(error), jobs=len(left))
        _log.info("drained", released=len(left))

    # Helpers

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


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
        gateway = process.gateway(shard_set)
        claimer = Claimer(shard_set.spec, router, renewals, gateway, range(settings.first_shard, last + 1))
        process.stop_on_signals(claimer.stop)
        watch = asyncio.create_task(process.watch_paused(settings, claimer.pause))
        probes.ready = True
        _log.info("claimer_started", first_shard=settings.first_shard, last_shard=last)
        try:
            await claimer.run()
        finally:
            probes.ready = False
            watch.cancel()
            await gateway.close()
            router.close()
            renewals.close()


def main(settings: ProcessSettings) -> int:
    """Run the claimer process; its exit code."""
    return process.run_process(settings, work)
