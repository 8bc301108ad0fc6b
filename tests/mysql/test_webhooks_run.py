"""Webhooks and refunds in the whole engine: the provider tells, twice and late, and all of it is applied once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from billing_shards.audit.auditor import audit
from billing_shards.audit.model import ProviderCharge
from billing_shards.payments.refunds.request import RefundOrder, request
from billing_shards.run import run
from billing_shards.settings import Manifest
from hack.fake_gateway import FakeGateway
from hack.ports import free_port
from tests.mysql.shard_set import ShardSet
from tests.mysql.test_run import QUICK, add

SECRET = "whsec_of_the_test"
NEVER = [600] * 5  # no look by itself within the test: what is known soon, a webhook told
PATIENCE_SECONDS = 90


def manifest(shard_set: ShardSet, gateway: FakeGateway, tmp_path: Path) -> Manifest:
    """The engine's, with the Secret that webhooks are verified with beside the others; the first secret is an old one."""
    retry = {"checkDelaysSeconds": NEVER, "delaysSeconds": [1], "attemptsMax": 2}
    where = {"url": gateway.url, "timeoutSeconds": 2, "webhookSecret": {"name": "hooks"}}
    path = shard_set.manifest(tmp_path / "manifest.yaml", **QUICK, gateway=where, retry=retry)
    texts = {"webhookSecrets": f"whsec_old\n{SECRET}\n"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hooks"}, "stringData": texts}
    path.write_text(path.read_text() + "---\n" + yaml.safe_dump(secret))
    return Manifest.read(path)


def run_until(whole: Manifest, port: int, finished: Callable[[], bool]) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(run(whole, webhook_port=port, stop=stop))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not await asyncio.to_thread(finished) and time.monotonic() < deadline and not running.done():
            await asyncio.sleep(0.2)
        stop.set()
        await running

    asyncio.run(main())
    assert finished()


def test_what_the_provider_tells_is_applied_once_and_in_time(shard_set: ShardSet, tmp_path: Path) -> None:
    port = free_port()
    faults = {"webhook_duplicate_rate": 0.5, "webhook_late_rate": 0.3, "webhook_late_seconds": 1}
    with FakeGateway.start(
        tmp_path / "gateway",
        seed=7,
        settle_after_seconds=1,
        late_failure_seconds=1,
        webhook_url=f"http://127.0.0.1:{port}/webhooks/http",
        webhook_secrets=[SECRET],
        **faults,
    ) as gateway:
        add(shard_set, 4, "pm_pending", prefix="pending")
        add(shard_set, 2, "pm_late_failure", prefix="late")
        add(shard_set, 2, "pm_refund_pending", prefix="refund")
        asked: set[tuple[int, int]] = set()

        def finished() -> bool:
            _refund_paid(shard_set, asked)
            return (
                shard_set.count("invoice", "status = 2"),
                shard_set.count("payment_attempt", "outcome = 6"),
                shard_set.count("refund", "status = 2"),
                shard_set.count("webhook", "status = 0"),
            ) == (6, 4, 2, 0)

        run_until(manifest(shard_set, gateway, tmp_path), port, finished)
        charges = [
            ProviderCharge(**{name: charge[name] for name in ("id", "reference", "status", "amount", "currency")})
            for charge in gateway.charges()
        ]
    report = audit(shard_set.router, shard_set.spec, provider_charges=charges)
    assert {result.rule.name: result.offenders for result in report.rules if result.offenders} == {}
    assert shard_set.count("ledger_entry", "kind = 2") == 10
    assert shard_set.count("ledger_entry", "kind = 4") == 4
    assert shard_set.count("ledger_entry", "kind = 5") == 2
    assert shard_set.count("outbox", "type = 'payment.reversed'") == 4
    assert shard_set.count("billing_job", "status = 5") == 2


def _refund_paid(shard_set: ShardSet, asked: set[tuple[int, int]]) -> None:
    """Ask for one refund of each invoice of the customers that are to have one, as soon as it is paid."""
    for shard in shard_set.shards:
        paid = "SELECT id FROM invoice WHERE shard_id = %(shard)s AND status = 2 AND subscription_id LIKE 'refund%%'"
        for (invoice,) in shard_set.rows(shard, paid):
            if (shard, invoice) not in asked:
                asked.add((shard, invoice))
                order = RefundOrder(shard=shard, invoice=invoice, amount=None, key="all", actor="anna", reason="asked for it")
                request(shard_set.router, order)
