"""What a claimer process holds claimed, and the room it has for more. Of one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress

from billing_shards import telemetry
from billing_shards.jobs import decide
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Job, Lane


class Held:
    """Jobs by shard and id, and how many of each lane, those included that are being claimed."""

    def __init__(self, limit: int, batch: int, lanes: Lanes) -> None:
        self.jobs: dict[tuple[int, int], Job] = {}
        self._limit = limit
        self._lanes = lanes
        self._shares = decide.shares(limit, {lane: lanes.weight(lane) for lane in lanes})
        self._worthwhile = {lane: decide.worthwhile(batch, limit, share) for lane, share in self._shares.items()}
        self._counts: Counter[Lane] = Counter()
        self._due: dict[str, Collection[Lane]] = {}
        self._changed = asyncio.Event()

    def note_due(self, database: str, lanes: Iterable[Lane]) -> None:
        """These lanes have due jobs on a database: their shares are kept free of the others, whichever database these are on."""
        self._due[database] = frozenset(self._lanes.counted(lane) for lane in lanes)

    def choose(self, lanes: Iterable[Lane]) -> tuple[Lane, int] | None:
        """The lane, of those that have room for a worthwhile claim, that uses the least of its share; and how much room.

        So a lane whose jobs do not come back holds up no other. None where there is no such lane.
        """
        for lane in sorted(lanes, key=self._used):
            counted = self._lanes.counted(lane)
            found = decide.room(counted, self._counts, self._all_due(), self._limit, self._shares)
            if found >= self._worthwhile[counted] or (found and not self._counts.total()):
                return lane, found
        return None

    def _used(self, lane: Lane) -> float:
        counted = self._lanes.counted(lane)
        return self._counts[counted] / max(1, self._shares[counted])

    def _all_due(self) -> set[Lane]:
        return {lane for lanes in self._due.values() for lane in lanes}

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

    async def change(self, seconds: float | None = None) -> bool:
        """Wait for `wake`, at most `seconds`; whether it came."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
                return True
        return False
