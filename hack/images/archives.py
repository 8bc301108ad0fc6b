"""Where a built image is kept as an archive, by the image's name."""

from pathlib import Path

from hack.cache import cache_dir
from hack.errors import ToolError

PREFIX = "localhost/billing-shards-"
TAG = "dev"


def image_name(target: str) -> str:
    """The full name of one of the project's images."""
    return f"{PREFIX}{target}:{TAG}"


def archive_path(image: str) -> Path:
    """The archive's place in the cache folder."""
    return cache_dir() / "images" / f"{image.replace('/', '_').replace(':', '_')}.tar"


def archive_of(image: str) -> Path:
    """The archive of a built image: by its full name, its target (`claimer`), or a path. Raises ToolError."""
    path = Path(image)
    if path.suffix == ".tar" and path.exists():
        return path
    full = image if ":" in image else image_name(image)
    archive = archive_path(full)
    if not archive.exists():
        raise ToolError(f"image {full} is not built; run: python -m hack.images build {image}")
    return archive
