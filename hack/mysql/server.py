"""One MySQL server with its own data, address and certificate: started, killed and restarted by tests and by hand."""

import json
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import pymysql

from hack.cache import remove
from hack.errors import ToolError
from hack.host import docker_works
from hack.mysql.chroot import ChrootRunner
from hack.mysql.docker import DockerRunner
from hack.mysql.options import ServerSpec
from hack.mysql.tls import Authority, client_context
from hack.ports import free_port
from hack.processes import ProcessIdentity

Connection: TypeAlias = "pymysql.connections.Connection[pymysql.cursors.Cursor]"
Runner = ChrootRunner | DockerRunner

_START_SECONDS = 120.0
_STATE_FILE = "server.json"


class MySQLServer:
    """A running (or stopped) server; use as a context manager to have it stopped at the end."""

    def __init__(self, spec: ServerSpec, runner: Runner, root_password: str) -> None:
        self._spec = spec
        self._runner = runner
        self._root_password = root_password

    @classmethod
    def start(
        cls,
        name: str,
        *,
        workdir: Path,
        hostnames: Sequence[str] = ("localhost",),
        bind: str = "127.0.0.1",
        buffer_pool_mb: int = 256,
        certificate_names: Sequence[str] | None = None,
        authority: Authority | None = None,
        options: Mapping[str, str] | None = None,
        detached: bool = False,
    ) -> Self:
        """Start a new server with its files in `workdir / name`, and wait until it answers.

        Its certificate is for `hostnames` and its own address, or for exactly `certificate_names`, which a test sets to
        have a server with a wrong name. It is signed by `authority`, by default one of its own. `options` are further
        server options by name. Unless `detached`, the server dies with this program. Raises ToolError.
        """
        folder = workdir.resolve() / name
        if (folder / _STATE_FILE).exists():
            raise ToolError(f"{folder}: already holds a server; attach to it or remove the folder")
        for _ in range(5):
            spec = ServerSpec(
                name=name,
                workdir=folder,
                bind=bind,
                port=free_port(bind),
                buffer_pool_mb=buffer_pool_mb,
                detached=detached,
                extra=dict(options or {}),
            )
            server = cls(spec, _runner(spec), secrets.token_urlsafe(16))
            names = certificate_names or sorted({*hostnames, "127.0.0.1", spec.host})
            server._lay_out(names, authority or Authority())
            if server._launched():
                return server
            server.remove()  # somebody else took the port between our look and the server's bind
        raise ToolError(f"MySQL server {name}: no port could be bound in 5 tries")

    @classmethod
    def attach(cls, folder: Path) -> Self:
        """Return the server whose files are in `folder`, running or not, started by any process."""
        state = json.loads((folder / _STATE_FILE).read_text())
        spec = ServerSpec(**{**state["spec"], "workdir": folder.resolve()})
        runner = _runner(spec)
        if isinstance(runner, ChrootRunner) and state["process"] is not None:
            runner.process = ProcessIdentity(**state["process"])
        return cls(spec, runner, state["root_password"])

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def host(self) -> str:
        return self._spec.host

    @property
    def port(self) -> int:
        return self._spec.port

    @property
    def pid(self) -> int | None:
        """The server's process on this machine; None in Docker, or where it does not run."""
        process = self._runner.process if isinstance(self._runner, ChrootRunner) else None
        return None if process is None else process.pid

    @property
    def root_password(self) -> str:
        return self._root_password

    @property
    def ca_file(self) -> Path:
        """The certificate (PEM) of the authority that signed this server's."""
        return self._spec.ca_file

    @property
    def running(self) -> bool:
        return self._runner.alive()

    def client(self, **arguments: Any) -> Connection:
        """A new connection as root, its chain and host name verified; keyword arguments are PyMySQL's."""
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": "root",
            "password": self.root_password,
            "ssl": client_context(self.ca_file),
            **arguments,
        }
        return pymysql.connect(**settings)

    def stop(self) -> None:
        """Shut down in good order; stopping a stopped server does nothing."""
        self._runner.stop()

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would: nothing is flushed, every committed transaction must survive."""
        self._runner.kill()

    def restart(self) -> None:
        """Start again on the same data and port, after a stop, a kill, or while running."""
        self.stop()
        if not self._launched():
            raise ToolError(f"MySQL server {self.name}: port {self.port} was taken meanwhile")

    def remove(self) -> None:
        """Stop it and delete its data for good."""
        self.kill()
        self._runner.discard()
        remove(self._spec.workdir)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._runner.discard()

    def _lay_out(self, certificate_names: Sequence[str], authority: Authority) -> None:
        tls = self._spec.workdir / "tls"
        authority.write_ca(self._spec.ca_file)
        authority.issue(certificate_names, certificate=tls / "server.pem", key=tls / "server-key.pem")
        self._runner.prepare(self._root_password)

    def _launched(self) -> bool:
        """Start it and wait until it answers; False where its port turned out to be taken."""
        self._runner.launch()
        self._write_state()
        deadline = time.monotonic() + _START_SECONDS
        while not _greets(self.host, self.port):
            if not self.running:
                log = self._spec.log.read_text(errors="replace") if self._spec.log.exists() else ""
                if "Address already in use" in log:
                    return False
                raise ToolError(f"MySQL server {self.name} ended while starting: {log[-2000:]}")
            if time.monotonic() > deadline:
                raise ToolError(f"MySQL server {self.name} did not answer in {_START_SECONDS:.0f} s; see {self._spec.log}")
            time.sleep(0.05)
        self._runner.settled()
        return True

    def _write_state(self) -> None:
        process = self._runner.process if isinstance(self._runner, ChrootRunner) else None
        state = {
            "spec": {**asdict(self._spec), "workdir": None},
            "process": asdict(process) if process else None,
            "root_password": self._root_password,
        }
        path = self._spec.workdir / _STATE_FILE
        path.touch(mode=0o600)
        path.write_text(json.dumps(state))


def _runner(spec: ServerSpec) -> Runner:
    return DockerRunner(spec) if docker_works() else ChrootRunner(spec)


def _greets(host: str, port: int) -> bool:
    """Whether a server answers with its greeting, which mysqld sends only once it is ready."""
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            greeting = connection.recv(5)
    except OSError:
        return False
    return len(greeting) == 5 and greeting[4] == 10
