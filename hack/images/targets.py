"""The project's images by target, built by whichever builder works here, each kept as an archive to load."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hack.cache import cache_dir
from hack.errors import ToolError
from hack.host import docker_works, run
from hack.images import bases, buildah, wheels
from hack.images.archives import archive_path, image_name

TARGETS = ("controller", "claimer", "mysql", "fake-gateway")
_MYSQL = "mysql:8.4"
_GATEWAY_FILE = Path(__file__).parent / "fake-gateway.Containerfile"


def build(target: str) -> str:
    """Build one target, write its archive, and return the image's name. Raises ToolError."""
    builders = {"mysql": _build_mysql, "fake-gateway": _build_fake_gateway}
    if target not in TARGETS:
        raise ToolError(f"unknown image {target!r}; there are {', '.join(TARGETS)}")
    builders.get(target, _build_from_dockerfile)(target)
    image = image_name(target)
    _archive(image)
    return image


def _build_from_dockerfile(target: str) -> None:
    with _context() as folder:
        shutil.copy(wheels.ROOT / "requirements.lock", folder)
        shutil.copytree(wheels.dependencies(), folder / "wheels")
        shutil.copytree(wheels.project(), folder / "project")
        # Without Docker there is no python:3.11-slim to pull.
        base = {} if docker_works() else {"BASE_IMAGE": bases.python_base()}
        _build(folder, wheels.ROOT / "Dockerfile", image_name(target), base, target)


def _build_fake_gateway(target: str) -> None:
    _build_from_dockerfile("claimer")
    with _context() as folder:
        ours = folder / "hack"
        ours.mkdir()
        for name in ("__init__.py", "errors.py"):
            shutil.copy(wheels.ROOT / "hack" / name, ours)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(wheels.ROOT / "hack" / "fake_gateway", ours / "fake_gateway", ignore=ignored)
        _build(folder, _GATEWAY_FILE, image_name(target), {"BASE_IMAGE": image_name("claimer")}, None)


def _build_mysql(target: str) -> None:
    if not docker_works():
        bases.mysql_image(image_name(target))
        return
    run(["docker", "pull", "--quiet", _MYSQL], what=f"pulling {_MYSQL}")
    run(["docker", "tag", _MYSQL, image_name(target)], what=f"naming {_MYSQL}")


def _build(context: Path, file: Path, tag: str, arguments: Mapping[str, str], target: str | None) -> None:
    if not docker_works():
        buildah.build(context, file=file, tag=tag, target=target, arguments=arguments)
        return
    chosen = ["--target", target] if target else []
    given = [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
    run(["docker", "build", "--quiet", "--file", file, "--tag", tag, *chosen, *given, context], what=f"image {tag}")


def _archive(image: str) -> None:
    """Write the archive unless it holds this very image already."""
    archive = archive_path(image)
    note = archive.with_suffix(".id")
    identity = _identity(image)
    if archive.exists() and note.exists() and note.read_text() == identity:
        return
    note.unlink(missing_ok=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    if docker_works():
        run(["docker", "save", "--output", archive, image], what=f"archive of {image}")
    else:
        buildah.push(image, archive)
    note.write_text(identity)


def _identity(image: str) -> str:
    if docker_works():
        return run(["docker", "inspect", "--format", "{{.Id}}", image], what=f"identity of {image}")
    return buildah.buildah("inspect", "--format", "{{.FromImageID}}", image, what=f"identity of {image}")


@contextmanager
def _context() -> Iterator[Path]:
    parent = cache_dir() / "images"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix="context-") as folder:
        yield Path(folder)
