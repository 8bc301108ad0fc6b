"""Claimed jobs that wait for a worker. Of one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection

from billing_shards.jobs import decide
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Job, Lane

_WAKES = 8
"""Workers that are woken and have not run yet, at most. Each that finds a job wakes another: a job that is charged at once costs
no worker's waking, and hundreds that take long begin within a few rounds of the event loop.
"""


class Waiting:
    """Hands jobs to workers: in the order they came within a lane, and by the lanes' shares of the workers between them.

    Where more is held than there are workers, the jobs of a provider that hangs would else take one worker after the other.
    """

    def __init__(self, workers: int, in_flight: int, lanes: Lanes) -> None:
        self._workers = workers
        self._enough = in_flight <= workers  # whatever is held finds a worker: there is nothing to share
        self._lanes = lanes
        self._shares = decide.shares(workers, {lane: lanes.weight(lane) for lane in lanes})
        # Most of the time one lane alone has jobs: what it may have then never changes.
        self._alone = {lane: decide.room(lane, {}, (), workers, self._shares) for lane in self._shares}
        self._jobs: dict[Lane, deque[Job]] = {}
        self._charging: Counter[Lane] = Counter()
        self._charging_all = 0
        self._idle: deque[asyncio.Future[None]] = deque()
        self._woken = 0

    def put(self, jobs: Collection[Job]) -> None:
        """These wait from now on."""
        for job in jobs:
            self._jobs.setdefault(self._lanes.counted(job.lane), deque()).append(job)
        self._wake(len(jobs))

    async def take(self) -> Job:
        """The next job, for one worker, which says `done` when it has charged it."""
        while (job := self._next()) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            try:
                await waiter
            finally:
                self._woken -= not waiter.cancelled()
        if self._jobs:
            self._wake(1)
        return job

    def done(self, job: Job) -> None:
        """Its worker is free, and asks for the next one."""
        self._charging[self._lanes.counted(job.lane)] -= 1
        self._charging_all -= 1

    def take_all(self) -> list[Job]:
        """Every job that no worker has begun; none waits any more."""
        left = [job for jobs in self._jobs.values() for job in jobs]
        self._jobs.clear()
        return left

    def _wake(self, most: int) -> None:
        while self._idle and most and self._woken < _WAKES:
            waiter = self._idle.popleft()
            if not waiter.done():  # one that was cancelled waits no more
                waiter.set_result(None)
                self._woken += 1
                most -= 1

    def _next(self) -> Job | None:
        lane = self._lane()
        if lane is None:
            return None
        jobs = self._jobs[lane]
        job = jobs.popleft()
        if not jobs:
            del self._jobs[lane]
        self._charging[lane] += 1
        self._charging_all += 1
        return job

    def _lane(self) -> Lane | None:
        if self._enough:
            return next(iter(self._jobs), None)
        if len(self._jobs) == 1:
            (lane,) = self._jobs
            if self._charging[lane] == self._charging_all:
                return lane if self._charging_all < self._alone[lane] else None
        for lane in sorted(self._jobs, key=self._used):
            if decide.room(lane, self._charging, self._jobs.keys(), self._workers, self._shares):
                return lane
        return None

    def _used(self, lane: Lane) -> float:
        return self._charging[lane] / max(1, self._shares[lane])
