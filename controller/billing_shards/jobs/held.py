"""What a claimer process holds claimed, and the room it has for more. Of one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable

from billing_shards import telemetry
from billing_shards.jobs import decide
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Job, Lane


class Held:
    """Jobs by shard and id, and how many of each lane, those included that are being claimed."""

    def __init__(self, limit: int, lanes: Lanes) -> None:
        self.jobs: dict[tuple[int, int], Job] = {}
        self._limit = limit
        self._lanes = lanes
        self._weights = {lane: lanes.weight(lane) for lane in lanes}
        self._counts: Counter[Lane] = Counter()
        self._changed = asyncio.Event()

    def take(self, lane: Lane, due: Collection[Lane], worthwhile: int) -> int:
        """Reserve room for a claim of at least `worthwhile` jobs, or of any where nothing is held; 0 where there is none."""
        waiting = {self._lanes.counted(other) for other in due}
        room = decide.room(self._lanes.counted(lane), self._counts, waiting, self._limit, self._weights)
        if room < worthwhile and self._counts.total() > 0:
            return 0
        return room

    def share(self, lane: Lane) -> int:
        """The jobs that the lane is sure of."""
        return decide.share_of(self._lanes.counted(lane), self._limit, self._weights)

    def reserve(self, lane: Lane, count: int) -> None:
        """Count `count` jobs as held while they are being claimed: several databases are claimed from at once."""
        self._counts[self._lanes.counted(lane)] += count

    def claimed(self, lane: Lane, reserved: int, jobs: Iterable[Job]) -> None:
        """Turn a reservation into the jobs that came of it."""
        self._counts[self._lanes.counted(lane)] -= reserved
        for job in jobs:
            self.jobs[job.shard, job.id] = job
            self._counts[self._lanes.counted(lane)] += 1
        self.wake()

    def drop(self, jobs: Iterable[Job]) -> None:
        """These are settled, or given back."""
        for job in jobs:
            # A job whose lease was lost may have been claimed here again: then it is held under the newer token.
            held = self.jobs.get((job.shard, job.id))
            self._counts[self._lanes.counted(job.lane)] -= 1
            if held is not None and held.token == job.token:
                del self.jobs[job.shard, job.id]
        telemetry.IN_FLIGHT.set(len(self.jobs))
        self.wake()

    def wake(self) -> None:
        """Let those who wait for a change look again."""
        self._changed.set()

    async def change(self) -> None:
        """Wait for `wake`."""
        self._changed.clear()
        await self._changed.wait()
