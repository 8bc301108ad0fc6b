"""A NATS server with JetStream, built from its Go module once and kept in the cache folder."""

import json
import shutil
import socket
from pathlib import Path

from hack.brokers.server import BrokerServer
from hack.cache import build_once, cache_dir
from hack.errors import ToolError
from hack.host import run
from hack.processes import ProcessIdentity, spawn

_MODULE = "github.com/nats-io/nats-server/v2"
_VERSION = "v2.15.3"


def nats_server() -> Path:
    """The program (two minutes at the first call)."""
    folder = cache_dir() / "bin" / f"nats-server-{_VERSION}"
    return build_once(folder, _install) / "nats-server"


def _install(folder: Path) -> None:
    if shutil.which("go") is None:
        raise ToolError("installing the NATS server: needs Go 1.25 or later in PATH")
    environment = {"CGO_ENABLED": "0", "GOBIN": str(folder)}
    run(["go", "install", f"{_MODULE}@{_VERSION}"], what="installing the NATS server", env=environment)


class NatsServer(BrokerServer):
    """One NATS server. What it acknowledged survives its death, but not the machine's: that is what replicas are for."""

    scheme = "nats"
    tls_scheme = "tls"

    def _lay_out(self) -> None:
        options = {
            "listen": f"{self.host}:{self.port}",
            "jetstream": {"store_dir": str(self.folder / "data")},
            "authorization": {"user": self.user, "password": self.password},
        }
        if self.tls:
            files = {"cert_file": "server.pem", "key_file": "server-key.pem", "ca_file": "ca.pem"}
            options["tls"] = {key: str(self.folder / name) for key, name in files.items()}
        config = self.folder / "nats.conf"
        config.touch(mode=0o600)
        config.write_text(json.dumps(options))  # its format is a superset of JSON

    def _launch(self) -> ProcessIdentity:
        return spawn([nats_server(), "-c", self.folder / "nats.conf"], log=self.log, tied=True)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1.0) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False
