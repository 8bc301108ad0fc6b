"""Claimed jobs that wait for a worker. Of one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable

from billing_shards.jobs import decide
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Job, Lane


class Waiting:
    """Hands jobs to workers: in the order they came within a lane, and by the lanes' shares of the workers between them.

    Where more is held than there are workers, the jobs of a provider that hangs would else take one worker after the other.
    """

    def __init__(self, workers: int, in_flight: int, lanes: Lanes) -> None:
        self._workers = workers
        self._enough = in_flight <= workers  # whatever is held finds a worker: there is nothing to share
        self._lanes = lanes
        self._shares = decide.shares(workers, {lane: lanes.weight(lane) for lane in lanes})
        self._jobs: dict[Lane, deque[Job]] = {}
        self._charging: Counter[Lane] = Counter()
        self._idle: deque[asyncio.Future[None]] = deque()

    def put(self, jobs: Iterable[Job]) -> None:
        """These wait from now on."""
        for job in jobs:
            self._jobs.setdefault(self._lanes.counted(job.lane), deque()).append(job)
            self._wake()

    async def take(self) -> Job:
        """The next job, for one worker, which says `done` when it has charged it."""
        while (job := self._next()) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter
        if self._jobs and not self._enough:
            self._wake()  # what has just changed may have made room for another
        return job

    def done(self, job: Job) -> None:
        """Its worker is free, and asks for the next one."""
        self._charging[self._lanes.counted(job.lane)] -= 1

    def take_all(self) -> list[Job]:
        """Every job that no worker has begun; none waits any more."""
        left = [job for jobs in self._jobs.values() for job in jobs]
        self._jobs.clear()
        return left

    def _wake(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():  # one that was cancelled waits no more
                waiter.set_result(None)
                return

    def _next(self) -> Job | None:
        lane = self._lane()
        if lane is None:
            return None
        jobs = self._jobs[lane]
        job = jobs.popleft()
        if not jobs:
            del self._jobs[lane]
        self._charging[lane] += 1
        return job

    def _lane(self) -> Lane | None:
        if self._enough:
            return next(iter(self._jobs), None)
        for lane in sorted(self._jobs, key=self._used):
            if decide.room(lane, self._charging, self._jobs.keys(), self._workers, self._shares):
                return lane
        return None

    def _used(self, lane: Lane) -> float:
        return self._charging[lane] / max(1, self._shares[lane])
