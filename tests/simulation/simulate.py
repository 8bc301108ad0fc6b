"""Seeds in a row, and what they came to."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mysql.shard_set import ShardSet
from tests.simulation import site
from tests.simulation.faults import Driver
from tests.simulation.verdict import Verdict, judge
from tests.simulation.world import Plan, World

_REPORT_SECONDS = 30


@dataclass(slots=True, kw_only=True)
class Summary:
    """Of many seeds."""

    seeds: int = 0
    steps: int = 0
    sql_steps: int = 0
    charges: int = 0
    refunds: int = 0
    double: int = 0
    lost: int = 0
    jobs: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    """A story for each seed that failed: what is wrong, and the trace that led there."""

    def add(self, other: Summary) -> None:
        """Add what another part of the seeds came to."""
        for name in ("seeds", "steps", "sql_steps", "charges", "refunds", "double", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.jobs.update(other.jobs)
        self.faults.update(other.faults)
        self.failed += other.failed

    def lines(self) -> list[str]:
        """For a person; the last two are what it is about."""
        ends = {2: "paid", 3: "given up", 4: "awaiting the customer", 5: "in review", 6: "purged"}
        jobs = ", ".join(f"{count} {ends.get(status, f'status {status}')}" for status, count in sorted(self.jobs.items()))
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        return [
            f"{self.seeds} seeds, {self.steps} steps ({self.sql_steps} of them on MySQL)",
            f"{self.charges} charges, {self.refunds} refunds",
            f"jobs: {jobs or 'none'}",
            f"faults: {faults or 'none'}",
            f"double charges: {self.double}",
            f"lost: {self.lost}",
        ]


def run_seed(
    seed: int, shard_set: ShardSet, driver: Driver, adjust: Callable[[Plan], Plan] = lambda plan: plan
) -> tuple[World, Verdict]:
    """One run from empty databases; `adjust` changes what the seed has chosen."""
    site.empty(shard_set)
    world = World(seed, shard_set, driver, adjust)
    world.run()
    return world, judge(world)


def run_seeds(
    seeds: Iterable[int], shard_set: ShardSet, *, on_seed: Callable[[Verdict], None] = lambda _: None, failures_max: int = 10
) -> Summary:
    """Run seeds one after the other. After `failures_max` that failed, the rest is left out."""
    summary, driver = Summary(), Driver()
    with site.silence():
        for seed in seeds:
            world, verdict = run_seed(seed, shard_set, driver)
            summary.seeds += 1
            summary.steps += world.steps
            summary.sql_steps += world.sql_steps
            summary.charges += verdict.charges
            summary.refunds += verdict.refunds
            summary.double += len(verdict.double)
            summary.lost += len(verdict.lost)
            summary.jobs.update(verdict.jobs)
            summary.faults.update({fault.value: count for fault, count in world.met.items() if count})
            if not verdict.sound:
                summary.failed.append(story(world, verdict))
            on_seed(verdict)
            if len(summary.failed) >= failures_max:
                break
    return summary


def run_parallel(seeds: range, processes: int) -> Summary:
    """The seeds in several processes, each with servers of its own."""
    count = max(1, min(processes, len(seeds)))
    summary = Summary()
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        for part in pool.map(run_part, [seeds[n::count] for n in range(count)]):
            summary.add(part)
    return summary


def _end_with_parent() -> None:
    """So do the servers that this process starts: whoever kills the simulator need not look for them."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def story(world: World, verdict: Verdict) -> str:
    """Everything that is needed to understand a failed seed."""
    wrong = "\n".join(f"  {line}" for line in (*verdict.double, *verdict.lost))
    trace = "\n".join(world.trace.lines)
    return f"seed {world.seed} failed (make simulate SEEDS=1 FIRST_SEED={world.seed}):\n{wrong}\n{trace}\n"


def run_part(seeds: Sequence[int]) -> Summary:
    """Seeds on servers of their own, for a process of its own; progress goes to standard error."""
    started, told, done = time.monotonic(), time.monotonic(), 0

    def progress(_: Verdict) -> None:
        nonlocal told, done
        done += 1
        if time.monotonic() >= told + _REPORT_SECONDS:
            told = time.monotonic()
            print(f"{done} of {len(seeds)} seeds, {(told - started) / done:.2f} s each", file=sys.stderr, flush=True)  # noqa: T201

    with TemporaryDirectory(prefix="billing-shards-simulation-") as folder, site.started(Path(folder)) as shard_set:
        return run_seeds(seeds, shard_set, on_seed=progress)
