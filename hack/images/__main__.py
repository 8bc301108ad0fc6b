"""Build the project's images: `python -m hack.images build [controller claimer mysql fake-gateway]`."""

from typing import Annotated

import typer

from hack.errors import run_command
from hack.images import targets
from hack.images.archives import archive_path

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def images() -> None:
    """Build the project's images, and keep each as an archive that `python -m hack.cluster load` can load."""


@app.command()
def build(chosen: Annotated[list[str] | None, typer.Argument(help="Targets; all of them by default.")] = None) -> None:
    """Build images and print their names and archives."""
    for target in chosen or targets.TARGETS:
        image = targets.build(target)
        typer.echo(f"{image}  {archive_path(image)}")


if __name__ == "__main__":
    run_command(app)
