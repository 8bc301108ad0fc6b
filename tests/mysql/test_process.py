"""Claimer and housekeeper as the pods run them: what they wait for, follow and survive without a restart, and never tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import date, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import Counter, Gauge, Histogram

from billing_shards import schema, telemetry
from billing_shards.jobs import store
from billing_shards.jobs.model import RENEWAL
from billing_shards.payments.model import Succeeded
from billing_shards.payments.settle import Result, settle
from billing_shards.settings import Credentials
from billing_shards.shards import shardset
from hack.fake_gateway import FakeGateway
from hack.mysql import MySQLServer
from tests.mysql.pods import Gate, Pod, gate_to
from tests.mysql.shard_set import APPLICATION, NAME, OWNER, ShardSet, Site

API_KEY = "sentinel-key-7f3a"
QUICK = {"workers": 20, "batch": 20, "idlePollSeconds": 0.1, "leaseSeconds": 10}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGateway]:
    with FakeGateway.start(tmp_path_factory.mktemp("gateway"), api_key=API_KEY) as started:
        yield started


@pytest.fixture
def make_pod(provider: FakeGateway, tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """Make a pod of a site's Secrets and a spec, not started: `make_pod("claimer", site, document)`."""
    provider.reset()
    with ExitStack() as stack:

        def make(component: str, site: Site, document: dict[str, Any]) -> Pod:
            pod = Pod(tmp_path / f"pod-{uuid4().hex[:8]}", component, range(document["shardCount"]))
            stack.callback(pod.kill)
            pod.mount_config(NAME, document)
            for name, values in {**site.secrets_by_name, "gateway": {"apiKey": API_KEY}}.items():
                pod.mount_secret(name, values)
            return pod

        yield make


def document(shard_set: ShardSet, provider: FakeGateway, **changes: Any) -> dict[str, Any]:
    """The set's spec as the operator writes it, for a quick claimer against the fake provider."""
    shown: dict[str, Any] = shard_set.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    where = {"url": provider.url, "apiKeySecret": {"name": "gateway"}}
    return {**shown, "claimer": QUICK, "gateway": where, "smoothing": {"windowSeconds": 0}, **changes}


def subscription_on(shard_set: ShardSet, database: str, prefix: str) -> str:
    """The id of a subscription whose shard is on the database."""
    names = (f"{prefix}-{number}" for number in range(10_000))
    return next(name for name in names if shard_set.router.owner(shard_set.shard_of(name)).name == database)


def begin_period(shard_set: ShardSet, subscription: str) -> None:
    """A subscription with one period begun, not invoiced, and the next one far off."""
    shard_set.add_subscription(
        subscription, interval_unit=4, interval_count=50, start_date=date(2026, 1, 1), next_invoice_at=datetime(2026, 1, 1)
    )


def paid(shard_set: ShardSet) -> int:
    return shard_set.count("invoice", "status = 2")


# The whole life of a pod


def test_a_claimer_charges_tells_and_leaves_in_good_order(
    shard_set: ShardSet, provider: FakeGateway, make_pod: Callable[..., Pod]
) -> None:
    for number in range(5):
        shard_set.add_due_job(f"sub-{number}")
    pod = make_pod("claimer", shard_set.site, document(shard_set, provider))
    pod.start()
    pod.wait_until_ready()
    pod.until(lambda: paid(shard_set) == 5)
    assert provider.summary()["charges"]["succeeded"] == 5
    assert pod.metric("billing_shards_jobs_claimed_total", lane="renewal") == 5
    pod.until(lambda: pod.metric("billing_shards_charge_outcomes_total", outcome="paid") == 5)
    assert pod.metric("billing_shards_gateway_seconds_count", operation="charge") == 5
    pod.until(lambda: pod.metric("billing_shards_jobs_in_flight") == 0)
    assert_shows_every_metric(pod)
    assert_tells_no_secret(pod)
    assert pod.get("/healthz") == (200, "ok\n")
    assert pod.terminate() == 0
    assert_tells_no_secret(pod)
    assert shard_set.count("billing_job", "status = 1") == 0


