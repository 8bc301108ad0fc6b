"""What the brokers have in common: a folder of their own, an address that stays, one user, start, crash, start again."""

import secrets
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from hack.errors import ToolError
from hack.mysql.tls import Authority
from hack.ports import free_port
from hack.processes import ProcessIdentity

_START_SECONDS = 120.0
HOST = "127.0.0.1"
USER = "billing"


class BrokerServer(ABC):
    """A broker that dies with this program; use as a context manager to have it stopped at the end.

    Its data stay in `folder`, so `restart` after `kill` is what a crash and a restart are. With `tls` it takes no plain
    connection, and its certificate is for `localhost` and its host.
    """

    scheme: str
    """Of its URL; with TLS, `tls_scheme`."""
    tls_scheme: str

    def __init__(self, folder: Path, *, tls: bool, host: str) -> None:
        self.folder = folder.resolve()
        self.host = host
        self.port = free_port(host)
        self.user = USER
        self.password = secrets.token_urlsafe(16)
        self.tls = tls
        self._process: ProcessIdentity | None = None

    @classmethod
    def start(cls, folder: Path, *, tls: bool = False, host: str = HOST) -> Self:
        """Start a new server with its files in `folder`, at an address of this machine, and wait until it takes connections.

        Raises ToolError.
        """
        server = cls(folder, tls=tls, host=host)
        server.folder.mkdir(parents=True)
        if tls:
            authority = Authority()
            authority.write_ca(server.ca_file)
            authority.issue(["localhost", host], certificate=server.folder / "server.pem", key=server.folder / "server-key.pem")
        server._lay_out()
        server.restart()
        return server

    @property
    def url(self) -> str:
        """Where a client connects to; without user and password."""
        return f"{self.tls_scheme if self.tls else self.scheme}://{self.host}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def pid(self) -> int:
        """The server's process. Raises ToolError where there is none."""
        if self._process is None:
            raise ToolError(f"{type(self).__name__} was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.alive

    def restart(self) -> None:
        """Start it, on the data that are there; a running one is stopped first."""
        self.stop()
        self._process = self._launch()
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if not self.running or time.monotonic() > deadline:
                log = self.log.read_text(errors="replace") if self.log.exists() else ""
                raise ToolError(f"{type(self).__name__} did not start: {log[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Shut down in good order; stopping a stopped server does nothing."""
        if self._process is not None:
            self._process.stop(grace_seconds=60)

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    @abstractmethod
    def _lay_out(self) -> None:
        """Write what it needs into the empty folder."""

    @abstractmethod
    def _launch(self) -> ProcessIdentity:
        """Start the process."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it takes connections."""
