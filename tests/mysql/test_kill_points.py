"""SIGKILL at every named step of a charge, in real processes: whatever is left behind is finished by others, and once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from billing_shards.audit.auditor import audit
from billing_shards.audit.model import ProviderCharge
from billing_shards.billing.subscriptions import By, Subject, change_payment_method
from billing_shards.jobs import store
from billing_shards.jobs.model import RENEWAL, Job
from billing_shards.payments.charge import charge
from billing_shards.payments.http import HttpGateway
from billing_shards.payments.model import Outcome
from billing_shards.payments.settle import Result, settle
from billing_shards.settings import ProcessSettings
from hack.fake_gateway import FakeGateway
from tests.mysql.killing import TRANSACTIONS, Doomed, Point
from tests.mysql.pods import Pod, until
from tests.mysql.shard_set import NAME, ShardSet

MOMENTS = ("in the middle", "before COMMIT", "COMMIT sent", "after COMMIT")
POINTS = [
    *(Point(step=step, moment=moment) for step in TRANSACTIONS for moment in MOMENTS),
    *(Point(step="charge", moment=moment) for moment in ("before send", "sent", "answered")),
    *(Point(step=step, moment=moment) for step in ("find", "cancel") for moment in ("before send", "answered")),
]
START = datetime.now(UTC).date() - timedelta(days=10)
SPEC: dict[str, Any] = {
    "shardCount": 32,
    "claimer": {"workers": 10, "batch": 10, "idlePollSeconds": 0.1, "leaseSeconds": 5},
    "retry": {"checkDelaysSeconds": [1] * 20},
    "smoothing": {"windowSeconds": 0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a dead process left: has the due period an invoice, is its job claimed or done, was it charged, is that booked; was a
    charge that waited for the customer canceled?
    """

    invoiced: bool = True
    status: int = 1
    attempts: int = 1
    charged: bool = False
    booked: bool = False
    canceled: bool = False


_UNCLAIMED = Left(status=0, attempts=0)
_CHARGED = Left(charged=True)
_DONE = Left(status=2, charged=True, booked=True)
_COMMITTED = {"COMMIT sent": True, "after COMMIT": True}


def expected(point: Point) -> Left:
    """What each point must find: that the process died there, and nowhere near."""
    committed = _COMMITTED.get(point.moment, False)
    match point.step:
        case "schedule":
            return _UNCLAIMED if committed else Left(invoiced=False, status=-1, attempts=0)
        case "claim":
            return Left() if committed else _UNCLAIMED
        case "settle":
            return _DONE if committed else _CHARGED
        case "reap":
            return Left(status=0 if committed else 1)
        case "charge" if point.moment == "before send":
            return Left()
        case "charge" | "renew":  # a renewal changes only when the lease ends; the request under way goes on without its sender
            return _CHARGED
        case "cancel":
            return Left(canceled=point.moment == "answered")
        case _:  # a look changes nothing
            return Left()