def test_a_housekeeper_invoices_measures_and_leaves_in_good_order(
    shard_set: ShardSet, provider: FakeGateway, make_pod: Callable[..., Pod]
) -> None:
    begin_period(shard_set, "sub-1")
    pod = make_pod("housekeeper", shard_set.site, document(shard_set, provider))
    pod.start()
    pod.wait_until_ready()
    pod.until(lambda: shard_set.count("billing_job") == 1)
    assert pod.metric("billing_shards_invoices_issued_total") == 1
    shard = str(shard_set.shard_of("sub-1"))
    pod.until(lambda: pod.metric("billing_shards_jobs_due", shard=shard, lane="renewal") == 1)
    assert pod.metric("billing_shards_oldest_due_timestamp_seconds", shard=shard) > datetime(2026, 1, 1).timestamp() - 86_400
    assert pod.metric("billing_shards_outbox_unsent", shard=shard) == 1
    assert_shows_every_metric(pod)
    assert_tells_no_secret(pod)
    assert pod.get("/healthz") == (200, "ok\n")
    assert pod.terminate() == 0
    assert_tells_no_secret(pod)


def test_a_housekeeper_deletes_finished_jobs_after_their_retention(
    shard_set: ShardSet, provider: FakeGateway, make_pod: Callable[..., Pod]
) -> None:
    done, waiting = shard_set.add_due_job("sub-1"), shard_set.add_due_job("sub-2", overdue_seconds=-3600)
    (job,) = store.claim(shard_set.router, done.shard, RENEWAL, limit=1, lease_seconds=60, provider="http").jobs
    result = Result(job=job, outcome=Succeeded(provider_ref="ch_1"), draw=0.0)
    settle(shard_set.router, done.shard, [result], policy=shard_set.spec.retry)
    kept = {**QUICK, "finishedJobsRetentionSeconds": 1}
    pod = make_pod("housekeeper", shard_set.site, document(shard_set, provider, claimer=kept))
    pod.start()
    pod.until(lambda: shard_set.count("billing_job") == 1)
    assert shard_set.count("billing_job", f"id = {waiting.job} AND shard_id = {waiting.shard}") == 1
    pod.until(lambda: pod.metric("billing_shards_jobs_purged_total") == 1)


def assert_tells_no_secret(pod: Pod) -> None:
    """Neither log nor metrics hold a password, the API key or a payment method. All lines of the log are JSON."""
    assert pod.lines("listening")
    shown = pod.log() + (pod.get("/metrics")[1] if pod.running else "")
    for secret in (APPLICATION.password, OWNER.password, API_KEY, "pm_ok"):
        assert secret not in shown


def assert_shows_every_metric(pod: Pod) -> None:
    """Also those that have no sample yet."""
    shown = pod.get("/metrics")[1]
    for metric in vars(telemetry).values():
        if isinstance(metric, Counter | Gauge | Histogram):
            (family,) = metric.describe()
            assert f"# HELP {family.name}" in shown


# What it follows without a restart


def test_a_claimer_claims_nothing_while_paused(shard_set: ShardSet, provider: FakeGateway, make_pod: Callable[..., Pod]) -> None:
    shown = document(shard_set, provider)
    pod = make_pod("claimer", shard_set.site, shown)
    pod.start()
    pod.wait_for("not_paused")
    pod.mount_config(NAME, {**shown, "paused": True})
    pod.wait_for("paused")
    shard_set.add_due_job("sub-1")
    time.sleep(1)  # ten looks of one that is not paused
    assert shard_set.count("billing_job", "status = 0") == 1
    pod.mount_config(NAME, shown)
    pod.until(lambda: paid(shard_set) == 1)
    assert len(pod.lines("claimer_started")) == 1


def test_a_housekeeper_invoices_nothing_while_paused(
    shard_set: ShardSet, provider: FakeGateway, make_pod: Callable[..., Pod]
) -> None:
    shown = document(shard_set, provider)
    pod = make_pod("housekeeper", shard_set.site, {**shown, "paused": True})
    begin_period(shard_set, "sub-1")
    pod.start()
    pod.wait_for("paused")
    pod.wait_for("measured", times=2)
    assert shard_set.count("invoice") == 0
    pod.mount_config(NAME, shown)
    pod.until(lambda: shard_set.count("invoice") == 1)


