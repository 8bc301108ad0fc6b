"""A real mysqld without Docker: Debian's packages in a root folder, run in a chroot.

The root folder and an initialised data folder are built once into the cache. Each server runs in a mount namespace of
its own, in which its work folder appears inside the root folder: any number of servers share one root folder, and no
mount is left behind, however a server dies.
"""

from dataclasses import dataclass
from pathlib import Path

from hack.cache import build_once, cache_dir, key_of
from hack.errors import ToolError
from hack.host import ensure_commands, require_root, run
from hack.mysql.options import FOLDER_INSIDE, ServerSpec
from hack.processes import ProcessIdentity, spawn

_SUITE = "sid"
_PACKAGES = "mysql-server-core,mysql-client-core,ca-certificates"
_BUILD_COMMANDS = {"mmdebstrap": "mmdebstrap", "gpg": "gpg", "unshare": "util-linux", "setpriv": "util-linux"}
_ENTER = 'mount --bind "$1" "$2$3" && root=$2 && shift 3 && exec chroot "$root" "$@"'


@dataclass(slots=True)
class ChrootRunner:
    """Runs one server from the shared root folder."""

    spec: ServerSpec
    process: ProcessIdentity | None = None

    def prepare(self, root_password: str) -> None:
        """Lay out a fresh work folder: an initialised data folder, and what to execute at the first start."""
        run(["cp", "-a", "--reflink=auto", data_template(), self.spec.workdir / "data"], what="copying initial data")
        (self.spec.workdir / "tmp").mkdir()
        _write_options(self.spec.workdir / "my.cnf", self._options())
        first = self.spec.workdir / "first.sql"
        first.touch(mode=0o600)
        first.write_text(_first_statements(root_password))

    def launch(self) -> None:
        """Start mysqld on the data that is there; the first start also executes `first.sql`."""
        # After a crash mysqld would trust its old lock file wherever that process id is in use again.
        for stale in ("mysqld.sock", "mysqld.sock.lock", "mysqld.pid"):
            (self.spec.workdir / stale).unlink(missing_ok=True)
        first = self.spec.workdir / "first.sql"
        extra = [f"--init-file={FOLDER_INSIDE}/{first.name}"] if first.exists() else []
        self.process = spawn(_inside(self.spec.workdir, extra), log=self.spec.log, tied=not self.spec.detached)

    def settled(self) -> None:
        """Called once the server answers: the first start's statements, a password among them, are deleted."""
        (self.spec.workdir / "first.sql").unlink(missing_ok=True)

    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop(grace_seconds=60)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def discard(self) -> None:
        """Nothing outside the work folder belongs to a stopped server."""

    def _options(self) -> dict[str, str]:
        own = {
            "user": "root",
            "datadir": f"{FOLDER_INSIDE}/data",
            "tmpdir": f"{FOLDER_INSIDE}/tmp",  # noqa: S108  a folder of this server alone
            "socket": f"{FOLDER_INSIDE}/mysqld.sock",
            "pid_file": f"{FOLDER_INSIDE}/mysqld.pid",
            "secure_file_priv": "NULL",
            "bind_address": self.spec.bind,
            "port": str(self.spec.port),
        }
        return {**self.spec.options(), **own}


def _first_statements(root_password: str) -> str:
    """Give root a password, on this machine and from elsewhere. The password is ours: URL-safe characters only."""
    return (
        f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{root_password}';\n"
        f"CREATE USER 'root'@'%' IDENTIFIED BY '{root_password}';\n"
        "GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;\n"
    )


def root_folder() -> Path:
    """The folder with MySQL and all that it needs, built at the first call (half a minute)."""
    require_root("running MySQL")
    key = key_of(_SUITE, _PACKAGES)
    return build_once(cache_dir() / "mysql" / f"root-{key}", _build_root)


def data_template() -> Path:
    """An initialised, cleanly stopped data folder, to be copied; root has no password in it yet."""
    root = root_folder()
    return build_once(cache_dir() / "mysql" / f"data-{root.name.removeprefix('root-')}", _initialise)


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
    run(["mmdebstrap", *options, _SUITE, folder], what="MySQL root folder")
    (folder / FOLDER_INSIDE.removeprefix("/")).mkdir()


def _initialise(target: Path) -> None:
    work = target.with_name(target.name + ".work")
    run(["rm", "-rf", work], what="old initial data")
    work.mkdir(parents=True)
    # A small redo log keeps the copy small; each server makes its own of full size when it starts.
    options = {"user": "root", "datadir": f"{FOLDER_INSIDE}/data", "innodb_redo_log_capacity": "8M"}
    _write_options(work / "my.cnf", {**options, "auto_generate_certs": "OFF"})
    run(_inside(work, ["--initialize-insecure"]), what="initialising MySQL data")
    (work / "data" / "auto.cnf").unlink()  # the server's UUID: every copy makes its own
    (work / "data").rename(target)
    run(["rm", "-rf", work], what="old initial data")


def _inside(workdir: Path, arguments: list[str]) -> list[str | Path]:
    """The command that runs mysqld with `workdir` mounted inside the root folder; the mount dies with it."""
    enter = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _ENTER, "sh"]
    if not (workdir / "my.cnf").exists():
        raise ToolError(f"{workdir}: holds no server (my.cnf is missing)")
    return [
        *enter,
        workdir,
        root_folder(),
        FOLDER_INSIDE,
        "mysqld",
        f"--defaults-file={FOLDER_INSIDE}/my.cnf",
        *arguments,
    ]


def _write_options(path: Path, options: dict[str, str]) -> None:
    lines = [f"{name} = {value}" for name, value in options.items()]
    path.write_text("[mysqld]\n" + "\n".join(lines) + "\n")
