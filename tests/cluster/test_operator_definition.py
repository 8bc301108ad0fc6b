"""What a real API server accepts and refuses of a BillingShardSet, and in which words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from hack.cluster import Cluster
from hack.errors import ToolError
from tests.cluster.operator_site import refusal, until

pytestmark = pytest.mark.usefixtures("definitions")


def database(name: str, **more: Any) -> dict[str, Any]:
    secrets = {"credentialsSecret": {"name": "app"}, "schemaSecret": {"name": "owner"}}
    return {"name": name, "host": f"{name}.example", **secrets, **more}


def part(first: int, last: int, name: str = "a") -> dict[str, Any]:
    return {"from": first, "to": last, "database": name}


def resource(name: str = "main", **changes: Any) -> str:
    spec = {"databases": [database("a"), database("b")], "gateway": {"url": "http://gateway"}, **changes}
    kind = {"apiVersion": "billingshards.io/v1alpha1", "kind": "BillingShardSet"}
    return json.dumps({**kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec})


def dry_run(cluster: Cluster, manifest: str) -> str:
    return cluster.kubectl("create", "--dry-run=server", "--output=json", "-f", "-", stdin=manifest)


ACCEPTED: dict[str, dict[str, Any]] = {
    "no map": {},
    "whole map": {"shardMap": [part(0, 99), part(100, 255, "b")]},
    "any order": {"shardMap": [part(200, 255), part(0, 9), part(10, 199, "b")]},
    "one shard a range": {"shardMap": [part(shard, shard, "ab"[shard % 2]) for shard in reversed(range(256))]},
    "few shards": {"shardCount": 3, "shardMap": [part(0, 0), part(1, 2, "b")]},
    "weight 0 beside another": {"databases": [database("a", weight=0), database("b")]},
    "thirty-two databases": {"databases": [database(f"d{number}") for number in range(32)]},
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(cluster: Cluster, case: str) -> None:
    made = json.loads(dry_run(cluster, resource(**ACCEPTED[case])))
    assert made["spec"]["claimer"]["shardsPerDeployment"] == 16
    assert made["spec"]["databases"][0]["tls"] == {"mode": "verify"}
    assert made["spec"]["retry"]["delaysSeconds"] == [300, 1800, 7200, 43200, 86400]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gap inside": ({"shardMap": [part(0, 99), part(101, 255, "b")]}, "spec.shardMap: Invalid value: a gap or an overlap"),
    "gap at the end": ({"shardMap": [part(0, 254)]}, "spec.shardMap: Invalid value: a gap at the end"),
    "gap at the beginning": ({"shardMap": [part(1, 255)]}, "spec.shardMap: Invalid value: a gap at the beginning"),
    "overlap": ({"shardMap": [part(0, 99), part(99, 255, "b")]}, "spec.shardMap: Invalid value: a gap or an overlap"),
    "nested": ({"shardMap": [part(0, 255), part(9, 20, "b")]}, "spec.shardMap: Invalid value: a gap or an overlap"),
    "same start": ({"shardMap": [part(0, 255), part(0, 20, "b")]}, "spec.shardMap[1]: Duplicate value"),
    "backwards": ({"shardMap": [part(0, 255), part(9, 5)]}, "spec.shardMap[1]: Invalid value: from must not exceed to"),
    "beyond the end": (
        {"shardCount": 8, "shardMap": [part(0, 7), part(8, 9)]},
        "spec.shardMap: Invalid value: each range must end below spec.shardCount",
    ),
    "unknown database": (
        {"shardMap": [part(0, 255, "c")]},
        "spec.shardMap: Invalid value: names a database that spec.databases does not list",
    ),
    "no range": ({"shardMap": []}, "spec.shardMap: Invalid value: 0: spec.shardMap in body should have at least 1 items"),
    "same name twice": ({"databases": [database("a"), database("a")]}, "spec.databases[1]: Duplicate value"),
    "no database": ({"databases": []}, "spec.databases: Invalid value: 0"),
    "all weights 0": (
        {"databases": [database("a", weight=0)]},
        "spec.databases: Invalid value: without a shardMap, at least one database needs a weight above 0",
    ),
    "too many shards": ({"shardCount": 257}, "spec.shardCount: Invalid value: 257"),
    "replicas": (
        {"claimer": {"minReplicas": 5, "maxReplicas": 4}},
        "spec.claimer.minReplicas: Invalid value: must not exceed maxReplicas",
    ),
    "minimum above the default maximum": (
        {"claimer": {"minReplicas": 5}},
        "spec.claimer.minReplicas: Invalid value: must not exceed maxReplicas",
    ),
    "tls mode": ({"databases": [database("a", tls={"mode": "prefer"})]}, "spec.databases[0].tls.mode: Unsupported value"),
    "jitter": ({"retry": {"jitter": 0.6}}, "spec.retry.jitter: Invalid value: 0.6"),
    "timeout 0": ({"gateway": {"url": "http://x", "timeoutSeconds": 0}}, "spec.gateway.timeoutSeconds: Invalid value"),
    "url": ({"gateway": {"url": "ftp://x"}}, "spec.gateway.url: Invalid value"),
    "database name": ({"databases": [database("A`;")]}, "spec.databases[0].name: Invalid value"),
    "unknown field": ({"shardmap": []}, 'unknown field "spec.shardmap"'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_field_and_the_reason(cluster: Cluster, case: str) -> None:
    changes, words = REFUSED[case]
    assert words in refusal(lambda: dry_run(cluster, resource(**changes)))


def test_a_name_too_long_for_what_is_made_from_it_is_refused(cluster: Cluster) -> None:
    assert "metadata.name: must have at most 40 characters" in refusal(lambda: dry_run(cluster, resource("x" * 41)))
    dry_run(cluster, resource("x" * 40))


@pytest.fixture
def existing(cluster: Cluster) -> Iterator[str]:
    """A resource in a namespace that no operator watches."""
    name = f"set-{uuid4().hex[:8]}"
    cluster.kubectl("create", "-f", "-", stdin=resource(name))
    yield name
    cluster.kubectl("delete", "billingshardset", name, "--namespace=default")


def test_the_number_of_shards_can_never_change(cluster: Cluster, existing: str) -> None:
    def patch(spec: dict[str, Any]) -> str:
        words = ["patch", "bss", existing, "--namespace=default", "--type=merge", "--dry-run=server"]
        return cluster.kubectl(*words, "--patch", json.dumps({"spec": spec}))

    assert "spec.shardCount: Invalid value: 128: is immutable" in refusal(lambda: patch({"shardCount": 128}))
    patch({"paused": True, "shardCount": 256})


def test_unknown_fields_of_the_status_are_not_kept(cluster: Cluster, existing: str) -> None:
    words = ["patch", "bss", existing, "--namespace=default", "--type=merge", "--subresource=status", "--output=json"]
    patch = json.dumps({"status": {"backlog": 3, "keep": {"seen": 1}, "pendingPlan": None}})
    assert json.loads(cluster.kubectl(*words, "--patch", patch))["status"] == {"backlog": 3}


def test_columns_and_categories(cluster: Cluster, existing: str) -> None:
    heading, line = cluster.kubectl("get", "bss", existing, "--namespace=default").splitlines()
    shown = ["NAME", "READY", "REASON", "SHARDS", "DATABASES", "BACKLOG", "OLDEST", "DUE", "AGE"]
    assert heading.split() == shown
    assert "256" in line.split()
    for category in ("all", "billing"):
        assert existing in cluster.kubectl("get", category, "--namespace=default", "--output=name")


@pytest.mark.parametrize("path", ["spec.shardMap", "spec.databases.tls.mode", "status.pendingPlan", "status.conditions"])
def test_explained(cluster: Cluster, path: str) -> None:
    """The API server writes its documents some time after a definition is established: until then nobody can be told."""

    def explanation() -> str:
        try:
            return cluster.kubectl("explain", f"billingshardsets.{path}")
        except ToolError as error:
            if "couldn't find resource" not in str(error):
                raise
            return ""

    text = until(explanation, f"the API server to explain {path}")
    assert "DESCRIPTION" in text
    assert "<empty>" not in text
