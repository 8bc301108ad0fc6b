"""`python -m tests.simulation --seeds 10000 --first-seed 1`: many seeds, half of them in each of two processes."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.simulate import run_parallel


def main() -> int:
    """Exit code 1 where a seed failed."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    summary = run_parallel(range(options.first_seed, options.first_seed + options.seeds), options.processes)
    for text in (*summary.failed, *summary.lines()[:3]):
        print(text)  # noqa: T201
    print(f"{(time.monotonic() - started) / max(1, summary.seeds):.3f} s a seed with {options.processes} processes")  # noqa: T201
    for text in summary.lines()[3:]:
        print(text)  # noqa: T201
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
