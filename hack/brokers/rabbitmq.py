"""A RabbitMQ node from Debian's packages in a root folder, run in a chroot.

Each node has a mount and a process namespace of its own: its folder appears inside the shared root folder, and with the node
ends everything that Erlang started beside it (its port mapper is a daemon that would outlive it).
"""

import secrets
import socket
from pathlib import Path

from hack.brokers.server import HOST, BrokerServer
from hack.cache import build_once, cache_dir, key_of
from hack.errors import ToolError
from hack.host import ensure_commands, require_root, run
from hack.ports import free_port
from hack.processes import ProcessIdentity, spawn

_SUITE = "sid"
_PACKAGES = "rabbitmq-server,ca-certificates"
_BUILD_COMMANDS = {"mmdebstrap": "mmdebstrap", "gpg": "gpg", "unshare": "util-linux", "setpriv": "util-linux"}
_INSIDE = "/server"
_ENTER = f'mount --bind "$1" "$2{_INSIDE}" && mount -t proc proc "$2/proc" && root=$2 && shift 2 && exec chroot "$root" env "$@"'


def root_folder() -> Path:
    """The folder with RabbitMQ and all that it needs, built at the first call (a minute)."""
    require_root("running RabbitMQ")
    return build_once(cache_dir() / "rabbitmq" / f"root-{key_of(_SUITE, _PACKAGES)}", _build_root)


def _build_root(folder: Path) -> None:
    ensure_commands(_BUILD_COMMANDS)
    options = [
        "--variant=essential",
        "--quiet",
        f"--include={_PACKAGES}",
        "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg",
        # A mirror may lag; what matters here is the signature, not its age.
        '--aptopt=Acquire::Check-Valid-Until "false"',
    ]
    run(["mmdebstrap", *options, _SUITE, folder], what="RabbitMQ root folder")
    (folder / _INSIDE.removeprefix("/")).mkdir()
    (folder / "etc" / "hosts").write_text("127.0.0.1 localhost\n")


class RabbitServer(BrokerServer):
    """One RabbitMQ node."""

    scheme = "amqp"
    tls_scheme = "amqps"

    def _lay_out(self) -> None:
        root_folder()
        for name in ("data", "log.d"):
            (self.folder / name).mkdir()
        cookie = self.folder / ".erlang.cookie"
        cookie.touch(mode=0o600)
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (self.folder / "plugins").write_text("[].\n")
        config = self.folder / "rabbitmq.conf"
        config.touch(mode=0o600)
        config.write_text("\n".join(f"{name} = {value}" for name, value in self._options().items()) + "\n")

    def _options(self) -> dict[str, str]:
        options = {
            "default_user": self.user,
            "default_pass": self.password,
            "log.console": "true",
            "log.file": "false",
            "disk_free_limit.absolute": "50MB",
            "distribution.listener.interface": HOST,
        }
        if not self.tls:
            return options | {"listeners.tcp.1": f"{self.host}:{self.port}"}
        files = {"cacertfile": "ca.pem", "certfile": "server.pem", "keyfile": "server-key.pem"}
        tls = {f"ssl_options.{option}": f"{_INSIDE}/{name}" for option, name in files.items()}
        return options | tls | {"listeners.tcp": "none", "listeners.ssl.1": f"{self.host}:{self.port}"}

    def _launch(self) -> ProcessIdentity:
        environment = {
            "HOME": _INSIDE,
            "LANG": "C.UTF-8",
            "RUNNING_UNDER_SYSTEMD": "true",  # Erlang in place of the start script
            "RABBITMQ_NODENAME": "rabbit@localhost",
            "RABBITMQ_CONFIG_FILE": f"{_INSIDE}/rabbitmq.conf",
            "RABBITMQ_MNESIA_BASE": f"{_INSIDE}/data",
            "RABBITMQ_LOG_BASE": f"{_INSIDE}/log.d",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{_INSIDE}/plugins",
            "RABBITMQ_DIST_PORT": str(free_port(HOST)),
            "ERL_EPMD_PORT": str(free_port(HOST)),
            "ERL_EPMD_ADDRESS": HOST,
        }
        words = [f"{name}={value}" for name, value in environment.items()]
        spaces = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
        enter = [*spaces, "--", "sh", "-c", _ENTER, "sh", str(self.folder), str(root_folder()), *words]
        self._space = spawn([*enter, "/usr/lib/rabbitmq/bin/rabbitmq-server"], log=self.log, tied=True)
        return self._first_of(self._space)

    def _first_of(self, space: ProcessIdentity) -> ProcessIdentity:
        """The process that is the first of its namespace: with it all the others end."""
        children = Path(f"/proc/{space.pid}/task/{space.pid}/children")
        while space.alive:
            pids = children.read_text().split()
            if pids:
                return ProcessIdentity.of(int(pids[0]))
        raise ToolError(f"RabbitMQ ended at once; see {self.log}")

    def kill(self) -> None:
        super().kill()
        if self._process is not None and not self._space.wait(30):
            raise ToolError("RabbitMQ's namespace outlived it")

    def _answers(self) -> bool:
        """Whether its start is complete: it listens last of all. Over TLS nothing can be asked without a handshake."""
        try:
            with socket.create_connection((self.host, self.port), timeout=1.0) as connection:
                if self.tls:
                    return True
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return len(connection.recv(1)) == 1
        except OSError:
            return False
