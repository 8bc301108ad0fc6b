"""Where the cluster keeps its files, and its addresses.

Addresses are fixed: they are inside certificates, and everything on the machine may rely on them.
"""

from dataclasses import dataclass
from pathlib import Path

from hack.cache import cache_dir

HOST_ADDRESS = "10.123.0.1"
NODE_ADDRESS = "10.123.0.2"
NODE_NAME = "node-1"
POD_RANGE = "10.244.0.0/16"
NODE_POD_RANGE = "10.244.0.0/24"
SERVICE_RANGE = "10.96.0.0/16"
DNS_ADDRESS = "10.96.0.10"
HOST_INTERFACE = "bs-host"
CGROUP = "billing-shards"
VOLUMES = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one cluster. All of it is state: removed by `down`."""

    root: Path
    sockets: Path

    @classmethod
    def default(cls) -> "Layout":
        # A socket's path is limited to 107 bytes; the cache folder's may be longer.
        return cls(cache_dir() / "cluster" / "state", Path("/run/billing-shards"))

    @property
    def lock(self) -> Path:
        """Outside the state, which is removed while it is held."""
        return self.root.with_name("lock")

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
        return self.root / "containerd"

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
