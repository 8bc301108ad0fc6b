"""The whole of it, as a platform engineer meets it: installed by Helm, run from our images, under the restricted level.

One installation serves all tests of this file; each leaves the set Ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from hack.brokers import NatsServer
from hack.cluster import Cluster
from hack.errors import ToolError
from hack.images import targets
from hack.images.archives import PREFIX, TAG
from hack.mysql import MySQLServer
from tests.cluster.operator_site import Namespace, owned_shards, until
from tests.mysql.brokers import NatsSite, secrets_of
from tests.mysql.shard_set import APPLICATION, OWNER, Site

ROOT = Path(__file__).parents[2]
BY_FOUR = {"shardsPerDeployment": 4}
SECRETS = "/etc/billing-shards/secrets"
CSV = """id,customer_id,service,amount,currency,interval,start_date,time_zone,payment_method
sub-1,cust-1,video,9.90,USD,1 month,2036-01-31,UTC,pm_1
"""
IMPORT = "cat > /tmp/subscriptions.csv && billing-shards import /tmp/subscriptions.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A namespace with the release `bill`, and the schemas that its set `main` is about."""

    namespace: Namespace
    site: Site

    def wait_ready(self, seconds: int = 120) -> None:
        self.namespace.kubectl("wait", "--for=condition=Ready", "bss/main", f"--timeout={seconds}s")

    def edit(self, **changes: Any) -> None:
        self.namespace.shard_set(self.site.document(claimer=BY_FOUR, **changes))

    def pods(self) -> dict[str, dict[str, Any]]:
        """The pods of the set that are not ending, by component and range."""
        found: dict[str, dict[str, Any]] = {}
        for pod in self.namespace.all("Pod"):
            labels = pod["metadata"]["labels"]
            if "deletionTimestamp" not in pod["metadata"] and "billingshards.io/shards" in labels:
                key = f"{labels['app.kubernetes.io/component']} {labels['billingshards.io/shards']}"
                found[key] = pod
        return found

    def uids(self) -> dict[str, str]:
        return {key: pod["metadata"]["uid"] for key, pod in self.pods().items()}


@pytest.fixture(scope="module")
def installed(cluster: Cluster, definitions: None, servers: Sequence[MySQLServer]) -> Iterator[Installed]:  # noqa: ARG001
    """Helm installs the operator; then Secrets with a wrong password of the schema's owner, and the resource."""
    cluster.load([targets.build(target) for target in ("controller", "claimer")])
    namespace = Namespace(cluster, f"bill-{uuid4().hex[:6]}")
    namespace.create()
    values = [
        *(f"{part}.image.repository={PREFIX}{part}" for part in ("controller", "claimer")),
        *(f"{part}.image.{key}" for part in ("controller", "claimer") for key in (f"tag={TAG}", "pullPolicy=Never")),
        "crds.install=false",  # other tests of the session have installed it
    ]
    settings = [word for value in values for word in ("--set", value)]
    cluster.helm("install", "bill", ROOT / "helm" / "billing-shards", "--namespace", namespace.name, *settings)
    site = Site.create(servers, f"billing_{uuid4().hex[:8]}")
    namespace.secrets(site)
    namespace.secret("schema", username=OWNER.username, password="sentinel-of-a-wrong-password")
    namespace.shard_set(site.document(claimer=BY_FOUR))
    yield Installed(namespace=namespace, site=site)
    namespace.kubectl("delete", "billingshardsets", "--all", "--timeout=120s")
    cluster.helm("uninstall", "bill", "--namespace", namespace.name)
    namespace.delete()
    site.drop()


@pytest.fixture
def ready(installed: Installed) -> Installed:
    """From a wrong password to Ready; the message on the way is part of the test."""
    if installed.namespace.condition("Ready").get("status") != "True":
        failed = installed.namespace.until_reason("Degraded", "SchemaUpgradeFailed", within=120)
        assert "database a: schema upgrade failed" in failed["message"]
        assert "spec.databases[0].schemaSecret" in failed["message"]
        assert "access denied" in failed["message"]
        kinds = "bss,configmaps,deployments,jobs,pods,events"
        assert "sentinel-of" not in installed.namespace.kubectl("get", kinds, "--output=yaml")
        installed.namespace.secret("schema", username=OWNER.username, password=OWNER.password)
        installed.wait_ready()
    return installed


def test_a_wrong_password_is_named_and_its_correction_leads_to_ready(ready: Installed) -> None:
    namespace = ready.namespace
    assert owned_shards(ready.site) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert set(ready.pods()) == {"claimer 000-003", "claimer 004-007", "housekeeper 000-007"}
    status = namespace.status()
    assert status["databasesReachable"] == "2/2"
    assert status["claimers"] == {"deployments": 2, "replicas": 2, "ready": 2}
    assert {condition["type"]: condition["status"] for condition in status["conditions"]} == {
        "Ready": "True",
        "Progressing": "False",
        "Degraded": "False",
        "SpecValid": "True",
        "DatabasesReachable": "True",
    }
    line = namespace.kubectl("get", "bss", "main").splitlines()[1].split()
    assert line[:5] == ["main", "True", "Serving", "8", "2/2"]
    namespace.until_event("Serving")


