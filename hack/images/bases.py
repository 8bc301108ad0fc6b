"""Base images where none can be pulled: folders of Debian packages, made into images once."""

import shutil
from collections.abc import Callable
from pathlib import Path

from hack.cache import build_once, cache_dir, key_of, locked, remove
from hack.host import ensure_commands, require_root, run
from hack.images import buildah
from hack.mysql.chroot import root_folder

_SUITE = "bookworm"
_PACKAGES = "python3,python3-venv,ca-certificates"
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_MYSQL_FILES = Path(__file__).parent / "mysql"


def python_base() -> str:
    """The name of an image with Python 3.11, like `python:3.11-slim` (half a minute at the first call)."""
    tag = f"localhost/billing-shards-base:{key_of(_SUITE, _PACKAGES, *_LEFT_OUT)}"
    folder = cache_dir() / "images" / f"root-{key_of(_SUITE, _PACKAGES, *_LEFT_OUT)}"
    _made(tag, lambda: _base_from(build_once(folder, _build_root), tag))
    return tag


def mysql_image(tag: str) -> None:
    """Build the MySQL image from the same folder that the test servers run from, unless it is there unchanged."""
    key = f"{tag.rpartition(':')[0]}:{key_of(root_folder().name, *sorted(_MYSQL_FILES.iterdir()))}"
    _made(key, lambda: _mysql_from(root_folder(), key))
    buildah.buildah("tag", key, tag, what=f"naming {tag}")


def _made(tag: str, make: Callable[[], None]) -> None:
    with locked(cache_dir() / "images" / "bases.lock"):
        if not buildah.exists(tag):
            make()


def _build_root(folder: Path) -> None:
    require_root("building a base image")
    ensure_commands({"mmdebstrap": "mmdebstrap", "gpg": "gpg"})
    left_out = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    options = ["--variant=essential", "--quiet", f"--include={_PACKAGES}", *left_out]
    run(["mmdebstrap", *options, _SUITE, folder], what="base image")


def _base_from(root: Path, tag: str) -> None:
    file = root.with_suffix(".Containerfile")
    file.write_text("FROM scratch\nCOPY . /\n")
    buildah.build(root, file=file, tag=tag, layers=False)


def _mysql_from(root: Path, tag: str) -> None:
    """Hard links, not copies, make the build's context: the folder has half a gigabyte."""
    context = cache_dir() / "images" / "mysql.context"
    remove(context)
    context.mkdir()
    run(["cp", "--archive", "--link", root, context / "rootfs"], what="MySQL image's files")
    # Removing a name in the copy leaves the original, which the test servers run from, as it is.
    for name in ("dev", "server", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        remove(context / "rootfs" / name)
    etc = context / "etc"
    (etc / "mysql" / "conf.d").mkdir(parents=True)
    shutil.copy(_MYSQL_FILES / "my.cnf", etc / "my.cnf")
    _add_line(root / "etc" / "passwd", "mysql:x:999:999:MySQL:/var/lib/mysql:/usr/sbin/nologin", etc)
    _add_line(root / "etc" / "group", "mysql:x:999:", etc)
    for folder in ("var/lib/mysql", "var/run/mysqld"):
        (context / folder).mkdir(parents=True)
    shutil.copy(_MYSQL_FILES / "entrypoint.sh", context)
    buildah.build(context, file=_MYSQL_FILES / "Containerfile", tag=tag, layers=False)
    remove(context)


def _add_line(original: Path, line: str, folder: Path) -> None:
    (folder / original.name).write_text(f"{original.read_text()}{line}\n")
