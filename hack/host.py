"""What the machine offers: Docker or not, root or not, and the packages that the project's own recipes need."""

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.cache import cache_dir, locked
from hack.errors import ToolError

Words = list[str | Path]
"""A command line."""


def run(argv: Sequence[str | Path], *, what: str, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
    """Run a command to its end and return its standard output.

    Raises ToolError with the command's own last words where it fails or does not exist.
    """
    try:
        done = subprocess.run(
            [str(part) for part in argv],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **env} if env else None,
        )
    except FileNotFoundError as error:
        raise ToolError(f"{what}: command not found: {argv[0]}") from error
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise ToolError(f"{what}: {Path(argv[0]).name} exited with {done.returncode}: {words}")
    return done.stdout


def can_stack(folder: Path) -> bool:
    """Whether an overlay file system may keep its layers in this folder: not if it is on one itself (in a container)."""
    kind = run(["stat", "--file-system", "--format=%T", folder], what=f"file system of {folder}")
    return kind.strip() != "overlayfs"


@functools.cache
def docker_works() -> bool:
    """Whether a Docker daemon answers; asked once per process."""
    if shutil.which("docker") is None:
        return False
    answer = subprocess.run(["docker", "info"], capture_output=True, check=False)
    return answer.returncode == 0


def require_root(what: str) -> None:
    """Raise ToolError unless this process may mount and make network namespaces."""
    if os.geteuid() != 0:
        raise ToolError(f"{what}: needs either a working Docker daemon or root")


def ensure_commands(packages: Mapping[str, str]) -> None:
    """Install the Debian packages whose command (the key) is missing. Needs root and apt-get."""
    if not _missing(packages):
        return
    with locked(cache_dir() / "apt.lock"):
        missing = _missing(packages)
        if not missing:
            return
        require_root(f"installing {', '.join(missing)}")
        noninteractive = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-q"], what="package lists", env=noninteractive)
        # Not "--no-install-recommends" alone: conffile questions would stop an unattended run.
        options = ["-q", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"]
        run(["apt-get", "install", *options, *missing], what="packages", env=noninteractive)


def _missing(packages: Mapping[str, str]) -> list[str]:
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    absent = {name for command, name in packages.items() if not _present(command, search)}
    return sorted(absent)


def _present(command: str, search: str) -> bool:
    return Path(command).exists() if command.startswith("/") else shutil.which(command, path=search) is not None
