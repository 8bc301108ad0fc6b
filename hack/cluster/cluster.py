"""The development cluster, whichever way it is run; every caller sees only this."""

from collections.abc import Sequence
from pathlib import Path

from hack.cluster import build
from hack.cluster.kind import KindCluster
from hack.cluster.local import LocalCluster
from hack.host import Words, docker_works, run
from hack.images.archives import archive_of


class Cluster:
    """The cluster of this machine. `up` and `down` may be called by several programs, and twice.

    Number 0 is the one that everybody shares. A test that breaks its cluster takes another number, below 100.
    """

    def __init__(self, number: int = 0) -> None:
        self._provider: KindCluster | LocalCluster = KindCluster(number) if docker_works() else LocalCluster(number)

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig; exists while the cluster is up."""
        return self._provider.kubeconfig

    @property
    def node_address(self) -> str:
        """The node's address, to which NodePorts are bound; reachable from this machine."""
        return self._provider.node_address

    @property
    def host_address(self) -> str:
        """The machine's address as pods reach it: a server for them must listen there."""
        return self._provider.host_address

    @property
    def logs(self) -> Path:
        """The folder of the components' logs."""
        return self._provider.logs

    def up(self) -> None:
        """Have a healthy cluster: one that runs is left alone, one that is broken is replaced. Raises ToolError."""
        self._provider.up()

    def down(self) -> None:
        """Remove the cluster with all of its state."""
        self._provider.down()

    def crash(self) -> None:
        """End it without any order, as a power cut would; `up` and `down` must cope."""
        self._provider.crash()

    def healthy(self) -> bool:
        """Whether it is up and its API ready."""
        return self._provider.healthy()

    def processes(self) -> dict[str, bool]:
        """Its components by name and whether they run; empty where it is down."""
        return self._provider.processes()

    def load(self, images: Sequence[str | Path]) -> None:
        """Give the node images: names of images that `hack.images` has built, or paths of archives.

        Pods must use `imagePullPolicy: Never` or `IfNotPresent`.
        """
        self._provider.load([image if isinstance(image, Path) else archive_of(image) for image in images])

    def service_url(self, namespace: str, name: str, port: int) -> str:
        """A base URL (http) by which this program reaches a port of a Service.

        It may stop working when this program ends or the Service is created anew.
        """
        return self._provider.service_url(namespace, name, port)

    def kubectl_command(self) -> Words:
        """The words that begin every kubectl command for this cluster."""
        return [*self._provider.kubectl_command(), "--kubeconfig", self.kubeconfig]

    def helm_command(self) -> Words:
        """The words that begin every Helm command for this cluster; Helm is installed where it is missing."""
        return [build.helm(), "--kubeconfig", self.kubeconfig]

    def kubectl(self, *words: str | Path, stdin: str = "") -> str:
        """Run kubectl and return its output; raises ToolError with kubectl's own message."""
        return run([*self.kubectl_command(), *words], what=f"kubectl {words[0]}", stdin=stdin)

    def helm(self, *words: str | Path) -> str:
        """Run Helm and return its output; raises ToolError with Helm's own message."""
        return run([*self.helm_command(), *words], what=f"helm {words[0]}")
