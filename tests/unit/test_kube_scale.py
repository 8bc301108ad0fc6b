"""Scaling by the age of the oldest due job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.kube.model import ScaleMemory
from billing_shards.kube.scale import CALM_SECONDS, DOWN_EVERY_SECONDS, UP_EVERY_SECONDS, Load, decide
from billing_shards.settings import ClaimerSpec

SPEC = ClaimerSpec(min_replicas=1, max_replicas=4, target_backlog_age_seconds=60)
NAP = ClaimerSpec(min_replicas=0, max_replicas=4, target_backlog_age_seconds=60)
IDLE, FRESH, WARM, LATE = (
    Load(ready=0, oldest_seconds=0),
    Load(ready=9, oldest_seconds=5),
    Load(ready=9, oldest_seconds=40),
    Load(ready=9, oldest_seconds=61),
)
RESTED = ScaleMemory(late_at=0, scaled_at=0)
NOW = 10_000.0


@pytest.mark.parametrize(
    ("spec", "current", "load", "replicas"),
    [
        (SPEC, None, IDLE, 1),
        (SPEC, None, LATE, 1),
        (NAP, None, IDLE, 0),
        (NAP, None, FRESH, 1),
        (NAP, None, None, 1),
        (SPEC, 1, LATE, 2),
        (SPEC, 4, LATE, 4),
        (SPEC, 2, WARM, 2),
        (SPEC, 2, FRESH, 1),
        (SPEC, 2, IDLE, 1),
        (SPEC, 1, IDLE, 1),
        (NAP, 1, IDLE, 0),
        (NAP, 1, FRESH, 1),
        (NAP, 0, FRESH, 1),
        (NAP, 0, IDLE, 0),
        (SPEC, 9, IDLE, 4),
        (SPEC, 0, IDLE, 1),
    ],
)
def test_rested(spec: ClaimerSpec, current: int | None, load: Load | None, replicas: int) -> None:
    assert decide(current, load, spec, RESTED, NOW, paused=False)[0] == replicas


@pytest.mark.parametrize("current", [0, 1, 3])
@pytest.mark.parametrize("memory", [None, RESTED])
def test_a_source_that_is_down_changes_nothing(current: int, memory: ScaleMemory | None) -> None:
    assert decide(current, None, NAP, memory, NOW, paused=False)[0] == current


def test_a_paused_set_is_left_as_it_is_however_old_its_backlog() -> None:
    assert decide(2, LATE, SPEC, RESTED, NOW, paused=True)[0] == 2


def test_up_by_one_a_while_and_no_faster() -> None:
    first, memory = decide(1, LATE, SPEC, None, NOW, paused=False)
    second, memory = decide(first, LATE, SPEC, memory, NOW + UP_EVERY_SECONDS - 1, paused=False)
    third, _ = decide(second, LATE, SPEC, memory, NOW + UP_EVERY_SECONDS, paused=False)
    assert (first, second, third) == (2, 2, 3)


def test_down_only_after_a_calm_then_one_at_a_time() -> None:
    replicas, memory = decide(3, LATE, SPEC, ScaleMemory(late_at=0, scaled_at=NOW), NOW, paused=False)
    assert replicas == 3
    assert decide(3, IDLE, SPEC, memory, NOW + CALM_SECONDS - 1, paused=False)[0] == 3
    replicas, memory = decide(3, IDLE, SPEC, memory, NOW + CALM_SECONDS, paused=False)
    assert replicas == 2
    assert decide(2, IDLE, SPEC, memory, NOW + CALM_SECONDS + DOWN_EVERY_SECONDS - 1, paused=False)[0] == 2
    assert decide(2, IDLE, SPEC, memory, NOW + CALM_SECONDS + DOWN_EVERY_SECONDS, paused=False)[0] == 1


def test_a_restarted_operator_scales_up_at_once_and_down_late() -> None:
    assert decide(1, LATE, SPEC, None, NOW, paused=False)[0] == 2
    assert decide(2, IDLE, SPEC, None, NOW, paused=False)[0] == 2


loads = st.one_of(st.none(), st.builds(Load, ready=st.integers(0, 5), oldest_seconds=st.floats(0, 1000)))


@given(st.lists(st.tuples(loads, st.floats(0, 400)), max_size=30), st.integers(0, 3), st.integers(3, 6))
def test_replicas_stay_in_bounds_and_due_jobs_always_have_a_pod(
    looks: list[tuple[Load | None, float]], least: int, most: int
) -> None:
    spec = ClaimerSpec(min_replicas=least, max_replicas=most)
    current: int | None = None
    memory: ScaleMemory | None = None
    now = NOW
    for load, wait in looks:
        now += wait
        before = current
        current, memory = decide(before, load, spec, memory, now, paused=False)
        assert least <= current <= most
        if load is not None and load.ready:
            assert current >= 1
        if before is not None:
            assert abs(current - before) <= 1