def test_a_password_that_is_rotated_is_taken(
    shard_set: ShardSet, provider: FakeGateway, make_pod: Callable[..., Pod], application: Callable[[str], Credentials]
) -> None:
    """First the database, then the Secret: in between the pod is refused, and goes on trying."""
    pod = make_pod("claimer", shard_set.site, document(shard_set, provider))
    old, new = application("old-sentinel"), Credentials(username=application("").username, password="new-sentinel")
    _grant(shard_set, old)
    pod.mount_secret("app", old.model_dump())
    pod.start()
    pod.wait_until_ready()
    _grant(shard_set, new)
    _disconnect(shard_set.site.servers, old.username)
    pod.until(lambda: any("access denied" in line["error"] for line in pod.lines("claim_failed")))
    pod.mount_secret("app", new.model_dump())
    shard_set.add_due_job("sub-1")
    pod.until(lambda: paid(shard_set) == 1)
    assert pod.terminate() == 0
    assert "sentinel" not in pod.log()


@pytest.fixture
def application(mysql_servers: Sequence[MySQLServer]) -> Iterator[Callable[[str], Credentials]]:
    """Credentials of an application's user of this test alone."""
    name = f"app_{uuid4().hex[:8]}"
    yield lambda password: Credentials(username=name, password=password)
    for server in mysql_servers:
        with server.client(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("DROP USER IF EXISTS %s@'%%'", (name,))


def _grant(shard_set: ShardSet, who: Credentials) -> None:
    for database in shard_set.owners.values():
        schema.grant_application(database, who)


def _disconnect(servers: Sequence[MySQLServer], user: str) -> None:
    for server in servers:
        with server.client(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (user,))
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL {number}")


# What it waits for


@pytest.fixture
def gate(mysql_servers: Sequence[MySQLServer]) -> Iterator[Gate]:
    """A closed gate to database a."""
    with gate_to(mysql_servers[0].host, mysql_servers[0].port) as made:
        yield made


def test_a_database_that_is_away_holds_up_nothing_of_the_others_and_is_taken_when_it_comes(
    shard_set: ShardSet, provider: FakeGateway, make_pod: Callable[..., Pod], gate: Gate
) -> None:
    shown = document(shard_set, provider)
    shown["databases"][0]["port"] = gate.port
    on_a, on_b = (subscription_on(shard_set, name, "sub") for name in "ab")
    for subscription in (on_a, on_b):
        shard_set.add_due_job(subscription)
    pod = make_pod("claimer", shard_set.site, shown)
    pod.start()
    pod.wait_until_ready()
    assert pod.wait_for("database_unavailable_at_start")["database"] == "a"
    pod.until(lambda: paid(shard_set) == 1)
    gate.open()
    pod.until(lambda: paid(shard_set) == 2)
    gate.cut()
    shard_set.add_due_job(subscription_on(shard_set, "a", "later"))
    pod.until(lambda: paid(shard_set) == 3)
    assert pod.terminate() == 0


@pytest.mark.parametrize("component", ["claimer", "housekeeper"])
def test_databases_that_are_not_set_up_yet_are_waited_for(
    empty_site: Site, provider: FakeGateway, make_pod: Callable[..., Pod], component: str
) -> None:
    spec = empty_site.spec(gateway={"url": provider.url})
    pod = make_pod(component, empty_site, empty_site.document(gateway={"url": provider.url}))
    pod.start()
    reason = pod.wait_for("not_usable_yet")["error"]
    assert reason.startswith("database a: ")
    assert not pod.ready()
    databases = empty_site.owned()
    for database in databases.values():
        schema.upgrade(database)
        schema.grant_application(database, APPLICATION)
    shardset.set_up(NAME, spec, databases)
    for database in databases.values():
        database.close()
    pod.wait_until_ready()
    assert pod.terminate() == 0


def test_a_secret_that_is_missing_is_named_and_waited_for(
    shard_set: ShardSet, provider: FakeGateway, make_pod: Callable[..., Pod]
) -> None:
    shown = document(shard_set, provider)
    shown["databases"][1]["credentialsSecret"] = {"name": "late"}
    pod = make_pod("claimer", shard_set.site, shown)
    pod.start()
    assert pod.wait_for("not_usable_yet")["error"].startswith("secret late: key username cannot be read")
    assert not pod.ready()
    pod.mount_secret("late", APPLICATION.model_dump())
    pod.wait_until_ready()


def test_a_pod_that_waits_ends_in_good_order(shard_set: ShardSet, provider: FakeGateway, make_pod: Callable[..., Pod]) -> None:
    pod = make_pod("claimer", shard_set.site, document(shard_set, provider))
    pod.mount_secret("app", {"password": "wrong"})
    pod.start()
    assert "access denied" in pod.wait_for("not_usable_yet")["error"]
    assert pod.terminate() == 0


def test_a_config_that_cannot_be_used_ends_the_process_with_field_and_reason(
    shard_set: ShardSet, provider: FakeGateway, make_pod: Callable[..., Pod]
) -> None:
    """Kubernetes starts it again; the operator has to write another one."""
    shown = document(shard_set, provider, shardCount=0)
    pod = make_pod("claimer", shard_set.site, {**shown, "shardCount": 8})
    pod.mount_config(NAME, shown)
    pod.start()
    assert pod.wait() == 1
    (line,) = pod.lines("process_failed")
    assert line["error"].startswith("spec.shardCount: ")


# What it costs at rest


def queries_of(server: MySQLServer, user: str) -> int:
    """Queries that a user's connections have sent since the server's start, the ends of their transactions not counted."""
    query = (
        "SELECT SUM(count_star) FROM performance_schema.events_statements_summary_by_user_by_event_name WHERE user = %s"
        " AND event_name LIKE 'statement/sql/%%' AND event_name NOT IN ('statement/sql/rollback', 'statement/sql/commit')"
    )
    with server.client() as connection, connection.cursor() as cursor:
        cursor.execute(query, (user,))
        row = cursor.fetchone()
    return int(row[0]) if row else 0


def test_an_idle_claimer_of_16_shards_asks_seldom_and_still_sees_a_new_job_within_a_second(
    make_shard_set: Callable[..., ShardSet], provider: FakeGateway, make_pod: Callable[..., Pod]
) -> None:
    """By the defaults of the spec, and with services of their own lanes, which cost no query more. The bound is on what is asked,
    which a busy machine only lowers; a new job's wait is measured by the server's clock, and the median of several counts.
    """
    shard_set = make_shard_set(shardCount=16, shardMap=[{"from": 0, "to": 15, "database": "a"}])
    services = [{"name": f"service-{number}", "lane": number} for number in range(1, 11)]
    pod = make_pod("claimer", shard_set.site, document(shard_set, provider, claimer={}, services=services))
    shard_set.add_due_job("later", lane=20, overdue_seconds=-3600)
    pod.start()
    pod.wait_for("claimer_started")
    server = shard_set.site.servers[0]
    time.sleep(1)  # the first connections
    before, since = queries_of(server, APPLICATION.username), time.monotonic()
    time.sleep(8)
    asked, seconds = queries_of(server, APPLICATION.username) - before, time.monotonic() - since
    assert 0 < asked <= 2 * seconds
    waits = []
    for number, lane in enumerate((0, 2, 8, 20, 21)):
        due = shard_set.add_due_job(f"sub-{number}", lane=lane)
        pod.until(lambda number=number: paid(shard_set) == number + 1)  # type: ignore[misc]
        query = (
            "SELECT TIMESTAMPDIFF(MICROSECOND, j.created_at, t.created_at) / 1e6"
            " FROM billing_job AS j JOIN payment_attempt AS t ON t.shard_id = j.shard_id AND t.job_id = j.id"
            " WHERE j.shard_id = %(shard)s AND j.id = %(id)s"
        )
        waits.append(float(shard_set.rows(due.shard, query, id=due.job)[0][0]))
    assert sorted(waits)[2] < 1