def hangs(point: Point) -> bool:
    """Whether the provider is to be slow: it makes the charge when its sender is long dead."""
    return point.step == "renew" or point.moment == "sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A shard for each point, all of it against one provider."""

    shard_set: ShardSet
    provider: FakeGateway
    folder: Path

    def pod(self, component: str) -> Pod:
        """The component as it runs in production, for all shards, not started."""
        pod = Pod(self.folder / component, component, self.shard_set.shards)
        spec = self.shard_set.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        pod.mount_config(NAME, spec)
        for name, values in self.shard_set.site.secrets_by_name.items():
            pod.mount_secret(name, values)
        return pod

    def doomed(self, point: Point, shard: int) -> Doomed:
        """A process that works on this shard alone, and dies there."""
        folder = self.folder / "claimer"  # any pod's: all are given the same
        settings = ProcessSettings(
            config_dir=folder / "config",
            secrets_dir=folder / "secrets",
            first_shard=shard,
            last_shard=shard,
            metrics_port=0,
        )
        return Doomed(point, settings, self.folder / f"log-{shard}")

    def prepare(self, point: Point, shard: int) -> str:
        """Whatever must be there for a process to come to the point; the subscription."""
        subscription = next(f"sub-{n}" for n in range(100_000) if self.shard_set.shard_of(f"sub-{n}") == shard)
        method = "pm_requires_action" if point.step == "cancel" else "pm_hang" if hangs(point) else "pm_ok"
        begun = datetime.combine(START, datetime.min.time())
        following = begun if point.step == "schedule" else begun + timedelta(days=30)
        self.shard_set.add_subscription(
            subscription,
            interval_unit=1,
            interval_count=30,
            start_date=START,
            next_period=0 if point.step == "schedule" else 1,
            next_invoice_at=following,
            payment_method=method,
        )
        if point.step != "schedule":
            self.shard_set.add_due_job(subscription, period_start=START, payment_method=method)
        if point.step in ("reap", "find"):
            self._abandon(point, shard)
        if point.step == "cancel":
            self._change_mind(subscription, shard)
        return subscription

    def _abandon(self, point: Point, shard: int) -> None:
        """An earlier worker was lost with the job, or gave it back with its attempt open."""
        jobs = store.claim(self.shard_set.router, shard, RENEWAL, limit=1, lease_seconds=60, provider="http").jobs
        if point.step == "find":
            store.release(self.shard_set.router, jobs)
        else:
            ended = "UPDATE billing_job SET due_at = NOW(6) - INTERVAL 1 SECOND WHERE shard_id = %(shard)s"
            self.shard_set.change(shard, ended)

    def _change_mind(self, subscription: str, shard: int) -> None:
        """The charge waits for the customer, who gives another payment method."""
        router = self.shard_set.router
        (job,) = store.claim(router, shard, RENEWAL, limit=1, lease_seconds=60, provider="http").jobs
        outcome = asyncio.run(self._charge(job))
        settle(router, shard, [Result(job=job, outcome=outcome, draw=0.0)], policy=self.shard_set.spec.retry)
        subject = Subject(id=subscription, shard_count=self.shard_set.spec.shard_count)
        by = By(actor="anna", reason="the customer asked for it")
        change_payment_method(router, subject, "pm_ok", grace_seconds=86_400, by=by)

    async def _charge(self, job: Job) -> Outcome:
        gateway = HttpGateway(self.shard_set.spec.gateway, lambda: None, connections_max=1)
        try:
            return await charge(gateway, job)
        finally:
            await gateway.close()

    def left(self, shard: int) -> Left:
        """What is there of the shard's one period."""
        jobs = self.shard_set.rows(shard, "SELECT status FROM billing_job WHERE shard_id = %(shard)s")
        charges = {each["status"] for each in self.provider.charges() if each["reference"].startswith(f"{shard}/")}
        return Left(
            invoiced=bool(self._count(shard, "invoice")),
            status=jobs[0][0] if jobs else -1,
            attempts=self._count(shard, "payment_attempt"),
            charged="succeeded" in charges,
            canceled="canceled" in charges,
            booked=bool(self._count(shard, "ledger_entry", "kind = 2")),
        )

    def _count(self, shard: int, table: str, where: str = "TRUE") -> int:
        query = f"SELECT COUNT(*) FROM {table} WHERE shard_id = %(shard)s AND {where}"
        return int(self.shard_set.rows(shard, query)[0][0])


@pytest.fixture
def site(make_shard_set: Any, tmp_path: Path) -> Iterator[Site]:
    with FakeGateway.start(tmp_path / "gateway", hang_seconds=3) as provider:
        shard_set = make_shard_set(**SPEC, gateway={"url": provider.url, "timeoutSeconds": 8})
        yield Site(shard_set=shard_set, provider=provider, folder=tmp_path)


def test_whatever_a_killed_process_leaves_behind_is_finished_once(site: Site) -> None:
    with ExitStack() as stack:
        pods = [site.pod(component) for component in ("claimer", "housekeeper")]
        doomed = {shard: site.doomed(point, shard) for shard, point in enumerate(POINTS)}
        for shard, point in enumerate(POINTS):
            site.prepare(point, shard)
        for process in doomed.values():
            stack.callback(process.kill)
            process.start()
        for process in doomed.values():
            until(process.ended, process.log)
        until(lambda: all(site.left(shard).charged for shard, point in enumerate(POINTS) if hangs(point)))
        found = {str(point): site.left(shard) for shard, point in enumerate(POINTS)}
        assert found == {str(point): expected(point) for point in POINTS}
        for pod in pods:
            stack.callback(pod.kill)
            pod.start()
        paid = len(POINTS)
        pods[0].until(lambda: site.shard_set.count("invoice", "status = 2") == paid)
        assert [pod.terminate() for pod in pods] == [0, 0]
    assert_charged_once(site)


def assert_charged_once(site: Site) -> None:
    """Each period is charged and booked once, and the audit agrees with the provider's own list."""
    listed = [
        ProviderCharge(
            id=one["id"], reference=one["reference"], status=one["status"], amount=one["amount"], currency=one["currency"]
        )
        for one in site.provider.charges()
    ]
    report = audit(site.shard_set.router, site.shard_set.spec, provider_charges=listed)
    assert [(result.rule.name, result.examples) for result in report.rules if result.offenders] == []
    assert report.provider is not None
    assert (report.provider.charges, report.provider.double, report.provider.missing) == (len(POINTS), 0, 0)
    assert site.provider.summary()["double_charges"] == 0
    assert site.shard_set.count("ledger_entry", "kind = 2") == len(POINTS)