def test_pods_have_no_token_and_only_the_upgrade_had_the_owners_password(ready: Installed) -> None:
    pods = ready.pods()
    for key in ("claimer 000-003", "housekeeper 000-007"):
        spec = pods[key]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert not [volume for volume in spec["volumes"] if "projected" in volume]
        secrets = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
        assert secrets == {"app", "ca-a", "ca-b"}
    name = pods["claimer 000-003"]["metadata"]["name"]
    shown = ready.namespace.kubectl("exec", name, "--", "ls", SECRETS)
    assert shown.split() == ["app", "ca-a", "ca-b"]


def test_events_of_what_is_imported_in_a_pod_reach_the_broker_that_the_spec_names(
    ready: Installed, cluster: Cluster, tmp_path: Path
) -> None:
    with NatsServer.start(tmp_path / "nats", tls=True, host=cluster.host_address) as server:
        broker = NatsSite(server, "IN_CLUSTER")
        ready.edit(outbox={"broker": broker.document(prefix="in-cluster")})
        missing = ready.namespace.until_reason("Degraded", "SecretMissing")
        assert "spec.outbox.broker.credentialsSecret" in missing["message"]
        for name, data in secrets_of(server).items():
            ready.namespace.secret(name, **data)
        ready.wait_ready()
        until(lambda: len(ready.pods()) == 3, "the old pods to go")
        ready.namespace.kubectl("exec", "-i", "deploy/main-housekeeper", "--", "sh", "-c", IMPORT, stdin=CSV)
        events = until(lambda: asyncio.run(broker.received()), "an event at the broker", 60)
        assert [event["subject"] for event in events if ".subscription.created." in event["type"]] == ["sub-1"]
        assert server.password not in ready.namespace.kubectl("logs", "deploy/main-housekeeper")
        assert "broker" not in ready.namespace.kubectl("exec", "deploy/main-claimer-000-003", "--", "ls", SECRETS)
    ready.edit()
    ready.wait_ready()


def test_an_edit_is_ready_only_once_its_pods_are(ready: Installed) -> None:
    before = ready.uids()
    ready.edit(retry={"attemptsMax": 3})
    ready.wait_ready()
    found = ready.namespace.get("BillingShardSet", "main") or {}
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    assert ready.namespace.condition("Ready")["status"] == "True"
    for name in ready.namespace.all("Deployment"):
        assert name["status"].get("updatedReplicas") == name["status"]["replicas"]
    assert not set(before.values()) & set(ready.uids().values())


def test_a_map_edit_and_a_pause_restart_no_pod(ready: Installed) -> None:
    ready.edit()
    ready.wait_ready()
    until(lambda: len(ready.pods()) == 3, "the old pods to go")
    before = ready.uids()
    everything_on_b = [{"from": 0, "to": 7, "database": "b"}]
    ready.edit(shardMap=everything_on_b, paused=True)
    until(lambda: "pendingPlan" in ready.namespace.status(), "the plan")
    ready.wait_ready()
    assert ready.namespace.reason("Progressing") == "PlanPending"
    assert ready.uids() == before
    assert owned_shards(ready.site) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_killed_operator_pod_comes_back_and_goes_on(ready: Installed) -> None:
    words = ["delete", "pod", "--selector=app.kubernetes.io/component=controller", "--grace-period=0", "--force"]
    ready.namespace.kubectl(*words)
    ready.edit(smoothing={"windowSeconds": 60})
    ready.wait_ready()
    assert ready.namespace.config()["spec"]["smoothing"] == {"windowSeconds": 60}


def test_the_operators_rights_are_enough_and_no_more(ready: Installed) -> None:
    """All the other tests show that they are enough: it runs with the chart's Role."""
    account = f"system:serviceaccount:{ready.namespace.name}:bill-billing-shards"

    def may(verb: str, resource: str) -> bool:
        try:
            answer = ready.namespace.kubectl("auth", "can-i", verb, resource, "--as", account)
        except ToolError as error:  # it exits with 1 for no
            answer = str(error)
        assert answer.strip().rpartition(" ")[2] in ("yes", "no"), answer
        return answer.strip().endswith("yes")

    assert may("get", "secrets")
    refused = [("list", "secrets"), ("create", "pods"), ("create", "pods/exec"), ("create", "roles"), ("delete", "bss")]
    for verb, resource in refused:
        assert not may(verb, resource), (verb, resource)
    log = ready.namespace.kubectl("logs", "deployment/bill-billing-shards")
    assert "forbidden" not in log
    for secret in (OWNER.password, APPLICATION.password, "sentinel-of-a-wrong-password"):
        assert secret not in log
