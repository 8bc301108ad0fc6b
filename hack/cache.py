"""Slow things are built once, outside the checkout, and are either complete or absent.

Whatever takes minutes (a root folder, the Kubernetes binary, an image) is built beside its final place and renamed
into it. A lock file makes a second process wait instead of building the same thing; a build that died leaves only a
folder that the next holder of the lock removes.
"""

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """The project's cache folder, made where it is missing."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "billing-shards"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def key_of(*inputs: str | bytes | Path) -> str:
    """Name a build by what went into it: texts, bytes, and the contents of files (16 hexadecimal digits)."""
    digest = hashlib.sha256()
    for part in inputs:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; it ends with its holder, however that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return `target`, calling `build(temporary path)` first where it does not exist yet."""
    if target.exists():
        return target
    with locked(target.with_name(target.name + ".lock")):
        if not target.exists():
            print(f"building {target.name}; this happens once", file=sys.stderr, flush=True)
            unfinished = target.with_name(target.name + ".unfinished")
            remove(unfinished)
            build(unfinished)
            unfinished.rename(target)
    return target


def remove(path: Path) -> None:
    """Delete a file or a whole folder; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
