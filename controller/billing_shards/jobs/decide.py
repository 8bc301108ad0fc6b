"""How a claimer shares its workers between lanes, and how long it rests. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from billing_shards.jobs.model import Lane

_IDLE_RESERVE = 4  # a lane without due jobs keeps this part of its share: what it lends may not come back soon
_REST_SECONDS_MIN = 0.01


def room(lane: Lane, in_flight: Mapping[Lane, int], due: Collection[Lane], limit: int, weights: Mapping[Lane, int]) -> int:
    """How many more jobs of `lane` a process may hold, where it may hold `limit` in all.

    Each lane with due jobs is sure of its share; a lane without any lends out the most of it.
    """
    kept = 0
    for other in weights:
        if other != lane:
            share = share_of(other, limit, weights)
            kept += max(0, (share if other in due else share // _IDLE_RESERVE) - in_flight.get(other, 0))
    return max(0, limit - sum(in_flight.values()) - kept)


def share_of(lane: Lane, limit: int, weights: Mapping[Lane, int]) -> int:
    """The jobs that a lane is sure of: at least one, where there are enough for all."""
    return max(1, limit * weights[lane] // sum(weights.values())) if limit >= len(weights) else 0


def rest(next_due_seconds: float | None, longest: float, draw: float) -> float:
    """Seconds to sleep until the next look: until the next known due job, but never longer than `longest`.

    `draw` in [0, 1) shortens the longest rest by up to a quarter, so that claimers started together drift apart.
    """
    cap = longest * (1 - 0.25 * draw)
    if next_due_seconds is None:
        return cap
    return min(cap, max(_REST_SECONDS_MIN, next_due_seconds))
