"""The first 200 seeds, and that a seed is one run."""

from __future__ import annotations

import sys

import pytest

from tests.mysql.shard_set import ShardSet
from tests.simulation.faults import Driver, Fault
from tests.simulation.simulate import run_parallel, run_seed

SEEDS = range(1, 201)


def test_nothing_is_charged_twice_or_lost_whatever_fails(capsys: pytest.CaptureFixture[str]) -> None:
    summary = run_parallel(SEEDS, processes=2)
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *summary.lines(), ""]))
    assert not summary.failed, "\n\n".join(summary.failed)
    assert summary.seeds == len(SEEDS)
    # It must have been worth while: charges were made, every fault was met, and jobs came to every end.
    assert summary.charges > len(SEEDS)
    assert set(summary.faults) == {fault.value for fault in Fault}
    assert set(summary.jobs) == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("seed", [3, 10])
def test_a_seed_is_the_same_run_each_time(simulated: ShardSet, seed: int) -> None:
    traces = [run_seed(seed, simulated, Driver())[0].trace.lines for _ in range(2)]
    assert traces[0] == traces[1]
