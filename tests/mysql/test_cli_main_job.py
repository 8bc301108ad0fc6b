"""The main job by the command line alone: import, run, status, audit against the provider's own export."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from billing_shards.cli.codes import ExitCode
from hack.fake_gateway import FakeGateway
from tests.mysql.command import cli
from tests.mysql.shard_set import ShardSet

PATIENCE_SECONDS = 120
METHODS = ("pm_ok", "pm_lost_answer", "pm_conflict", "pm_pending", "pm_declines_1_insufficient_funds", "pm_decline_stolen_card")
CURRENCIES = ("9.90,USD", "1200,JPY", "3.500,KWD", "5.00,EUR")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    with FakeGateway.start(tmp_path / "gateway", seed=7, settle_after_seconds=1) as started:
        yield started


def write_subscriptions(path: Path) -> int:
    """One of each currency for each payment method, with four periods begun each; how many."""
    start = datetime.now(UTC).date() - timedelta(days=100)
    rows = [
        f"{method}-{number},c-{number},video,{amount},30 days,{start},Asia/Tokyo,{method}"
        for method in METHODS
        for number, amount in enumerate(CURRENCIES)
    ]
    header = "id,customer_id,service,amount,currency,interval,start_date,time_zone,payment_method"
    path.write_text("\n".join([header, *rows, ""]))
    return len(rows)


@contextmanager
def running(manifest: Path, log: Path) -> Iterator[None]:
    """`billing-shards run`, ended by SIGTERM."""
    command = [str(Path(sys.executable).with_name("billing-shards")), "run", "--manifest", str(manifest)]
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == ExitCode.OK, log.read_text()
        finally:
            process.kill()


def wait_until_settled(manifest: Path, log: Path, audit: Sequence[str | Path]) -> None:
    """All that is seen on the way is whole as well: each shard is audited in one snapshot of it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        shards: list[dict[str, Any]] = cli("status", "--json", "--manifest", manifest).json["shards"]
        left = {name: sum(shard[name] for shard in shards) for name in ("not_invoiced", "due", "in_work", "later")}
        if not any(left.values()):
            return
        assert time.monotonic() < deadline, f"{left}\n{log.read_text()}"
        ended = cli(*audit)
        assert ended.code == ExitCode.OK, ended.out


def charge_again(gateway: FakeGateway, charge: dict[str, Any]) -> None:
    body = {name: charge[name] for name in ("amount", "currency", "reference")} | {"payment_method": "pm_ok"}
    headers = {"Idempotency-Key": "another key", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{gateway.url}/v1/charges", json.dumps(body).encode(), headers)  # noqa: S310 - our own URL
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own URL
        assert json.load(answer)["status"] == "succeeded"


def test_all_that_was_imported_is_charged_once(shard_set: ShardSet, gateway: FakeGateway, tmp_path: Path) -> None:
    manifest = shard_set.manifest(
        tmp_path / "manifest.yaml",
        gateway={"url": gateway.url, "timeoutSeconds": 5},
        claimer={"workers": 40, "batch": 50, "leaseSeconds": 5, "idlePollSeconds": 0.2},
        smoothing={"windowSeconds": 0},
        retry={"checkDelaysSeconds": [1] * 12, "delaysSeconds": [1], "attemptsMax": 3},
    )
    count = write_subscriptions(tmp_path / "subscriptions.csv")
    assert cli("import", tmp_path / "subscriptions.csv", "--manifest", manifest).code == ExitCode.OK
    audit = ("audit", "--provider-charges", f"{gateway.url}/v1/charges/export", "--manifest", manifest)
    with running(manifest, tmp_path / "log"):
        wait_until_settled(manifest, tmp_path / "log", audit)

    ended = cli(*audit, "--json")
    assert ended.code == ExitCode.OK, ended.out
    assert ended.json["rows"]["subscriptions"] == count
    assert ended.json["rows"]["invoices"] == 4 * count
    succeeded = [charge for charge in gateway.charges() if charge["status"] == "succeeded"]
    assert len(succeeded) == shard_set.count("invoice", "status = 2") == 4 * 20
    assert ended.json["provider"] == {
        "charges": len(succeeded),
        "double_charges": 0,
        "missing_charges": 0,
        "in_doubt": 0,
        "after_the_list": 0,
    }

    charge_again(gateway, succeeded[0])
    ended = cli(*audit)
    assert ended.code == ExitCode.PROBLEMS
    assert ended.out.splitlines()[-3:] == ["double charges: 1", "missing charges: 0", "audit: 1 problems"]
