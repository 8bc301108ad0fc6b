"""The development cluster by hand: `python -m hack.cluster up`."""

import json
import os
import sys
from typing import Annotated

import typer

from hack.cluster.cluster import Cluster
from hack.errors import run_command
from hack.host import Words

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command()
def up() -> None:
    """Start the cluster unless it runs, and tell where its kubeconfig is."""
    cluster = Cluster()
    cluster.up()
    typer.echo(f"ready; export KUBECONFIG={cluster.kubeconfig}")


@app.command()
def down() -> None:
    """Stop the cluster and remove its state."""
    Cluster().down()


@app.command()
def load(images: Annotated[list[str], typer.Argument(help="Targets, image names, or paths of archives.")]) -> None:
    """Give the node images that were built before."""
    Cluster().load(images)


@app.command()
def kubeconfig() -> None:
    """Print the path of the kubeconfig."""
    typer.echo(Cluster().kubeconfig)


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Show whether the cluster is up and which of its processes run; exit code 1 where it is not healthy."""
    cluster = Cluster()
    healthy = cluster.healthy()
    if as_json:
        typer.echo(json.dumps({"healthy": healthy, "processes": cluster.processes(), "logs": str(cluster.logs)}))
    else:
        for name, alive in cluster.processes().items():
            typer.echo(f"{name}: {'running' if alive else 'ended'}")
        typer.echo(f"{'healthy' if healthy else 'not healthy'}; logs in {cluster.logs}")
    raise typer.Exit(0 if healthy else 1)


@app.command(context_settings=_PASS_ON)
def kubectl() -> None:
    """Run kubectl against the cluster."""
    _become(Cluster().kubectl_command())


@app.command(context_settings=_PASS_ON)
def helm() -> None:
    """Run Helm against the cluster."""
    _become(Cluster().helm_command())


def _become(command: Words) -> None:
    """Turn into the command, with all that follows its name; the parser would swallow a `--` among it."""
    words = [*map(str, command), *sys.argv[2:]]
    os.execvp(words[0], words)  # noqa: S606  the words are the caller's own


if __name__ == "__main__":
    run_command(app)
