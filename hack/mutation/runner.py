"""Runs a module's tests against one mutant, in a fork."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType

_SECONDS_MAX = 90.0


class End(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed text."""

    def __init__(self, module: str, path: Path, source: str) -> None:
        self._module, self._path, self._source = module, path, source

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:  # noqa: ARG002
        if fullname != self._module:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=str(self._path))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:  # noqa: ARG002
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self._path)
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)  # noqa: S102 - that is what it is for


def preload() -> None:
    """Load what takes long, and nothing of ours: a child must import that anew."""
    import aiohttp  # noqa: F401, PLC0415
    import hypothesis  # noqa: PLC0415
    import pydantic_settings  # noqa: F401, PLC0415
    import pytest  # noqa: F401, PLC0415
    import sqlalchemy  # noqa: F401, PLC0415
    import structlog  # noqa: F401, PLC0415
    import tenacity  # noqa: F401, PLC0415

    # A mutant is killed by the first example that fails; the smallest one interests nobody.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    checks = list(hypothesis.HealthCheck)
    hypothesis.settings.register_profile(
        "mutation", max_examples=50, phases=phases, suppress_health_check=checks, derandomize=True, database=None, deadline=None
    )
    hypothesis.settings.load_profile("mutation")


def run(module: str, path: Path, tests: Sequence[str], source: str) -> End:
    """What the tests say of a text of a module."""
    child = os.fork()
    if child == 0:
        os._exit(_run_here(module, path, source, tests))
    deadline = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return End.SURVIVED if status == 0 else End.KILLED
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return End.TIMED_OUT


def _run_here(module: str, path: Path, source: str, tests: Sequence[str]) -> int:
    import pytest  # noqa: PLC0415

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.meta_path.insert(0, _Changed(module, path, source))
    try:
        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--assert=plain", "--tb=no", *tests]))
    except BaseException:  # noqa: BLE001 - a mutant may do anything
        return 1
