"""What one look at a database found due: its lanes, each with the shards that have jobs in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from billing_shards.jobs.model import Lane
from billing_shards.jobs.store import Due


class Agenda:
    """Due lanes of shards, to be claimed from in turn."""

    def __init__(self, due: Iterable[Due]) -> None:
        self._by_lane: dict[Lane, deque[Due]] = {}
        for entry in due:
            self.again(entry)

    def __bool__(self) -> bool:
        return bool(self._by_lane)

    @property
    def lanes(self) -> Collection[Lane]:
        """Lanes with anything left."""
        return self._by_lane.keys()

    def take(self, lane: Lane) -> Due:
        """The next shard of a lane that has one left; it is on the agenda no more."""
        entries = self._by_lane[lane]
        entry = entries.popleft()
        if not entries:
            del self._by_lane[lane]
        return entry

    def again(self, entry: Due) -> None:
        """There is more of it: back at the end of its lane."""
        self._by_lane.setdefault(entry.lane, deque()).append(entry)
