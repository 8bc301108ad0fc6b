"""The main job without a cluster: scheduler, claimer and housekeeper in one process, against the fake provider over HTTP."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from billing_shards import run as whole
from billing_shards.settings import Manifest
from hack.fake_gateway import FakeGateway
from tests.mysql.shard_set import ShardSet

PATIENCE_SECONDS = 90
QUICK = {"claimer": {"workers": 40, "batch": 50, "leaseSeconds": 5, "idlePollSeconds": 0.2}, "smoothing": {"windowSeconds": 0}}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    made = FakeGateway.start(tmp_path / "gateway", seed=7)
    yield made
    made.stop()


def manifest(shard_set: ShardSet, gateway: FakeGateway, tmp_path: Path, **changes: Any) -> Path:
    retry = {"checkDelaysSeconds": [1] * 12, "delaysSeconds": [2], "attemptsMax": 3}
    where = {"gateway": {"url": gateway.url, "timeoutSeconds": 2}, "retry": retry}
    return shard_set.manifest(tmp_path / "manifest.yaml", **{**QUICK, **where, **changes})


def run_until(path: Path, finished: Callable[[], bool]) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(whole.run(Manifest.read(path), stop=stop))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not await asyncio.to_thread(finished) and time.monotonic() < deadline and not running.done():
            await asyncio.sleep(0.1)
        stop.set()
        await running

    asyncio.run(main())
    assert finished()


def add(shard_set: ShardSet, count: int, payment_method: str = "pm_ok", prefix: str = "sub") -> None:
    """Subscriptions with one period begun and the next one far off."""
    for number in range(count):
        shard_set.add_subscription(
            f"{prefix}-{number}",
            payment_method=payment_method,
            interval_unit=4,
            interval_count=50,
            start_date=datetime(2026, 1, 1).date(),
            next_invoice_at=datetime(2026, 1, 1),
        )


def test_every_due_period_is_invoiced_and_charged_once(shard_set: ShardSet, gateway: FakeGateway, tmp_path: Path) -> None:
    add(shard_set, 60)
    run_until(manifest(shard_set, gateway, tmp_path), lambda: shard_set.count("invoice", "status = 2") == 60)
    assert shard_set.count("payment_attempt", "outcome = 1") == 60
    assert shard_set.count("ledger_entry", "kind = 2") == 60
    charges = list(gateway.charges())
    assert len(charges) == 60
    assert len({charge["reference"] for charge in charges}) == 60


def test_lost_answers_conflicts_and_errors_charge_nobody_twice(shard_set: ShardSet, gateway: FakeGateway, tmp_path: Path) -> None:
    for method in ("pm_lost_answer", "pm_conflict", "pm_500_after", "pm_rate_limited", "pm_pending", "pm_hang"):
        add(shard_set, 4, method, prefix=method)
    gateway.configure(settle_after_seconds=2, hang_seconds=4)
    run_until(manifest(shard_set, gateway, tmp_path), lambda: shard_set.count("invoice", "status = 2") == 24)
    summary = gateway.summary()
    assert summary["double_charges"] == 0
    succeeded = [charge for charge in gateway.charges() if charge["status"] == "succeeded"]
    assert len(succeeded) == 24
    assert shard_set.count("ledger_entry", "kind = 2") == 24


def test_an_outcome_that_nobody_can_tell_goes_to_review_and_is_never_sent_under_a_new_key(
    shard_set: ShardSet, gateway: FakeGateway, tmp_path: Path
) -> None:
    """The provider failed before it charged, and answers its stored 500 to the same key for ever."""
    add(shard_set, 2, "pm_500_before")
    retry = {"checkDelaysSeconds": [1, 1], "delaysSeconds": [1]}
    path = manifest(shard_set, gateway, tmp_path, retry=retry)
    run_until(path, lambda: shard_set.count("billing_job", "status = 5 AND attempt_open = 1 AND attempt_no = 1") == 2)
    assert list(gateway.charges()) == []
    assert shard_set.count("outbox", "type = 'payment.review'") == 2


def test_declines_are_retried_or_end_as_their_class_says(shard_set: ShardSet, gateway: FakeGateway, tmp_path: Path) -> None:
    for method in ("pm_declines_1_insufficient_funds", "pm_decline_insufficient_funds", "pm_decline_stolen_card"):
        add(shard_set, 2, method, prefix=method)
    add(shard_set, 2, "pm_decline_expired_card", prefix="expired")
    ended = "status IN (2, 3, 4, 5)"

    def finished() -> bool:
        return shard_set.count("billing_job", ended) == 8 and not shard_set.count("subscription", "next_dunning_at <= NOW(6)")

    run_until(manifest(shard_set, gateway, tmp_path), finished)
    found = {status: shard_set.count("billing_job", f"status = {status}") for status in (2, 3, 4, 5)}
    assert found == {2: 2, 3: 4, 4: 2, 5: 0}
    assert shard_set.count("subscription", "status = 3 AND next_invoice_at IS NULL") == 4
    assert shard_set.count("subscription", "status = 2") == 2
    assert shard_set.count("payment_attempt") == 2 * 2 + 2 * 3 + 2 + 2


@contextmanager
def _started(path: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [str(Path(sys.executable).with_name("billing-shards")), "run", "--manifest", str(path)]
    with log.open("ab") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_for(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def test_a_killed_process_loses_and_doubles_nothing(shard_set: ShardSet, gateway: FakeGateway, tmp_path: Path) -> None:
    add(shard_set, 200)
    gateway.configure(delay_ms=200)
    path = manifest(shard_set, gateway, tmp_path)
    for paid in (40, 80):
        with _started(path, tmp_path / "log"):
            _wait_for(lambda paid=paid: shard_set.count("invoice", "status = 2") > paid, tmp_path / "log")  # type: ignore[misc]
    assert shard_set.count("billing_job", "status = 1") > 0
    run_until(path, lambda: shard_set.count("invoice", "status = 2") == 200)
    assert gateway.summary()["double_charges"] == 0
    assert sum(charge["status"] == "succeeded" for charge in gateway.charges()) == 200
    assert shard_set.count("ledger_entry", "kind = 2") == 200


def test_sigterm_finishes_what_is_under_way(shard_set: ShardSet, gateway: FakeGateway, tmp_path: Path) -> None:
    add(shard_set, 200)
    gateway.configure(delay_ms=300)
    log = tmp_path / "log"
    with _started(manifest(shard_set, gateway, tmp_path), log) as process:
        _wait_for(lambda: shard_set.count("invoice", "status = 2") > 0, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_SECONDS) == 0, log.read_text()
    assert shard_set.count("billing_job", "status = 1") == 0
    paid = shard_set.count("invoice", "status = 2")
    assert sum(charge["status"] == "succeeded" for charge in gateway.charges()) == paid < 200
