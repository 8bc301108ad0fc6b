"""The chart as Helm renders it. Needs Helm, and no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import Cluster
from tests.cluster.operator_site import refusal

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "billing-shards"


def helm(*words: str | Path) -> str:
    return Cluster().helm(*words)


def render(*settings: str, chart: Path = CHART) -> list[dict[str, Any]]:
    words = [part for setting in settings for part in ("--set", setting)]
    text = helm("template", "bill", chart, "--namespace", "billing", *words)
    return [document for document in yaml.safe_load_all(text) if document]


def only(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


@pytest.fixture(scope="module")
def default() -> list[dict[str, Any]]:
    return render()


def test_it_lints() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


def test_it_installs_the_definition_and_keeps_it(default: list[dict[str, Any]]) -> None:
    (definition,) = only(default, "CustomResourceDefinition")
    assert definition == yaml.safe_load((ROOT / "crds" / "billingshardsets.yaml").read_text())
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert only(render("crds.install=false"), "CustomResourceDefinition") == []


def test_a_packed_chart_holds_the_definition_too(tmp_path: Path, default: list[dict[str, Any]]) -> None:
    helm("package", CHART, "--destination", tmp_path)
    (packed,) = tmp_path.iterdir()
    assert render(chart=packed) == default


def test_the_operator_is_restricted_to_its_own_namespace(default: list[dict[str, Any]]) -> None:
    (role,) = only(default, "Role")
    assert role["metadata"]["namespace"] == "billing"
    bound = {document["metadata"]["name"] for document in only(default, "ClusterRoleBinding")}
    assert bound == set()
    (container,) = only(default, "Deployment")[0]["spec"]["template"]["spec"]["containers"]
    assert {"name": "BILLING_SHARDS_NAMESPACES", "value": "billing"} in container["env"]


def test_rights_are_few(default: list[dict[str, Any]]) -> None:
    (role,) = only(default, "Role")
    by_resource = {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]}
    assert by_resource["secrets"] == ["get"]
    assert by_resource["pods"] == ["list"]
    assert set(by_resource) == {
        "billingshardsets",
        "billingshardsets/status",
        "secrets",
        "configmaps",
        "services",
        "deployments",
        "jobs",
        "poddisruptionbudgets",
        "pods",
        "events",
    }
    for rule in (rule for kind in ("Role", "ClusterRole") for document in only(default, kind) for rule in document["rules"]):
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_namespaces_can_be_chosen() -> None:
    chosen = render("watchNamespaces={one,two}")
    assert [role["metadata"]["namespace"] for role in only(chosen, "Role")] == ["one", "two"]
    assert [binding["subjects"][0]["namespace"] for binding in only(chosen, "RoleBinding")] == ["billing", "billing"]
    policies = {(p["metadata"]["namespace"], p["metadata"]["name"]) for p in only(chosen, "NetworkPolicy")}
    assert policies == {
        ("billing", "bill-billing-shards"),
        ("one", "bill-billing-shards-pods"),
        ("two", "bill-billing-shards-pods"),
    }


def test_the_whole_cluster_can_be_chosen_and_not_both() -> None:
    whole = render("clusterWide=true")
    assert only(whole, "Role") == []
    assert len(only(whole, "ClusterRoleBinding")) == 1
    (container,) = only(whole, "Deployment")[0]["spec"]["template"]["spec"]["containers"]
    assert {"name": "BILLING_SHARDS_NAMESPACES", "value": ""} in container["env"]
    message = refusal(lambda: render("clusterWide=true", "watchNamespaces={one}"))
    assert "watchNamespaces and clusterWide exclude each other" in message


def test_one_operator_under_the_restricted_level(default: list[dict[str, Any]]) -> None:
    (deployment,) = only(default, "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["livenessProbe"]["timeoutSeconds"] > 10
    assert container["resources"]["requests"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("controller.imgae.tag=1", "imgae"),
        ("watchNamespace=one", "watchNamespace"),
        ("controller.workers=0", "workers"),
        ("controller.image.digest=latest", "digest"),
        ("controller.logLevel=trace", "logLevel"),
        ("watchNamespaces={Not_A_Name}", "watchNamespaces"),
    ],
)
def test_values_that_would_be_ignored_or_wrong_are_refused(setting: str, words: str) -> None:
    assert words in refusal(lambda: render(setting))


def test_images_can_be_pinned() -> None:
    digest = f"sha256:{'a' * 64}"
    pinned = render(f"controller.image.digest={digest}", "claimer.image.tag=v7", "imagePullSecrets={pull}")
    pod = only(pinned, "Deployment")[0]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"billing-shards/controller@{digest}"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    environment = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert environment["BILLING_SHARDS_IMAGE"] == "billing-shards/claimer:v7"
    assert environment["BILLING_SHARDS_IMAGE_PULL_SECRETS"] == "pull"


def test_monitoring_is_off_until_asked_for(default: list[dict[str, Any]]) -> None:
    assert only(default, "PodMonitor") == []
    (monitor,) = only(render("monitoring.podMonitor.enabled=true", "watchNamespaces={one}"), "PodMonitor")
    assert monitor["spec"]["namespaceSelector"]["matchNames"] == ["one", "billing"]


def test_outgoing_connections_can_be_restricted() -> None:
    documents = render("networkPolicy.egress.enabled=true", "networkPolicy.egress.databasePorts={3306,3307}")
    ports = {
        p["metadata"]["name"]: {port["port"] for port in p["spec"]["egress"][0]["ports"]}
        for p in only(documents, "NetworkPolicy")
    }
    assert ports["bill-billing-shards"] == {53, 443, 6443, 3306, 3307}
    assert ports["bill-billing-shards-pods"] == {53, 443, 3306, 3307, 4222, 5671, 5672}
    assert only(render("networkPolicy.enabled=false"), "NetworkPolicy") == []


def test_every_value_is_known_to_the_schema() -> None:
    """Each value of values.yaml set to itself passes; the schema refuses all that is not there."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())

    def walk(value: Any, node: dict[str, Any], path: str) -> None:
        if isinstance(value, dict) and "properties" in node:
            assert node["additionalProperties"] is False, path
            assert set(value) <= set(node["properties"]), path
            for name, child in value.items():
                walk(child, node["properties"][name], f"{path}.{name}")

    walk(values, schema, "values")
