"""How a claimer shares its workers between lanes, and how long it rests. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from billing_shards.jobs.model import Lane

_SHARES = {Lane.RENEWAL: 3, Lane.RETRY: 1}
_REST_SECONDS_MIN = 0.01


def room(lane: Lane, in_flight: Mapping[Lane, int], due: Collection[Lane], workers: int) -> int:
    """How many more jobs of `lane` a process may hold.

    Each lane with due jobs is sure of its share of the workers; a lane without any lends its share out.
    """
    free = workers - sum(in_flight.values())
    kept = sum(max(0, share_of(other, workers) - in_flight.get(other, 0)) for other in due if other is not lane)
    return max(0, free - kept)


def share_of(lane: Lane, workers: int) -> int:
    """The workers that a lane is sure of: at least one, where there are enough for all."""
    return max(1, workers * _SHARES[lane] // sum(_SHARES.values())) if workers >= len(_SHARES) else 0


def rest(next_due_seconds: float | None, longest: float, draw: float) -> float:
    """Seconds to sleep until the next look: until the next known due job, but never longer than `longest`.

    `draw` in [0, 1) shortens the longest rest by up to a quarter, so that claimers started together drift apart.
    """
    cap = longest * (1 - 0.25 * draw)
    if next_due_seconds is None:
        return cap
    return min(cap, max(_REST_SECONDS_MIN, next_due_seconds))
