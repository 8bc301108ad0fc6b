"""Start, list and stop MySQL servers that outlive the command: `python -m hack.mysql up --count 2`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hack.cache import cache_dir, locked
from hack.errors import run_command
from hack.mysql.server import MySQLServer
from hack.mysql.tls import Authority

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
State = Annotated[Path | None, typer.Option(help="Folder of the servers' data; by default in the cache folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON list instead of lines.")]


@app.command()
def up(
    count: Annotated[int, typer.Option(min=1, help="How many servers there shall be.")] = 2,
    state: State = None,
    bind: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    buffer_pool_mb: Annotated[int, typer.Option(min=16, help="Buffer pool of each server, MiB.")] = 256,
    as_json: AsJson = False,
) -> None:
    """Start servers mysql-1 … mysql-COUNT; those that run already are left alone, stopped ones keep their data."""
    folder = _folder(state)
    with locked(folder / "lock"):
        authority = Authority()
        for number in range(1, count + 1):
            name = f"mysql-{number}"
            if not (folder / name / "server.json").exists():
                MySQLServer.start(
                    name,
                    workdir=folder,
                    bind=bind,
                    buffer_pool_mb=buffer_pool_mb,
                    authority=authority,
                    detached=True,
                )
            elif not (server := MySQLServer.attach(folder / name)).running:
                server.restart()
    _show(folder, as_json)


@app.command()
def down(state: State = None) -> None:
    """Stop every server of the state folder and delete its data."""
    folder = _folder(state)
    with locked(folder / "lock"):
        for server in _servers(folder):
            server.remove()


@app.command()
def status(state: State = None, as_json: AsJson = False) -> None:
    """Show the servers: address, authority, root's password, running or not."""
    _show(_folder(state), as_json)


def _folder(state: Path | None) -> Path:
    return (state or cache_dir() / "mysql" / "servers").resolve()


def _servers(folder: Path) -> list[MySQLServer]:
    return [MySQLServer.attach(found.parent) for found in sorted(folder.glob("*/server.json"))]


def _show(folder: Path, as_json: bool) -> None:
    shown = [
        {
            "name": server.name,
            "host": server.host,
            "port": server.port,
            "running": server.running,
            "ca_file": str(server.ca_file),
            "root_password": server.root_password,
        }
        for server in _servers(folder)
    ]
    if as_json:
        typer.echo(json.dumps(shown))
        return
    for line in shown:
        typer.echo("  ".join(f"{key}={value}" for key, value in line.items()))


if __name__ == "__main__":
    run_command(app)
