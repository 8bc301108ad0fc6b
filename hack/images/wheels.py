"""The wheels that go into images: the locked dependencies and the project's own, collected on this machine."""

import platform
import sys
import tomllib
from pathlib import Path

from hack.cache import build_once, cache_dir, key_of, locked
from hack.host import Words, run

ROOT = Path(__file__).resolve().parents[2]
_PYTHON = "3.11"
_GLIBC = ("2_17", "2_28", "2_31", "2_34", "2_35", "2_36")
"""The manylinux versions that the oldest base image (Debian 12, glibc 2.36) can run."""


def dependencies() -> Path:
    """A folder with the wheels of requirements.lock, downloaded once per content of the lock."""
    lock = ROOT / "requirements.lock"
    machine = platform.machine()
    return build_once(cache_dir() / "wheels" / key_of(lock, _PYTHON, machine), _download)


def project() -> Path:
    """A folder with the project's wheel, built once per content of its sources."""
    sources = [ROOT / "pyproject.toml", ROOT / "README.md"]
    for folder in ("controller", "sql"):
        sources += [path for path in sorted((ROOT / folder).rglob("*")) if path.is_file() and _is_source(path)]
    names = "\n".join(str(path.relative_to(ROOT)) for path in sources)
    return build_once(cache_dir() / "wheels" / f"project-{key_of(names, *sources)}", _build)


def _is_source(path: Path) -> bool:
    return "__pycache__" not in path.parts and path.suffix != ".pyc"


def _download(folder: Path) -> None:
    machine = platform.machine()
    platforms = [part for version in _GLIBC for part in ("--platform", f"manylinux_{version}_{machine}")]
    chosen = ["--python-version", _PYTHON, "--implementation", "cp", *platforms, "--platform", f"manylinux2014_{machine}"]
    exactly: Words = ["--only-binary", ":all:", "--require-hashes", "--requirement", ROOT / "requirements.lock"]
    run([_pip(), "download", "--quiet", "--no-deps", *chosen, *exactly, "--dest", folder], what="downloading locked wheels")


def _build(folder: Path) -> None:
    offline = ["--quiet", "--no-deps", "--no-build-isolation"]
    run([_pip(), "wheel", *offline, "--wheel-dir", folder, ROOT], what="project's wheel")


def _pip() -> Path:
    """A pip of our own, beside the project's build backend.

    The environment that runs this may have no pip, and an isolated build would install the backend every time.
    """
    with (ROOT / "pyproject.toml").open("rb") as file:
        backend = tomllib.load(file)["build-system"]["requires"]
    target = cache_dir() / "pip" / key_of(sys.version, *backend)
    finished = target / "finished"
    # Written in place, for an environment cannot be moved: its scripts hold its path.
    with locked(target.with_suffix(".lock")):
        if not finished.exists():
            run([sys.executable, "-m", "venv", "--clear", target], what="pip's environment")
            run([target / "bin" / "pip", "install", "--quiet", *backend], what="the build backend")
            finished.touch()
    return target / "bin" / "pip"
