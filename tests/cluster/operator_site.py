"""What tests of the operator work with: kubectl on one namespace, the operator as a process, and schemas on real servers."""

from __future__ import annotations

import json
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import kubernetes

from billing_shards.kube.api import KubeApi
from hack.cluster import Cluster
from hack.errors import ToolError
from hack.mysql import MySQLServer
from hack.processes import ProcessIdentity, spawn
from tests.mysql.shard_set import APPLICATION, OWNER, Site

T = TypeVar("T")

NO_IMAGE = "localhost/billing-shards-none:none"
"""Pods of it never start: tests of what the operator decides need none, and two processors are soon busy."""


@dataclass(kw_only=True)
class OperatorProcess:
    """The operator outside the cluster, with an administrator's rights; `log` is all that it ever said."""

    kubeconfig: Path
    namespaces: Sequence[str]
    log: Path
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    process: ProcessIdentity | None = None

    def start(self) -> None:
        settings = {
            "KUBECONFIG": str(self.kubeconfig),
            "BILLING_SHARDS_NAMESPACES": ",".join(self.namespaces),
            "BILLING_SHARDS_IMAGE": NO_IMAGE,
            "BILLING_SHARDS_IMAGE_PULL_POLICY": "Never",
            "BILLING_SHARDS_PROBE_PORT": str(self.ports[0]),
            "BILLING_SHARDS_METRICS_PORT": str(self.ports[1]),
        }
        words = ["env", *(f"{name}={value}" for name, value in settings.items())]
        script = "from billing_shards.kube.main import main; main()"
        self.process = spawn([*words, sys.executable, "-c", script], log=self.log, tied=True)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop(grace_seconds=20)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def page(self, port: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            text: bytes = answer.read()
        return text.decode()

    def health(self) -> str:
        return self.page(self.ports[0], "/healthz")

    def metrics(self) -> str:
        return self.page(self.ports[1], "/metrics")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Namespace:
    """One namespace of the cluster, for one test. What is read often is read without starting kubectl."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        client = kubernetes.config.new_client_from_config(str(cluster.kubeconfig))  # type: ignore[no-untyped-call]
        self._api = KubeApi(client)

    def create(self) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": labels}}
        self.cluster.kubectl("create", "-f", "-", stdin=json.dumps(namespace))

    def delete(self) -> None:
        """Resources first: their finalizers are the operator's, who must still be there."""
        self.kubectl("delete", "billingshardsets", "--all", "--timeout=60s")
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")

    def kubectl(self, *words: str, stdin: str = "") -> str:
        return self.cluster.kubectl(words[0], "--namespace", self.name, *words[1:], stdin=stdin)

    def apply(self, manifest: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", **manifest}))

    def secret(self, name: str, **data: str) -> None:
        self.apply({"kind": "Secret", "metadata": {"name": name}, "stringData": data})

    def secrets(self, site: Site, *, without: Sequence[str] = ()) -> None:
        secrets = [
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
            for name, data in site.secrets_by_name.items()
            if name not in without
        ]
        self.apply({"kind": "List", "items": secrets})

    def shard_set(self, spec: dict[str, Any], name: str = "main") -> None:
        kind = {"apiVersion": "billingshards.io/v1alpha1", "kind": "BillingShardSet"}
        self.apply({**kind, "metadata": {"name": name}, "spec": spec})

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self._api.get(kind, self.name, name)

    def all(self, kind: str) -> list[dict[str, Any]]:
        return self._api.list(kind, self.name)

    def names(self, *kinds: str) -> set[str]:
        return {found["metadata"]["name"] for kind in kinds for found in self.all(kind)}

    def status(self, name: str = "main") -> dict[str, Any]:
        found = self.get("BillingShardSet", name)
        return {} if found is None else dict(found.get("status", {}))

    def condition(self, kind: str, name: str = "main") -> dict[str, Any]:
        """One condition, judged by the generation that the resource has now; empty where there is none yet."""
        found = self.get("BillingShardSet", name) or {}
        for condition in found.get("status", {}).get("conditions", []):
            if condition["type"] == kind and condition["observedGeneration"] == found["metadata"]["generation"]:
                return dict(condition)
        return {}

    def reason(self, kind: str, name: str = "main") -> str:
        return str(self.condition(kind, name).get("reason", ""))

    def until_reason(self, kind: str, reason: str, name: str = "main", within: float = 45) -> dict[str, Any]:
        """Wait until a condition has this reason, and return it."""
        try:
            until(lambda: self.reason(kind, name) == reason, f"{kind} of {name} to be {reason}", within)
        except AssertionError as error:
            raise AssertionError(f"{error}; its status is {json.dumps(self.status(name), indent=1)}") from None
        return self.condition(kind, name)

    def until_event(self, reason: str, name: str = "main") -> None:
        until(lambda: reason in [found for found, _ in self.events(name)], f"an Event {reason} about {name}")

    def until_placed(self, name: str = "main") -> None:
        until(lambda: f"{name}-housekeeper" in self.names("Deployment"), f"pods of {name} to be wanted")

    def config(self, name: str = "main") -> dict[str, Any]:
        found = self.get("ConfigMap", f"{name}-config")
        return dict(json.loads(found["data"]["shardset.json"])) if found else {}

    def events(self, name: str = "main") -> list[tuple[str, str]]:
        found = json.loads(self.kubectl("get", "events", "--output=json"))["items"]
        about = [event for event in found if event["involvedObject"]["name"] == name]
        return [(event["reason"], event.get("message", "")) for event in about]


def until(true: Callable[[], T], what: str, within: float = 45) -> T:
    """Wait for something to become true, and return it. The time is a limit for a broken program, not an expectation."""
    deadline = time.monotonic() + within
    while not (found := true()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within:.0f} s for {what}")
        time.sleep(0.2)
    return found


def refusal(run: Callable[[], Any]) -> str:
    """What kubectl says when it is refused."""
    try:
        run()
    except ToolError as error:
        return str(error)
    raise AssertionError("was accepted")


def rows(server: MySQLServer, database: str, query: str) -> list[tuple[Any, ...]]:
    """Rows of a query, as root."""
    with server.client(database=database) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def owned_shards(site: Site) -> list[list[int]]:
    """The shards that each database owns by its fences."""
    query = "SELECT shard_id FROM shard_owner WHERE state = 1 ORDER BY shard_id"
    return [[row[0] for row in rows(server, site.database, query)] for server in site.servers]


__all__ = ["APPLICATION", "OWNER", "Namespace", "OperatorProcess", "owned_shards", "refusal", "rows", "until"]
