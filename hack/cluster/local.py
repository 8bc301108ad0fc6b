"""One-node Kubernetes as processes of this machine: where neither Docker nor an image registry is there."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from hack.cache import locked, remove
from hack.cluster import build, components, files
from hack.cluster.capsule import close_capsule, connect_capsule, inside, open_capsule
from hack.cluster.layout import NODE_NAME, VOLUMES, Layout
from hack.errors import ToolError
from hack.host import Words, can_stack, ensure_commands, require_root, run
from hack.processes import ProcessIdentity, spawn

_CAPSULE = "capsule"
_FIRST = "first process"


class LocalCluster:
    """A cluster in namespaces of this machine. Number 0 is the one that all programs share; see Layout for others."""

    def __init__(self, number: int = 0) -> None:
        self._layout = Layout(number)

    @property
    def host_address(self) -> str:
        return self._layout.host_address

    @property
    def node_address(self) -> str:
        return self._layout.node_address

    @property
    def kubeconfig(self) -> Path:
        return self._layout.kubeconfig

    @property
    def logs(self) -> Path:
        return self._layout.logs

    def kubectl_command(self) -> Words:
        """Always the one of the cluster's own version."""
        return [build.kube(), "kubectl"]

    def up(self) -> None:
        """Start the cluster unless it runs; what an unclean end has left is removed first. Raises ToolError."""
        require_root("the local cluster")
        with locked(self._layout.lock):
            if not self.healthy():
                self._clear()
                self._start()

    def down(self) -> None:
        """End every process of the cluster and remove its state, but not its images. Doing it twice is fine."""
        with locked(self._layout.lock):
            self._clear()

    def crash(self) -> None:
        """Kill every process that was started here, as a power cut would; nothing is cleaned up."""
        for process in self._recorded().values():
            process.kill()

    def processes(self) -> dict[str, bool]:
        """The components by name, and whether each runs; empty where the cluster is down."""
        return {name: process.alive for name, process in self._recorded().items()}

    def healthy(self) -> bool:
        """Whether every component runs and the API answers that it is ready."""
        running = self.processes()
        if not running or not all(running.values()):
            return False
        return self._answers("get", "--raw", "/readyz")

    def load(self, archives: Sequence[Path]) -> None:
        """Import image archives into the node; pods find them by the names that the archives hold."""
        for archive in archives:
            note = self._layout.containerd / f"{archive.name}.loaded"
            version = f"{archive.stat().st_mtime_ns} {archive.stat().st_size}"
            if note.exists() and note.read_text() == version:
                continue
            ctr: Words = ["ctr", "--address", self._layout.containerd_socket, "--namespace", "k8s.io"]
            importing: Words = ["images", "import", "--snapshotter", self._snapshotter(), archive]
            run([*ctr, *importing], what=f"loading {archive.name}")
            note.write_text(version)

    def service_url(self, namespace: str, name: str, port: int) -> str:
        """The host has a route to service addresses."""
        path = "jsonpath={.spec.clusterIP}"
        address = self._kubectl("get", "service", name, "--namespace", namespace, "--output", path)
        return f"http://{address}:{port}"

    def _start(self) -> None:
        ensure_commands(build.NODE_COMMANDS)
        kube, coredns, pause_image = build.kube(), build.coredns(), build.pause_archive()
        layout = self._layout
        doubt = layout.containerd / "started"
        if doubt.exists():
            # The cluster before this one never came up: should its images be the reason, they must not be met again.
            remove(layout.containerd)
        for folder in (layout.sockets, layout.logs, layout.etc, layout.etc / "cni", layout.containerd):
            folder.mkdir(parents=True, exist_ok=True)
        doubt.touch()
        self._make_volumes()
        capsule = open_capsule(layout, build.pause())
        self._record(_CAPSULE, capsule)
        self._record(_FIRST, connect_capsule(layout, capsule, build.pause()))
        self._write_files()
        self._begin("etcd", components.etcd(kube, layout))
        self._begin("containerd", components.containerd(layout))
        self._write_certificates(kube)
        self._begin("kube-apiserver", components.apiserver(kube, layout))
        with ThreadPoolExecutor(max_workers=1) as beside:
            loading = beside.submit(self._load_first_image, pause_image)
            self._until("the API server", lambda: self._answers("get", "--raw", "/readyz"))
            loading.result()
        self._kubectl("create", "--filename", "-", stdin=files.first_objects(layout))
        self._begin("kube-controller-manager", components.controller_manager(kube, layout))
        self._begin("kube-scheduler", components.scheduler(kube, layout))
        self._begin("kubelet", components.kubelet(kube, layout))
        self._begin("kube-proxy", components.kube_proxy(kube, layout))
        self._begin("coredns", components.coredns(coredns, layout))
        self._wait_for_node()
        doubt.unlink()

    def _load_first_image(self, archive: Path) -> None:
        self._until("containerd", self._layout.containerd_socket.exists)
        self.load([archive])

    def _wait_for_node(self) -> None:
        self._kubectl("wait", "--for=create", f"node/{NODE_NAME}", "--timeout=60s")
        self._kubectl("wait", "--for=condition=Ready", f"node/{NODE_NAME}", "--timeout=60s")
        # Pods are refused until their namespace has its service account.
        self._kubectl("wait", "--for=create", "serviceaccount/default", "--namespace=default", "--timeout=60s")

    def _make_volumes(self) -> None:
        """Writable by every user, as a pod's own user is not known here."""
        for number in range(1, VOLUMES + 1):
            volume = self._layout.volumes / str(number)
            volume.mkdir(parents=True)
            volume.chmod(0o777)

    def _write_files(self) -> None:
        layout = self._layout
        texts = {
            "kubeadm.yaml": files.kubeadm(layout),
            "containerd.toml": files.containerd(layout, snapshotter=self._snapshotter()),
            "cni/10-bridge.conflist": files.pod_network(layout),
            "kubelet.json": files.kubelet(layout),
            "kube-proxy.json": files.kube_proxy(layout),
            "Corefile": files.corefile(layout),
            "resolv.conf": f"nameserver {layout.node_address}\n",
        }
        for name, text in texts.items():
            (layout.etc / name).write_text(text)

    def _write_certificates(self, kube: Path) -> None:
        phase: Words = [kube, "kubeadm", "init", "phase"]
        config: Words = ["--config", self._layout.etc / "kubeadm.yaml"]
        run([*phase, "certs", "all", *config], what="the cluster's certificates")
        kubeconfigs: Words = ["kubeconfig", "all", "--kubeconfig-dir", self._layout.etc]
        run([*phase, *kubeconfigs, *config], what="the cluster's kubeconfigs")

    def _snapshotter(self) -> str:
        return "overlayfs" if can_stack(self._layout.containerd) else "native"

    def _begin(self, name: str, argv: Sequence[str | Path]) -> None:
        first = self._recorded()[_FIRST]
        process = spawn(inside(first, argv), log=self._layout.logs / f"{name}.log", tied=False)
        self._record(name, process)

    def _until(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not ready():
            dead = [name for name, alive in self.processes().items() if not alive]
            if dead or time.monotonic() > deadline:
                raise ToolError(f"{what} did not become ready; ended: {dead or 'nothing'}; logs in {self.logs}")
            time.sleep(0.1)

    def _answers(self, *words: str) -> bool:
        command = [*self.kubectl_command(), "--kubeconfig", self._layout.bootstrap_kubeconfig, *words]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _kubectl(self, *words: str, stdin: str = "") -> str:
        command = [*self.kubectl_command(), "--kubeconfig", self._layout.bootstrap_kubeconfig, *words]
        return run(command, what=f"kubectl {words[0]}", stdin=stdin)

    def _recorded(self) -> dict[str, ProcessIdentity]:
        if not self._layout.processes.exists():
            return {}
        recorded = json.loads(self._layout.processes.read_text())
        return {name: ProcessIdentity(**identity) for name, identity in recorded.items()}

    def _record(self, name: str, process: ProcessIdentity) -> None:
        known = {**self._recorded(), name: process}
        unfinished = self._layout.processes.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({key: asdict(value) for key, value in known.items()}))
        unfinished.replace(self._layout.processes)

    def _clear(self) -> None:
        recorded = self._recorded()
        close_capsule(self._layout, recorded.get(_CAPSULE), recorded.get(_FIRST))
        remove(self._layout.root)
        remove(self._layout.sockets)
