"""The cluster in a container, where Docker works: kind does everything."""

import atexit
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from hack.cache import cache_dir, locked
from hack.cluster import build
from hack.errors import ToolError
from hack.host import Words, run
from hack.processes import ProcessIdentity, spawn


class KindCluster:
    """A kind cluster. Number 0 is the one that all programs share."""

    def __init__(self, number: int = 0) -> None:
        self._name = f"billing-shards-{number}" if number else "billing-shards"

    @property
    def kubeconfig(self) -> Path:
        return self.logs / "kubeconfig"

    @property
    def logs(self) -> Path:
        return cache_dir() / "cluster" / f"kind-{self._name}"

    @property
    def host_address(self) -> str:
        """The machine as pods reach it: the gateway of the containers' network."""
        configs = "{{range .IPAM.Config}}{{println .Gateway}}{{end}}"
        gateways = run(["docker", "network", "inspect", "kind", "--format", configs], what="kind's network").split()
        return next(address for address in gateways if ":" not in address)

    @property
    def node_address(self) -> str:
        address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        node = f"{self._name}-control-plane"
        return run(["docker", "inspect", node, "--format", address], what="kind's node").strip()

    def kubectl_command(self) -> Words:
        own = build.kubectl()
        return [own] if own else [build.kube(), "kubectl"]

    def up(self) -> None:
        """Create the cluster unless there is one that answers."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with locked(self.logs / "lock"):
            if not self.healthy():
                self._delete()
                where: Words = ["--name", self._name, "--kubeconfig", self.kubeconfig]
                run([build.kind(), "create", "cluster", *where, "--wait", "180s"], what="kind create cluster")

    def down(self) -> None:
        """Delete the cluster. Doing it twice is fine."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with locked(self.logs / "lock"):
            self._delete()

    def crash(self) -> None:
        """Kill the node's container."""
        run(["docker", "kill", f"{self._name}-control-plane"], what="killing kind's node")

    def processes(self) -> dict[str, bool]:
        found = self._name in run([build.kind(), "get", "clusters"], what="kind get clusters").split()
        return {"kind": self.healthy()} if found else {}

    def healthy(self) -> bool:
        if not self.kubeconfig.exists():
            return False
        ready: Words = [*self.kubectl_command(), "--kubeconfig", self.kubeconfig, "get", "--raw", "/readyz"]
        return subprocess.run(ready, capture_output=True, check=False).returncode == 0

    def load(self, archives: Sequence[Path]) -> None:
        """Load archives written by `docker save`."""
        for archive in archives:
            loading: Words = ["load", "image-archive", archive, "--name", self._name]
            run([build.kind(), *loading], what=f"loading {archive.name}")

    def service_url(self, namespace: str, name: str, port: int) -> str:
        """Nothing routes to the containers' services: a forwarded port that ends with this program."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            local = int(probe.getsockname()[1])
        words: Words = ["--kubeconfig", self.kubeconfig, "--namespace", namespace, "port-forward", f"service/{name}"]
        command = [*self.kubectl_command(), *words, f"{local}:{port}"]
        forward = spawn(command, log=self.logs / "port-forward.log", tied=True)
        atexit.register(forward.stop)
        _wait_for_port(local, forward)
        return f"http://127.0.0.1:{local}"

    def _delete(self) -> None:
        deleting: Words = ["delete", "cluster", "--name", self._name, "--kubeconfig", self.kubeconfig]
        run([build.kind(), *deleting], what="kind delete cluster")


def _wait_for_port(port: int, forward: ProcessIdentity) -> None:
    deadline = time.monotonic() + 30
    while forward.alive and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise ToolError(f"port-forward to port {port} did not start")
