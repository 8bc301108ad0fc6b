"""How a claimer shares what it holds, and its workers, between lanes, and how long it rests. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from billing_shards.jobs.model import Lane

_WORTHWHILE = 3  # a claim is a transaction: it waits until a part of the lane's share is free, and never for all of it
_REST_SECONDS_MIN = 0.01
_BACKOFF_SECONDS_MAX = 10.0


def shares(limit: int, weights: Mapping[Lane, int]) -> dict[Lane, int]:
    """What each lane is sure of, of `limit` in all, and together never more: at least one, where there are enough for all."""
    spare = limit - len(weights)
    if spare < 0:
        return dict.fromkeys(weights, 0)
    total = sum(weights.values())
    return {lane: 1 + spare * weight // total for lane, weight in weights.items()}


def room(lane: Lane, in_use: Mapping[Lane, int], due: Collection[Lane], limit: int, sure: Mapping[Lane, int]) -> int:
    """How many more of `limit` places `lane` may take, where each lane is `sure` of its share.

    A lane with jobs, due or in use, keeps its share for itself; a lane without any lends out a half of it. The other half is
    never lent: each lane may have that whatever the others owe one another.
    """
    kept = 0
    for other, share in sure.items():
        if other != lane:
            used = in_use.get(other, 0)
            kept += max(0, (share if used or other in due else _never_lent(share)) - used)
    return max(0, limit - sum(in_use.values()) - kept, _never_lent(sure[lane]) - in_use.get(lane, 0))


def _never_lent(share: int) -> int:
    """What is lent may not come back soon: its jobs may hang."""
    return (share + 1) // 2


def worthwhile(batch: int, limit: int, share: int) -> int:
    """The least room for which a claim is made, of a lane that is sure of `share` places of `limit`.

    Never more than what even an idle lane keeps: another lane's jobs, which hang, may have the rest.
    """
    return min(batch, max(1, limit // 4), max(1, share // _WORTHWHILE))


def rest(next_due_seconds: float | None, longest: float, draw: float) -> float:
    """Seconds to sleep until the next look: until the next known due job, but never longer than `longest`.

    `draw` in [0, 1) shortens the longest rest by up to a quarter, so that claimers started together drift apart.
    """
    cap = longest * (1 - 0.25 * draw)
    if next_due_seconds is None:
        return cap
    return min(cap, max(_REST_SECONDS_MIN, next_due_seconds))


def backoff(failures: int, draw: float) -> float:
    """Seconds to wait after so many failures in a row: twice as long each time, up to a bound. `draw` in [0, 1) shortens them."""
    return min(_BACKOFF_SECONDS_MAX, 0.2 * 2.0 ** min(failures, 10)) * (1 - 0.5 * draw)
