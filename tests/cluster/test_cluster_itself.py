"""The cluster that the other tests rely on: pods, names, services, volumes and the restricted level, seen from both sides."""

import http.server
import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from hack.cluster import Cluster
from hack.errors import ToolError
from hack.images import targets

NAMESPACE = f"itself-{uuid4().hex[:8]}"
RESTRICTED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
SERVE = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8080)"


def _pod(name: str, command: list[str], image: str, **container: Any) -> dict[str, Any]:
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    main = {"name": "main", "image": image, "command": command, "securityContext": security, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
        "spec": {"containers": [main], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0},
    }


def _create(cluster: Cluster, *objects: dict[str, Any]) -> None:
    cluster.kubectl("create", "--filename", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> str:
    name = targets.build("claimer")
    cluster.load([name])
    return name


@pytest.fixture(scope="module")
def web(cluster: Cluster, image: str) -> Iterator[str]:
    """A namespace under the restricted level with a web server `web` and its Service."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    try:
        cluster.kubectl("patch", "namespace", NAMESPACE, "--patch", json.dumps(RESTRICTED))
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        }
        probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
        _create(cluster, _pod("web", ["python3", "-c", SERVE], image, readinessProbe=probe), service)
        cluster.kubectl("wait", "--for=condition=Ready", "pod/web", "--namespace", NAMESPACE, "--timeout=120s")
        yield "web"
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")


def _in_pod(cluster: Cluster, script: str) -> str:
    return cluster.kubectl("exec", "web", "--namespace", NAMESPACE, "--", "python3", "-c", script)


def test_the_node_is_ready(cluster: Cluster) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output", "json"))["items"]
    assert len(nodes) == 1
    conditions = {condition["type"]: condition["status"] for condition in nodes[0]["status"]["conditions"]}
    assert conditions["Ready"] == "True"


def test_up_leaves_a_healthy_cluster_alone(cluster: Cluster) -> None:
    before = cluster.kubectl("get", "namespace", "default", "--output", "jsonpath={.metadata.uid}")
    cluster.up()
    assert cluster.kubectl("get", "namespace", "default", "--output", "jsonpath={.metadata.uid}") == before


@pytest.mark.usefixtures("web")
def test_a_restricted_pod_runs_as_nobody_on_a_read_only_root(cluster: Cluster) -> None:
    script = "import os\ntry:\n    open('/opt/x', 'w')\nexcept OSError as e:\n    print(os.getuid(), e.strerror)"
    assert _in_pod(cluster, script).strip() == "10001 Read-only file system"


@pytest.mark.usefixtures("web")
def test_a_pod_that_asks_for_more_is_refused(cluster: Cluster, image: str) -> None:
    privileged = _pod("privileged", ["true"], image, securityContext={"privileged": True})
    with pytest.raises(ToolError, match="violates PodSecurity"):
        _create(cluster, privileged)


@pytest.mark.usefixtures("web")
def test_a_service_is_found_by_its_name_from_a_pod(cluster: Cluster) -> None:
    script = f"import urllib.request as u; print(u.urlopen('http://web.{NAMESPACE}.svc.cluster.local/').status)"
    assert _in_pod(cluster, script).strip() == "200"


def test_a_service_is_reached_from_the_host(cluster: Cluster, web: str) -> None:
    with urllib.request.urlopen(cluster.service_url(NAMESPACE, web, 80), timeout=30) as answer:  # noqa: S310
        assert answer.status == 200


@pytest.mark.usefixtures("web")
def test_a_pod_reaches_the_host(cluster: Cluster) -> None:
    server = http.server.ThreadingHTTPServer((cluster.host_address, 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        # 501: the handler has no methods, which is an answer all the same.
        script = (
            "import urllib.request as u, urllib.error as e\n"
            f"try:\n    u.urlopen('http://{cluster.host_address}:{server.server_port}/', timeout=30)\n"
            "except e.HTTPError as error:\n    print(error.code)"
        )
        assert _in_pod(cluster, script).strip() == "501"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.usefixtures("web")
def test_logs_are_read(cluster: Cluster) -> None:
    assert "Serving HTTP" in cluster.kubectl("logs", "web", "--namespace", NAMESPACE)


def test_helm_reaches_the_cluster(cluster: Cluster) -> None:
    assert json.loads(cluster.helm("list", "--namespace", NAMESPACE, "--output", "json")) == []


def test_up_replaces_a_cluster_that_died_uncleanly() -> None:
    other = Cluster(1)
    try:
        other.up()
        other.kubectl("create", "namespace", "lost")
        other.crash()
        assert not other.healthy()
        other.up()
        assert other.healthy()
        with pytest.raises(ToolError, match="not found"):
            other.kubectl("get", "namespace", "lost")
    finally:
        other.down()
    assert other.processes() == {}
    other.down()
