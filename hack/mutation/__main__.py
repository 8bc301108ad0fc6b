"""`python -m hack.mutation [MODULE …]`: the score of each module, and its survivors.

Those that docs/mutation.md explains are known. Exit code 1 where another one survives.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from hack.mutation import runner
from hack.mutation.mutants import mutants
from hack.mutation.runner import End
from hack.mutation.targets import TARGETS

_ROOT = Path(__file__).parents[2]
_EXPLAINED = _ROOT / "docs" / "mutation.md"


def _path(module: str) -> Path:
    return _ROOT / "controller" / "billing_shards" / (module.replace(".", "/") + ".py")


def _tests(module: str) -> list[str]:
    files = [_ROOT / "tests" / "unit" / f"{name}.py" for name in TARGETS[module]]
    return [str(file) for file in files if file.exists()]


def main() -> int:
    """The exit code."""
    modules = sys.argv[1:] or list(TARGETS)
    explained = _EXPLAINED.read_text()
    unexplained = total = killed = 0
    print("| module | mutants | killed | survived | score |\n| --- | --- | --- | --- | --- |")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), initializer=runner.preload) as pool:
        for module in modules:
            started = time.monotonic()
            source = _path(module).read_text()
            run = partial(runner.run, f"billing_shards.{module}", _path(module), _tests(module))
            if pool.submit(run, source).result() is not End.SURVIVED:
                raise SystemExit(f"{module}: its tests fail as it is")
            made = list(mutants(module, source))
            ends = list(pool.map(run, [mutant.source for mutant in made]))
            survivors = [mutant for mutant, end in zip(made, ends, strict=True) if end is End.SURVIVED]
            total, killed = total + len(made), killed + len(made) - len(survivors)
            score = (len(made) - len(survivors)) / max(1, len(made))
            print(f"| `{module}` | {len(made)} | {len(made) - len(survivors)} | {len(survivors)} | {score:.1%} |", flush=True)
            for survivor in survivors:
                known = survivor.key in explained
                unexplained += not known
                print(f"    {'known' if known else 'NEW'}  {survivor.key}  (line {survivor.line})", file=sys.stderr)
            print(f"    {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    print(f"| all | {total} | {killed} | {total - killed} | {killed / total:.1%} |")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
