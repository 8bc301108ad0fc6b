"""A real mysqld in a container, where a Docker daemon works."""

import atexit
import subprocess
from dataclasses import dataclass

from hack.host import run
from hack.mysql.options import FOLDER_INSIDE, ServerSpec

IMAGE = "mysql:8.4"
_OWNER = "999"
"""The image's own user of the server process."""


@dataclass(slots=True)
class DockerRunner:
    """Runs one server as a container with a volume of its own, published on a port of this machine."""

    spec: ServerSpec

    @property
    def container(self) -> str:
        return f"billing-shards-mysql-{self.spec.name}-{self.spec.port}"

    def prepare(self, root_password: str) -> None:
        """Create the container; its entry point initialises its volume at the first start."""
        tls = self.spec.workdir / "tls"
        own = ["docker", "run", "--rm", "--volume", f"{tls}:/tls", IMAGE, "chown", "-R", _OWNER, "/tls"]
        run(own, what="TLS files")
        publish = f"{self.spec.bind}:{self.spec.port}:3306"
        volume = f"{tls}:{FOLDER_INSIDE}/tls:ro"
        variables = ["--env", "MYSQL_ROOT_PASSWORD", "--env", "MYSQL_ROOT_HOST=%"]
        options = [f"--{name.replace('_', '-')}={value.strip(chr(39))}" for name, value in self.spec.options().items()]
        command = ["docker", "create", "--name", self.container, "--publish", publish, "--volume", volume, *variables]
        # The password's value goes through the environment: arguments are shown to every user of the machine.
        secret = {"MYSQL_ROOT_PASSWORD": root_password}
        run([*command, IMAGE, *options], what=f"MySQL container {self.container}", env=secret)
        if not self.spec.detached:
            atexit.register(self.discard)

    def launch(self) -> None:
        run(["docker", "start", self.container], what=f"starting {self.container}")

    def settled(self) -> None:
        """Nothing is left over from a first start."""

    def alive(self) -> bool:
        shown = self._docker("inspect", "--format", "{{.State.Running}}", self.container)
        return shown.stdout.strip() == "true"

    def stop(self) -> None:
        self._docker("stop", "--time", "60", self.container)

    def kill(self) -> None:
        self._docker("kill", self.container)

    def discard(self) -> None:
        """Remove the container and its data."""
        self._docker("rm", "--force", "--volumes", self.container)

    def _docker(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
