"""Images without Docker: buildah in its chroot mode, with a store of the project's own inside the cache folder."""

from collections.abc import Mapping
from pathlib import Path

from hack.cache import cache_dir, locked
from hack.host import Words, can_stack, ensure_commands, require_root, run


def buildah(*words: str | Path, what: str) -> str:
    """Run one buildah command on the project's store."""
    require_root("building images")
    ensure_commands({"buildah": "buildah"})
    store = cache_dir() / "images" / "store"
    # Copying whole layers (vfs) takes minutes where stacking them takes seconds.
    driver = "overlay" if can_stack(cache_dir()) else "vfs"
    places: Words = ["--root", store / driver, "--runroot", store / "run", "--storage-driver", driver]
    # Builds share base images in one store: one at a time, or two of them would import the same base twice.
    with locked(store / "lock"):
        return run(["buildah", *places, *words], what=what, env={"BUILDAH_ISOLATION": "chroot"})


def build(
    context: Path,
    *,
    file: Path,
    tag: str,
    target: str | None = None,
    arguments: Mapping[str, str] | None = None,
    layers: bool = True,
) -> None:
    """Build one target of a container file under a tag; without `layers` each image is a single one, never reused."""
    chosen = ["--target", target] if target else []
    given = [part for name, value in (arguments or {}).items() for part in ("--build-arg", f"{name}={value}")]
    options = ["--quiet", "--pull-never", f"--layers={'true' if layers else 'false'}", *chosen, *given]
    buildah("bud", *options, "--file", file, "--tag", tag, context, what=f"image {tag}")


def exists(tag: str) -> bool:
    """Whether the store has an image of this name."""
    names = buildah("images", "--format", "{{.Name}}:{{.Tag}}", what="listing images")
    return tag in names.split()


def push(tag: str, archive: Path) -> None:
    """Write an image to an archive, which keeps its name; an older archive is replaced in one step."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    # Compressing takes longer than everything else, and the archive never leaves this machine.
    buildah("push", "--quiet", tag, f"docker-archive:{unfinished}:{tag}", what=f"archive of {tag}")
    unfinished.rename(archive)
