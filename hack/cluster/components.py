"""The command line of each component. Pure: a name and its words from a layout."""

from pathlib import Path

from hack.cluster.layout import NODE_NAME, Layout
from hack.host import Words

_ETCD = "http://127.0.0.1:2379"
_ETCD_PEER = "http://127.0.0.1:2380"


def etcd(kube: Path, layout: Layout) -> Words:
    """Without fsync: the cluster's state need not survive the machine, and every write would wait for the disk."""
    return [
        kube,
        "etcd",
        f"--data-dir={layout.root}/etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        f"--listen-peer-urls={_ETCD_PEER}",
        f"--initial-advertise-peer-urls={_ETCD_PEER}",
        f"--initial-cluster=default={_ETCD_PEER}",
    ]


def containerd(layout: Layout) -> Words:
    return ["containerd", f"--config={layout.etc}/containerd.toml"]


def apiserver(kube: Path, layout: Layout) -> Words:
    pki = layout.pki
    return [
        kube,
        "kube-apiserver",
        f"--etcd-servers={_ETCD}",
        "--secure-port=6443",
        f"--advertise-address={layout.node_address}",
        "--allow-privileged=true",
        # The node's name resolves nowhere: logs and exec must use its address.
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-cluster-ip-range={layout.service_range}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={pki}/front-proxy-client.key",
    ]


def controller_manager(kube: Path, layout: Layout) -> Words:
    pki = layout.pki
    return [
        kube,
        "kube-controller-manager",
        "--leader-elect=false",
        "--use-service-account-credentials",
        "--allocate-node-cidrs",
        f"--cluster-cidr={layout.pod_range}",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        *_identities(layout.etc / "controller-manager.conf"),
    ]


def scheduler(kube: Path, layout: Layout) -> Words:
    return [kube, "kube-scheduler", "--leader-elect=false", *_identities(layout.etc / "scheduler.conf")]


def kubelet(kube: Path, layout: Layout) -> Words:
    return [
        kube,
        "kubelet",
        f"--config={layout.etc}/kubelet.json",
        f"--kubeconfig={layout.etc}/kubelet.conf",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={layout.node_address}",
        f"--root-dir={layout.root}/kubelet",
    ]


def kube_proxy(kube: Path, layout: Layout) -> Words:
    return [kube, "kube-proxy", f"--config={layout.etc}/kube-proxy.json"]


def coredns(program: Path, layout: Layout) -> Words:
    return [program, "-conf", layout.etc / "Corefile"]


def _identities(kubeconfig: Path) -> list[str]:
    roles = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [f"--{role}={kubeconfig}" for role in roles]
