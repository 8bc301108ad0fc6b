"""Builds and runs the peers' harness (`src/`, `pom.xml`): Maven fetches the queues, the newest JDK of the machine compiles them.

db-scheduler needs Java 17; killbill-queue 0.27.2 is bytecode of Java 21, and is left out where there is no such JDK.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.cache import build_once, cache_dir, key_of
from hack.errors import ToolError
from hack.host import Words, ensure_commands, run

_HERE = Path(__file__).parent
_JVMS = Path("/usr/lib/jvm")
_LEAST = 17
_KILLBILL_LEAST = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Jdk:
    """A Java compiler and its machine."""

    home: Path
    version: int

    @property
    def runs_killbill(self) -> bool:
        """Whether it can load killbill-queue's classes."""
        return self.version >= _KILLBILL_LEAST


def newest_jdk() -> Jdk:
    """The newest JDK of the machine; Debian's default one is installed where there is none. Raises `ToolError`."""
    if not (found := list(_jdks())):
        ensure_commands({"javac": "default-jdk-headless"})
        found = list(_jdks())
    best = max(found, key=lambda jdk: jdk.version, default=None)
    if best is None or best.version < _LEAST:
        raise ToolError(f"the peers need a JDK of Java {_LEAST} or newer")
    return best


def _jdks() -> Iterator[Jdk]:
    javac = shutil.which("javac")
    homes = {Path(javac).resolve().parents[1]} if javac else set()
    homes |= {path.resolve() for path in _JVMS.glob("*") if (path / "bin" / "javac").exists()}
    if java_home := os.environ.get("JAVA_HOME"):
        homes.add(Path(java_home).resolve())
    for home in homes:
        words = run([home / "bin" / "javac", "-version"], what=f"Java version of {home}")
        if number := re.search(r"(\d+)", words):
            yield Jdk(home=home, version=int(number[1]))


def built(jdk: Jdk) -> Path:
    """The folder with the classes and jars, built at the first call (a minute)."""
    sources = sorted(_HERE.glob("src/**/*.java"))
    key = key_of(_HERE / "pom.xml", *sources, str(jdk.version))

    def build(folder: Path) -> None:
        ensure_commands({"mvn": "maven"})
        shutil.copytree(_HERE / "src", folder / "src")
        shutil.copy(_HERE / "pom.xml", folder)
        run(
            ["mvn", "--quiet", "--batch-mode", "--file", folder / "pom.xml", "package"],
            what="building the peers",
            env={"JAVA_HOME": str(jdk.home)},
        )

    return build_once(cache_dir() / "peers" / key, build)


def drain(jdk: Jdk, program: str, arguments: Mapping[str, object]) -> dict[str, Any]:
    """Run one of the harness's programs: it fills its queue, drains it and tells of it. Raises `ToolError`."""
    folder = built(jdk)
    classes = f"{folder / 'target' / 'classes'}:{folder / 'target' / 'lib'}/*"
    words = [f"--{name}={value}" for name, value in arguments.items()]
    command: Words = [jdk.home / "bin" / "java", "-Xmx1g", "-cp", classes, f"bench.{program}", *words]
    report: dict[str, Any] = json.loads(run(command, what=program).strip().splitlines()[-1])
    return report
