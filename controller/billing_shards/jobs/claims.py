"""The claim loop: one for each database, beside each other. It looks what is due, and claims where there is room."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

import structlog

from billing_shards import telemetry
from billing_shards.errors import BillingShardsError, DatabaseError
from billing_shards.jobs import decide, store
from billing_shards.jobs.agenda import Agenda
from billing_shards.jobs.held import Held
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Job
from billing_shards.jobs.waiting import Waiting
from billing_shards.settings import ShardSetSpec
from billing_shards.shards.transactions import ShardRouter

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class Claims:
    """Claims due jobs of `shards` into `held` and `waiting`, until told to stop. Of one event loop.

    Each database has a thread of its own for it. `held_back` says for how many seconds a provider would be sent nothing.
    """

    def __init__(
        self,
        spec: ShardSetSpec,
        router: ShardRouter,
        shards: Sequence[int],
        *,
        held: Held,
        waiting: Waiting,
        held_back: Callable[[str], float],
    ) -> None:
        self._spec = spec
        self._router = router
        self._shards = shards
        self._lanes = Lanes(spec)
        self._held = held
        self._waiting = waiting
        self._held_back = held_back
        self._stop = asyncio.Event()
        self._paused = spec.paused
        self._set_aside: dict[int, float] = {}
        self._refusals: Counter[int] = Counter()
        self._threads = {name: ThreadPoolExecutor(1, thread_name_prefix=f"claim-{name}") for name in router.databases}

    def stop(self) -> None:
        """Claim nothing more."""
        self._stop.set()
        self._held.wake()

    def pause(self, paused: bool) -> None:
        """Claim nothing while paused."""
        self._paused = paused

    def close(self) -> None:
        """Let the threads end."""
        for threads in self._threads.values():
            threads.shutdown(wait=False)

    async def run(self, database: str) -> None:
        """Work on one database until `stop`. Its failures are logged and waited out."""
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
                rest = decide.backoff(failures, random.random())  # noqa: S311
            await self._sleep(rest)

    async def _claim_round(self, database: str) -> float:
        """Look which lanes have due jobs, and claim; seconds to rest before the next look."""
        longest = self._spec.claimer.idle_poll_seconds
        shards = self._router.by_database(self._shards).get(database)
        if self._paused or not shards:
            return longest
        now = asyncio.get_running_loop().time()
        able = [shard for shard in shards if self._set_aside.get(shard, 0.0) <= now]
        due = await self._in_thread(self._threads[database], partial(self._look, database, able)) if able else []
        ready = [entry for entry in due if entry.in_seconds <= 0]
        if not ready:
            self._held.note_due(database, ())
            soonest = min((entry.in_seconds for entry in due), default=None)
            return decide.rest(soonest, longest, random.random())  # noqa: S311
        random.shuffle(ready)  # claimers of the same shards should not meet at the same one
        if await self._claim_all(database, Agenda(ready), until=now + longest):
            return 0.0
        # Others are claiming it, and have not committed yet: to look again at once would take the database's time from them.
        return decide.rest(0.0, longest, random.random())  # noqa: S311

    def _look(self, database: str, shards: Collection[int]) -> list[store.Due]:
        with self._router.connect(database) as connection:
            return store.next_due(connection, shards)

    async def _claim_all(self, database: str, agenda: Agenda, *, until: float) -> bool:
        """Claim what the agenda lists, always of a lane that has room: one that has none waits, and no other behind it. Whether
        any job came of it.

        Not for long: meanwhile jobs of other lanes may have fallen due. Lanes whose provider would be sent nothing are left out:
        their jobs would only be claimed and given back, again and again.
        """
        clock = asyncio.get_running_loop().time
        claimed = False
        while agenda and not self._stop.is_set() and not self._paused:
            lanes = [lane for lane in agenda.lanes if not self._held_back(self._lanes.provider(lane))]
            self._held.note_due(database, lanes)
            chosen = self._held.choose(lanes)
            if chosen is not None:
                lane, room = chosen
                claimed |= await self._claim(database, agenda, agenda.take(lane), min(room, self._spec.claimer.batch))
            elif clock() < until:
                await self._held.change(until - clock())
            if clock() >= until:
                break
        return claimed

    async def _claim(self, database: str, agenda: Agenda, entry: store.Due, limit: int) -> bool:
        """Claim from a lane of a shard; whether it gave any. A shard that refuses is left alone; a database that does, raises."""
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
            jobs, more = await self._in_thread(self._threads[database], claim)
        except DatabaseError:
            raise
        except BillingShardsError as error:
            self._leave_alone(entry.shard, error)
            return False
        finally:
            self._held.claimed(entry.lane, limit, jobs)
        self._refusals.pop(entry.shard, None)
        telemetry.JOBS_CLAIMED.labels(self._lanes.label(entry.lane)).inc(len(jobs))
        if more:
            agenda.again(entry)
        self._waiting.put(jobs)
        return bool(jobs)

    def _leave_alone(self, shard: int, error: BillingShardsError) -> None:
        self._refusals[shard] += 1
        rest = decide.backoff(self._refusals[shard], random.random())  # noqa: S311
        self._set_aside[shard] = asyncio.get_running_loop().time() + rest
        telemetry.LOOP_ERRORS.labels("claim").inc()
        _log.warning("claim_failed", shard=shard, error=str(error), failures=self._refusals[shard])

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)

    async def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)
