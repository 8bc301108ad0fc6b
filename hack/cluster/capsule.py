"""A set of namespaces that holds the whole cluster, and takes all of it along when it ends.

One small process is the first of a process namespace, with a network and a mount namespace of its own. Every component
joins them. When that process dies, for whatever reason, the kernel kills every process inside (pods and container
shims too), and with the last of them go the mounts and the network: nothing has to be found and undone one by one.
Only the kernel's control groups and one end of a network cable are outside.
"""

import contextlib
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from hack.cluster.layout import Layout
from hack.errors import ToolError
from hack.host import Words, run
from hack.processes import ProcessIdentity, spawn

_CGROUPS = Path("/sys/fs/cgroup")
_HIDDEN = ("/run/containerd", "/run/netns", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods")
"""Fixed paths that components write to, whatever they are told: inside, each is an empty folder in memory."""

_ENTER = 'mount -t proc proc /proc && for d in $1; do mount -t tmpfs none "$d" || exit; done && exec "$2"'


def open_capsule(layout: Layout, holder: Path) -> ProcessIdentity:
    """Begin to make the namespaces; returns the process whose end is theirs."""
    for folder in _HIDDEN:
        Path(folder).mkdir(parents=True, exist_ok=True)
    for group in _cgroup_folders(layout.name):
        group.mkdir(exist_ok=True)
    namespaces = ["--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child"]
    command: Words = ["unshare", *namespaces, "--", "sh", "-c", _ENTER, "sh", " ".join(_HIDDEN), holder]
    return spawn(command, log=layout.logs / "capsule.log", tied=False)


def connect_capsule(layout: Layout, capsule: ProcessIdentity, holder: Path) -> ProcessIdentity:
    """Wait until the namespaces are made and give them their network; returns the first process inside."""
    first = _wait_for_holder(capsule, holder)
    _connect(layout, first)
    return first


def close_capsule(layout: Layout, capsule: ProcessIdentity | None, first: ProcessIdentity | None) -> None:
    """End everything inside, and remove the two things that are outside. Doing it twice is fine."""
    if capsule is not None:
        capsule.kill()
    # The first process is gone only when all others of its namespace are: none writes to the state any more.
    if first is not None:
        first.kill()
    subprocess.run(["ip", "link", "delete", layout.host_interface], capture_output=True, check=False)
    for group in _cgroup_folders(layout.name):
        _remove_cgroup(group)


def inside(first: ProcessIdentity, argv: Sequence[str | Path]) -> Words:
    """The command that runs `argv` within the capsule.

    `ip netns exec` would not do: it mounts /sys anew and so hides the control groups.
    """
    return ["nsenter", "--target", str(first.pid), "--mount", "--net", "--pid", "--", *argv]


def _wait_for_holder(capsule: ProcessIdentity, holder: Path) -> ProcessIdentity:
    """Until the mounts are done, which is when the shell has become the holder."""
    deadline = time.monotonic() + 10
    while capsule.alive and time.monotonic() < deadline:
        children = Path(f"/proc/{capsule.pid}/task/{capsule.pid}/children").read_text().split()
        with contextlib.suppress(FileNotFoundError):  # it has ended: the loop sees that too
            if children and Path(f"/proc/{children[0]}/exe").readlink() == holder:
                return ProcessIdentity.of(int(children[0]))
        time.sleep(0.01)
    raise ToolError("the cluster's namespaces could not be made; see capsule.log")


def _connect(layout: Layout, first: ProcessIdentity) -> None:
    """A cable between host and node, and on the host the routes to pods and services through the node."""
    peer = ["peer", "name", "eth0", "netns", str(first.pid)]
    for words in (
        ["ip", "link", "add", layout.host_interface, "type", "veth", *peer],
        ["ip", "address", "add", f"{layout.host_address}/24", "dev", layout.host_interface],
        ["ip", "link", "set", layout.host_interface, "up"],
        inside(first, ["ip", "link", "set", "lo", "up"]),
        inside(first, ["ip", "address", "add", f"{layout.node_address}/24", "dev", "eth0"]),
        inside(first, ["ip", "link", "set", "eth0", "up"]),
        inside(first, ["ip", "route", "add", "default", "via", layout.host_address]),
        inside(first, ["sysctl", "-qw", "net.ipv4.ip_forward=1"]),
        ["ip", "route", "add", layout.pod_range, "via", layout.node_address],
        ["ip", "route", "add", layout.service_range, "via", layout.node_address],
    ):
        run(words, what="the cluster's network")


def _cgroup_folders(name: str) -> list[Path]:
    """The folder that all pods are below: one in version 2, one in each hierarchy in version 1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS / name]
    hierarchies = [path for path in _CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]
    return [path / name for path in hierarchies]


def _remove_cgroup(folder: Path) -> None:
    """Remove a control group and those below it; their last processes may take a moment to leave."""
    if not folder.exists():
        return
    for below in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        _remove_folder_when_empty(below)
    _remove_folder_when_empty(folder)


def _remove_folder_when_empty(folder: Path) -> None:
    deadline = time.monotonic() + 10
    while folder.exists():
        try:
            folder.rmdir()
        except OSError as error:
            if time.monotonic() > deadline:
                raise ToolError(f"control group {folder} still has processes") from error
            time.sleep(0.05)
