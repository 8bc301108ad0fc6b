"""The configuration files of the components, as JSON (which is YAML) or their own formats. Pure: texts from a layout."""

import json
from typing import Any

from hack.cluster.build import KUBERNETES_VERSION, PAUSE_IMAGE
from hack.cluster.layout import NODE_NAME, VOLUMES, Layout


def kubeadm(layout: Layout) -> str:
    """What kubeadm needs to write certificates and kubeconfigs, the only things it does here."""
    init = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "localAPIEndpoint": {"advertiseAddress": layout.node_address, "bindPort": 6443},
        "nodeRegistration": {"name": NODE_NAME, "criSocket": f"unix://{layout.containerd_socket}"},
    }
    cluster = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "kubernetesVersion": f"v{KUBERNETES_VERSION}",
        "certificatesDir": str(layout.pki),
        "networking": {"serviceSubnet": layout.service_range, "podSubnet": layout.pod_range},
    }
    return f"{json.dumps(init)}\n---\n{json.dumps(cluster)}\n"


def containerd(layout: Layout, *, snapshotter: str) -> str:
    """Without CAP_SYS_RESOURCE runc dies on a negative oom score, hence `restrict_oom_score_adj`."""
    return f"""version = 2
root = "{layout.containerd}"
state = "{layout.sockets}/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{layout.etc}/cni"
"""


def pod_network(layout: Layout) -> str:
    """Pods on a bridge; what they send outside carries the node's address."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": layout.node_pod_range}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True}
    plugins = [{**bridge, "ipam": addresses}, {"type": "portmap", "capabilities": {"portMappings": True}}]
    return json.dumps({"cniVersion": "0.4.0", "name": layout.name, "plugins": plugins})


def kubelet(layout: Layout) -> str:
    """One node with all of the machine; kubelet 1.35 refuses version 1 of control groups unless told otherwise."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDomain": "cluster.local",
            "clusterDNS": [layout.dns_address],
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{layout.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
            "resolvConf": f"{layout.etc}/resolv.conf",
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "enforceNodeAllocatable": [],
            "podLogsDir": f"{layout.root}/podlogs",
            "volumePluginDir": f"{layout.root}/plugins",
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "10s",
        }
    )


def kube_proxy(layout: Layout) -> str:
    """Connection tracking's limits belong to the host and are left alone."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": layout.pod_range,
            "clientConnection": {"kubeconfig": str(layout.kubeconfig)},
            "hostnameOverride": NODE_NAME,
            "conntrack": {"maxPerCore": 0},
        }
    )


def corefile(layout: Layout) -> str:
    """Names of the cluster only: nothing in it needs the outside."""
    return f""".:53 {{
  bind {layout.node_address}
  kubernetes cluster.local in-addr.arpa {{
    endpoint https://{layout.node_address}:6443
    kubeconfig {layout.kubeconfig}
  }}
  cache 5
}}
"""


def first_objects(layout: Layout) -> str:
    """What every cluster has: its name server's Service, a default storage class, and here a few volumes for it."""
    objects = [_administrators(), *_name_service(layout), _storage_class()]
    objects += [_volume(layout, number) for number in range(1, VOLUMES + 1)]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def _administrators() -> dict[str, Any]:
    group = "kubeadm:cluster-admins"
    rbac = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": group},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": rbac, "kind": "Group", "name": group}],
    }


def _name_service(layout: Layout) -> list[dict[str, Any]]:
    """CoreDNS runs on the node itself, so its endpoint is written by hand."""
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": layout.dns_address, "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [layout.node_address], "conditions": {"ready": True}}],
        "ports": ports,
    }
    return [service, endpoints]


def _storage_class() -> dict[str, Any]:
    """Named as kind's, so that the same claims work on both."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _volume(layout: Layout, number: int) -> dict[str, Any]:
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"volume-{number}"},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "standard",
            "local": {"path": f"{layout.volumes}/{number}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
        },
    }
