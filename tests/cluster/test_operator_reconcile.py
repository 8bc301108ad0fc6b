"""The operator against a real API server and real databases. Pods never start here: what is tested is what it decides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import kopf
import kubernetes
import pytest

from billing_shards import schema
from billing_shards.kube.api import KubeApi
from billing_shards.kube.handlers import Handlers
from billing_shards.kube.model import Release
from billing_shards.kube.observe import Observer
from billing_shards.kube.round import Rounds
from hack.cluster import Cluster
from hack.mysql import MySQLServer, wrong_ca
from tests.cluster.operator_site import Namespace, OperatorProcess, owned_shards, rows, until
from tests.mysql.shard_set import APPLICATION, OWNER, Site

PLACED = [[0, 1, 2, 3], [4, 5, 6, 7]]
BY_FOUR = {"shardsPerDeployment": 4}


@contextmanager
def stopped(server: MySQLServer) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.restart()


def test_a_missing_secret_is_named_and_its_appearance_noticed(namespace: Namespace, site: Site) -> None:
    namespace.secrets(site, without=["app"])
    namespace.shard_set(site.document())
    degraded = namespace.until_reason("Degraded", "SecretMissing")
    assert "spec.databases[0].credentialsSecret: Secret app is missing" in degraded["message"]
    assert "spec.databases[1].credentialsSecret: Secret app is missing" in degraded["message"]
    assert namespace.condition("Ready")["status"] == "False"
    assert namespace.condition("SpecValid")["status"] == "True"
    assert namespace.names("Deployment") == set()
    namespace.secret("app", username=APPLICATION.username)
    until(lambda: "Secret app has no key password" in namespace.condition("Degraded").get("message", ""), "the missing key")
    namespace.secret("app", username=APPLICATION.username, password=APPLICATION.password)
    namespace.until_placed()
    assert owned_shards(site) == PLACED
    until(lambda: namespace.condition("Degraded").get("status") == "False", "the trouble to be over")
    namespace.until_event("SecretMissing")


def test_nothing_is_placed_before_a_database_that_is_down_comes_up(
    namespace: Namespace, site: Site, servers: Sequence[MySQLServer]
) -> None:
    namespace.secrets(site)
    with stopped(servers[1]):
        namespace.shard_set(site.document())
        reachable = namespace.until_reason("DatabasesReachable", "DatabaseUnavailable")
        assert "database b: not reachable" in reachable["message"]
        assert f"{servers[1].host}:{servers[1].port}" in reachable["message"]
        assert namespace.status()["databasesReachable"] == "1/2"
        assert rows(servers[0], site.database, "SELECT COUNT(*) FROM installation") == [(0,)]
        assert "main-placement" not in namespace.names("ConfigMap")
    namespace.until_placed()
    assert owned_shards(site) == PLACED
    until(lambda: namespace.condition("DatabasesReachable").get("status") == "True", "the database to be told of")


def test_killed_between_two_databases_it_goes_on_with_what_it_had_chosen(
    namespace: Namespace, site: Site, operator: OperatorProcess
) -> None:
    """A trigger lets database a be set up and refuses b, so that the operator is killed just between the two."""
    with site.servers[1].client(database=site.database, autocommit=True) as connection, connection.cursor() as cursor:
        refuse = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not now'"
        cursor.execute(f"CREATE TRIGGER stop BEFORE INSERT ON installation FOR EACH ROW {refuse}")
        namespace.secrets(site)
        namespace.shard_set(site.document())
        until(lambda: owned_shards(site) == [PLACED[0], []], "database a to be set up, and b not")
        operator.kill()
        cursor.execute("DROP TRIGGER stop")
    all_on_b = [{"from": 0, "to": 7, "database": "b"}]
    namespace.shard_set(site.document(shardMap=all_on_b))
    operator.start()
    namespace.until_placed()
    assert owned_shards(site) == PLACED
    until(lambda: "pendingPlan" in namespace.status(), "the plan")
    assert namespace.status()["pendingPlan"]["moves"] == [{"from": 0, "to": 3, "source": "a", "target": "b"}]


def test_of_two_resources_the_broken_one_does_not_stop_the_other(
    cluster: Cluster, make_namespace: Callable[[], Namespace], site: Site
) -> None:
    """Its database a accepts connections and then says nothing, and a Secret of its is missing."""
    broken, sound = make_namespace(), make_namespace()
    with socket.socket() as silent:
        silent.bind((cluster.host_address, 0))
        silent.listen()
        document = site.document()
        document["databases"][0] |= {"host": cluster.host_address, "port": silent.getsockname()[1]}
        broken.secrets(site, without=["schema"])
        broken.shard_set(document)
        sound.secrets(site)
        sound.shard_set(site.document())
        sound.until_placed()
        message = broken.until_reason("Degraded", "SecretMissing")["message"]
        assert "spec.databases[0].schemaSecret: Secret schema is missing" in message
        assert "database a: " in broken.condition("DatabasesReachable")["message"]
        assert broken.names("Deployment") == set()


def test_an_edited_map_is_shown_as_a_plan_and_not_acted_upon(namespace: Namespace, site: Site) -> None:
    namespace.secrets(site)
    namespace.shard_set(site.document(claimer=BY_FOUR))
    namespace.until_placed()
    until(lambda: namespace.config()["spec"].get("shardMap"), "the owners in the ConfigMap")
    before = namespace.config()
    versions = {found["metadata"]["name"]: found["metadata"]["generation"] for found in namespace.all("Deployment")}
    wanted = [{"from": 0, "to": 5, "database": "a"}, {"from": 6, "to": 7, "database": "b"}]
    namespace.shard_set(site.document(claimer=BY_FOUR, shardMap=wanted))
    until(lambda: "pendingPlan" in namespace.status(), "the plan")
    plan = namespace.status()["pendingPlan"]
    assert plan["moves"] == [{"from": 4, "to": 5, "source": "b", "target": "a"}]
    assert plan["message"].startswith("2 shards would move: 4-5 from b to a; not acted upon")
    assert owned_shards(site) == PLACED
    assert namespace.config() == before
    assert namespace.status()["owners"] == before["spec"]["shardMap"]
    now = {found["metadata"]["name"]: found["metadata"]["generation"] for found in namespace.all("Deployment")}
    assert now == versions
    namespace.shard_set(site.document(claimer=BY_FOUR))
    until(lambda: "pendingPlan" not in namespace.status(), "the plan to go")
    namespace.until_event("PlanPending")
    assert [reason for reason, _ in namespace.events()].count("PlanPending") == 1


def test_a_late_backlog_gets_another_pod_and_a_paused_set_reaches_pods(namespace: Namespace, site: Site) -> None:
    namespace.secrets(site)
    namespace.shard_set(site.document(claimer={**BY_FOUR, "targetBacklogAgeSeconds": 30}))
    namespace.until_placed()
    add_job(site, shard=5, overdue=timedelta(minutes=10))

    def replicas() -> dict[str, int]:
        return {found["metadata"]["name"]: found["spec"]["replicas"] for found in namespace.all("Deployment")}

    until(lambda: replicas()["main-claimer-004-007"] == 2, "another pod")
    assert replicas() == {"main-claimer-000-003": 1, "main-claimer-004-007": 2, "main-housekeeper": 1}
    until(lambda: namespace.status()["backlog"] == 1, "the backlog in status")
    assert 600 <= namespace.status()["oldestDueSeconds"] < 1000
    namespace.until_event("Scaled")
    namespace.shard_set(site.document(paused=True, claimer={**BY_FOUR, "targetBacklogAgeSeconds": 30}))
    until(lambda: namespace.config()["spec"]["paused"], "pods to be told")
    assert replicas()["main-claimer-004-007"] == 2


def add_job(site: Site, *, shard: int, overdue: timedelta) -> None:
    server = site.servers[0 if shard in PLACED[0] else 1]
    with server.client(database=site.database, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO billing_job (shard_id, id, lane, status, due_at, subscription_id, invoice_id, amount, currency,"
            " payment_method, idempotency_key, grace_until, created_at, updated_at)"
            " VALUES (%s, 1, 0, 0, UTC_TIMESTAMP(6) - INTERVAL %s SECOND, 's', 1, 990, 'USD', 'pm', REPEAT('k', 32),"
            " UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
            (shard, overdue.total_seconds()),
        )


def test_what_somebody_changes_or_deletes_is_put_back(namespace: Namespace, site: Site) -> None:
    namespace.secrets(site)
    namespace.shard_set(site.document(claimer=BY_FOUR))
    namespace.until_placed()
    namespace.kubectl("scale", "deployment/main-housekeeper", "--replicas=7")
    namespace.kubectl("set", "image", "deployment/main-claimer-000-003", "claimer=wrong:1")
    namespace.kubectl("delete", "poddisruptionbudget", "main-claimer-004-007")
    namespace.kubectl("patch", "configmap", "main-config", "--patch", '{"data": {"shardset.json": "{}"}}')

    def right() -> bool:
        found = {deployment["metadata"]["name"]: deployment["spec"] for deployment in namespace.all("Deployment")}
        image = found["main-claimer-000-003"]["template"]["spec"]["containers"][0]["image"]
        budgets = namespace.names("PodDisruptionBudget")
        replicas = found["main-housekeeper"]["replicas"]
        return (replicas, image != "wrong:1", len(budgets), namespace.config().get("name")) == (1, True, 2, "main")

    until(right, "everything to be put back")


def test_deletion_takes_the_pods_and_leaves_the_data_even_while_a_database_is_down(
    namespace: Namespace, site: Site, servers: Sequence[MySQLServer]
) -> None:
    namespace.secrets(site)
    namespace.shard_set(site.document())
    namespace.until_placed()
    with stopped(servers[0]):
        namespace.kubectl("delete", "billingshardset", "main", "--timeout=60s")
        assert namespace.names("Deployment", "Job", "PodDisruptionBudget", "ConfigMap") == {"kube-root-ca.crt"}
        assert namespace.names("Secret") == set(site.secrets_by_name)
    assert owned_shards(site) == PLACED
    everything_on_a = [{"from": 0, "to": 7, "database": "a"}]
    namespace.shard_set(site.document(shardMap=everything_on_a))
    namespace.until_placed()
    assert owned_shards(site) == PLACED
    until(lambda: "pendingPlan" in namespace.status(), "the plan")
    assert namespace.status()["owners"][0] == {"from": 0, "to": 3, "database": "a"}


def test_a_database_of_another_set_is_left_alone(make_namespace: Callable[[], Namespace], site: Site) -> None:
    first, second = make_namespace(), make_namespace()
    for namespace in (first, second):
        namespace.secrets(site)
    first.shard_set(site.document())
    first.until_placed()
    second.shard_set(site.document(), name="other")
    message = second.until_reason("Degraded", "WrongDatabase", "other")["message"]
    assert "database a: was set up as 'a' of 'main' with 8 shards" in message
    assert second.names("Deployment") == set()


def test_an_emptied_database_is_never_set_up_again(namespace: Namespace, site: Site) -> None:
    namespace.secrets(site)
    namespace.shard_set(site.document())
    namespace.until_placed()
    until(lambda: '"complete": true' in (namespace.get("ConfigMap", "main-placement") or {})["data"]["placement.json"], "it")
    with site.servers[1].client(database=site.database, autocommit=True) as connection, connection.cursor() as cursor:
        for table in ("installation", "shard_owner", "shard_sequence"):
            cursor.execute(f"DELETE FROM {table}")
    message = namespace.until_reason("Degraded", "OwnershipLost")["message"]
    assert "shards 4-7 have lost their owner" in message
    assert owned_shards(site) == [PLACED[0], []]
    assert "main-claimer-000-007" in namespace.names("Deployment")


def test_a_certificate_of_another_authority_is_refused(namespace: Namespace, site: Site, tmp_path: Path) -> None:
    namespace.secrets(site)
    namespace.secret("ca-b", **{"ca.crt": wrong_ca(tmp_path / "ca.pem").read_text()})
    namespace.shard_set(site.document())
    message = namespace.until_reason("DatabasesReachable", "TlsRefused")["message"]
    assert "database b: the server's certificate was not accepted" in message
    namespace.secret("ca-b", **site.secrets_by_name["ca-b"])
    namespace.until_placed()


def test_a_certificate_for_another_name_is_refused(namespace: Namespace, site: Site) -> None:
    namespace.secrets(site)
    document = site.document()
    document["databases"][0]["tls"]["serverName"] = "mysql.example"
    namespace.shard_set(document)
    assert "database a" in namespace.until_reason("DatabasesReachable", "TlsRefused")["message"]


def test_a_wrong_spec_that_the_api_server_cannot_see_names_its_field(namespace: Namespace, site: Site) -> None:
    """A definition of an older release may let through what this one refuses."""
    namespace.secrets(site)
    namespace.shard_set(site.document())
    namespace.until_placed()
    document = site.document()
    del document["databases"][1]
    namespace.shard_set(document)
    invalid = namespace.until_reason("SpecValid", "DatabaseInUse")
    assert "spec.databases: no longer lists b, which owned shards 4-7" in invalid["message"]
    assert [entry["name"] for entry in namespace.config()["spec"]["databases"]] == ["a", "b"]


def test_edits_made_while_the_operator_was_away_are_seen(namespace: Namespace, site: Site, operator: OperatorProcess) -> None:
    namespace.secrets(site)
    namespace.shard_set(site.document())
    namespace.until_placed()
    operator.stop()
    namespace.shard_set(site.document(paused=True))
    operator.start()
    until(lambda: namespace.config()["spec"]["paused"], "the edit to be seen")
    until(lambda: namespace.condition("SpecValid").get("observedGeneration") == 2, "the edit to be told of")
    until(lambda: '"rounds": ' in operator.health(), "health")


def test_no_password_is_ever_shown(namespace: Namespace, site: Site, operator: OperatorProcess) -> None:
    """Along the whole way: refused, let in, placed, edited."""
    namespace.secrets(site)
    sentinel = "sentinel-4711-password"
    namespace.secret("app", username=APPLICATION.username, password=sentinel)
    namespace.shard_set(site.document())
    namespace.until_reason("DatabasesReachable", "AccessDenied")
    namespace.secret("app", username=APPLICATION.username, password=APPLICATION.password)
    namespace.until_placed()
    namespace.shard_set(site.document(paused=True))
    until(lambda: namespace.config()["spec"]["paused"], "the edit")
    kinds = "billingshardsets,configmaps,deployments,jobs,pods,events,poddisruptionbudgets,replicasets"
    shown = {
        "objects": namespace.kubectl("get", kinds, "--output=yaml"),
        "log": operator.log.read_text(),
        "metrics": operator.metrics(),
    }
    for where, text in shown.items():
        for secret in (sentinel, APPLICATION.password, OWNER.password):
            assert secret not in text, where
    assert 'shardset="main"' in shown["metrics"]
    assert namespace.name in shown["log"]


def test_no_annotation_repeats_the_spec(namespace: Namespace, site: Site) -> None:
    namespace.secrets(site)
    namespace.shard_set(site.document())
    namespace.until_placed()
    found: dict[str, Any] = namespace.get("BillingShardSet", "main") or {}
    assert set(found["metadata"]["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}
    assert found["metadata"]["finalizers"] == ["billingshards.io/controller"]
    managers = {entry["manager"] for entry in found["metadata"]["managedFields"] if entry.get("subresource") == "status"}
    assert managers == {"billing-shards"}


def test_everything_belongs_to_the_resource(namespace: Namespace, site: Site) -> None:
    namespace.secrets(site)
    namespace.shard_set(site.document())
    namespace.until_placed()
    found = [one for kind in ("Deployment", "ConfigMap", "PodDisruptionBudget") for one in namespace.all(kind)]
    made = [one for one in found if one["metadata"]["name"].startswith("main-")]
    assert len(made) == 5
    for one in made:
        (owner,) = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("BillingShardSet", "main", True)
        assert "billing-shards" in {entry["manager"] for entry in one["metadata"]["managedFields"]}


def test_the_probe_fails_where_a_resource_is_not_looked_at(cluster: Cluster, namespace: Namespace, site: Site) -> None:
    """Handlers that Kopf does not call, as after a watch that died unnoticed."""
    namespace.shard_set(site.document())
    api = KubeApi(kubernetes.config.new_client_from_config(str(cluster.kubeconfig)))  # type: ignore[no-untyped-call]
    with ThreadPoolExecutor(2) as pool:
        rounds = Rounds(api, Observer(api, pool), Release(image="none", revision=schema.expected_revision()))
        patient = Handlers(rounds, api, pool, (namespace.name,), overdue_seconds=600)
        assert asyncio.run(patient.probe()) == 1
        hasty = Handlers(rounds, api, pool, (namespace.name,), overdue_seconds=0)
        with pytest.raises(kopf.PermanentError, match=f"{namespace.name}/main was not looked at"):
            asyncio.run(hasty.probe())


def test_an_api_server_that_does_not_answer_is_no_reason_to_restart(namespace: Namespace) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        configuration = kubernetes.client.Configuration(host=f"https://127.0.0.1:{silent.getsockname()[1]}")
        configuration.retries = False
        api = KubeApi(kubernetes.client.ApiClient(configuration))
        with ThreadPoolExecutor(2) as pool:
            rounds = Rounds(api, Observer(api, pool), Release(image="none", revision=schema.expected_revision()))
            assert asyncio.run(Handlers(rounds, api, pool, (namespace.name,), overdue_seconds=0).probe()) == -1
