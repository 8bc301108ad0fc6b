"""How many pods a claimer Deployment should have, by the age of its oldest due job. Pure.

Up by one while jobs are late, down by one only after a long calm: a pod too many costs little, a charge too late is what
this is for. What cannot be seen changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from billing_shards.kube.model import ScaleMemory
from billing_shards.settings import ClaimerSpec

UP_EVERY_SECONDS = 30.0
"""A new pod is given this long to show before the next one."""
CALM_SECONDS = 300.0
"""No pod is taken away sooner than this after jobs were last late."""
DOWN_EVERY_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Due jobs of a Deployment's shards; None in its place: a database of theirs cannot be asked."""

    ready: int
    oldest_seconds: float


def decide(
    current: int | None, load: Load | None, spec: ClaimerSpec, memory: ScaleMemory | None, now: float, *, paused: bool
) -> tuple[int, ScaleMemory]:
    """The number of replicas, and what to remember. `current` is None for a Deployment that is not there yet."""
    known = memory or ScaleMemory(late_at=now, scaled_at=now - UP_EVERY_SECONDS)
    least = max(spec.min_replicas, 1 if load is not None and load.ready else 0)
    if current is None:
        return max(least, 1 if load is None else 0), known
    held = min(max(current, least), spec.max_replicas)
    if load is None or paused:
        return held, replace(known, late_at=now)
    if held != current:
        return held, replace(known, scaled_at=now)
    if load.ready and load.oldest_seconds > spec.target_backlog_age_seconds:
        return _up(held, spec, replace(known, late_at=now), now)
    if load.ready and load.oldest_seconds > spec.target_backlog_age_seconds / 2:
        return held, replace(known, late_at=now)  # neither late nor calm
    return _down(held, least, known, now)


def _up(held: int, spec: ClaimerSpec, memory: ScaleMemory, now: float) -> tuple[int, ScaleMemory]:
    if held >= spec.max_replicas or now - memory.scaled_at < UP_EVERY_SECONDS:
        return held, memory
    return held + 1, replace(memory, scaled_at=now)


def _down(held: int, least: int, memory: ScaleMemory, now: float) -> tuple[int, ScaleMemory]:
    calm = now - memory.late_at >= CALM_SECONDS and now - memory.scaled_at >= DOWN_EVERY_SECONDS
    if held <= least or not calm:
        return held, memory
    return held - 1, replace(memory, scaled_at=now)
