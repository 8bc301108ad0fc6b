"""Where a cluster keeps its files, and its addresses.

Addresses are fixed for each number: they are inside certificates, and everything on the machine may rely on them.
"""

from dataclasses import dataclass
from pathlib import Path

from hack.cache import cache_dir

NODE_NAME = "node-1"
VOLUMES = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths and addresses of one cluster; all files but the images are state, removed by `down`.

    Number 0 is the machine's cluster. Others (up to 99) may run beside it, for tests that break theirs.
    """

    number: int = 0

    @property
    def name(self) -> str:
        """Also of the control group that all pods are below, and of the pods' network."""
        return f"billing-shards-{self.number}" if self.number else "billing-shards"

    @property
    def host_address(self) -> str:
        return f"10.123.{self.number}.1"

    @property
    def node_address(self) -> str:
        return f"10.123.{self.number}.2"

    @property
    def host_interface(self) -> str:
        return f"bs-host{self.number or ''}"

    @property
    def pod_range(self) -> str:
        return f"10.{244 - self.number}.0.0/16"

    @property
    def node_pod_range(self) -> str:
        return f"10.{244 - self.number}.0.0/24"

    @property
    def service_range(self) -> str:
        return f"10.{96 + self.number}.0.0/16"

    @property
    def dns_address(self) -> str:
        return f"10.{96 + self.number}.0.10"

    @property
    def root(self) -> Path:
        return cache_dir() / "cluster" / f"state{self.number or ''}"

    @property
    def sockets(self) -> Path:
        """A socket's path is limited to 107 bytes; the cache folder's may be longer."""
        return Path("/run") / self.name

    @property
    def lock(self) -> Path:
        """Outside the state, which is removed while it is held."""
        return self.root.with_name(f"lock{self.number or ''}")

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def volumes(self) -> Path:
        return self.root / "volumes"

    @property
    def containerd(self) -> Path:
        """Images take a minute to load: they are kept beside the state, and the next cluster finds them."""
        return self.root.with_name(f"containerd{self.number or ''}")

    @property
    def kubeconfig(self) -> Path:
        """For people: a member of the cluster's administrators, who must exist as a role binding first."""
        return self.etc / "admin.conf"

    @property
    def bootstrap_kubeconfig(self) -> Path:
        """Passes every authorization by its group alone, before any role exists."""
        return self.etc / "super-admin.conf"

    @property
    def containerd_socket(self) -> Path:
        return self.sockets / "containerd.sock"

    @property
    def processes(self) -> Path:
        return self.root / "processes.json"
