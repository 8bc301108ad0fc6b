"""Exactly once in effect: publisher and consumer are real processes, killed again and again, and then everything is counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from billing_shards.outbox import events
from billing_shards.outbox.events import Event
from hack.brokers import NatsServer, RabbitServer
from hack.consumer.ledger import Ledger
from tests.mysql.brokers import BrokerSite, secrets_of, site_on
from tests.mysql.pods import Pod
from tests.mysql.shard_set import NAME, ShardSet

PATIENCE_SECONDS = 120
SUBSCRIPTIONS = 12


@pytest.fixture(params=[NatsServer, RabbitServer], ids=["nats", "rabbitmq"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerSite]:
    with request.param.start(tmp_path / "broker") as server:
        yield site_on(server)


def write(shard_set: ShardSet, count: int) -> None:
    """Invoices of 1, 2, 3, … minor units for each subscription, spread over the shards."""
    for shard in shard_set.shards:
        names = [f"sub-{n}" for n in range(SUBSCRIPTIONS) if n % len(shard_set.shards) == shard]

        def body(transaction: Any, names: list[str] = names) -> None:
            first = transaction.take("event", count * len(names))
            dates = {"period_start": "2024-01-31", "period_end": "2024-02-29"}
            told = [
                Event(type="invoice.issued", subscription=name, payload={"invoice": n, "amount": n, "currency": "USD", **dates})
                for n in range(1, count + 1)
                for name in names
            ]
            events.write(transaction, first, told)

        if names:
            shard_set.router.run(shard, body)


class Consumer:
    """`python -m hack.consumer` as a process."""

    def __init__(self, site: BrokerSite, folder: Path) -> None:
        self.file = folder / "effects.sqlite"
        self._log = folder / "consumer.log"
        options = ["--url", site.server.url, "--name", site.name, "--user", site.server.user]
        self._command = [sys.executable, "-m", "hack.consumer", str(self.file), *options]
        self._environment = {**os.environ, "BROKER_PASSWORD": site.server.password}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def done(self) -> int:
        """How many events had their effect."""
        if not self.file.exists():
            return 0
        ledger = Ledger(self.file)
        try:
            return ledger.events()
        finally:
            ledger.close()

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


def until(condition: Callable[[], object], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)


def test_whoever_is_killed_every_event_has_its_effect_once(
    shard_set: ShardSet, site: BrokerSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BILLING_SHARDS_WEBHOOK_PORT", "0")
    each, total = 50, 50 * SUBSCRIPTIONS
    pod = Pod(tmp_path / "pod", "housekeeper", shard_set.shards)
    spec = shard_set.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    broker = site.document()
    pod.mount_config(NAME, {**spec, "outbox": {"broker": broker, "batch": 20}})
    for name, values in {**shard_set.site.secrets_by_name, **secrets_of(site.server)}.items():
        pod.mount_secret(name, values)
    consumer = Consumer(site, tmp_path)
    told = lambda: pod.log() + consumer.log()  # noqa: E731
    try:
        pod.start()
        pod.wait_for("broker_connected")
        consumer.start()
        write(shard_set, each)
        for at in (40, 150, 260):
            until(lambda at=at: consumer.done() > at, told)  # type: ignore[misc]
            consumer.kill()
            pod.kill()
            pod.start()
            consumer.start()
        until(lambda: consumer.done() == total, told)
        until(lambda: shard_set.count("outbox", "sent_at IS NULL") == 0, told)
    finally:
        consumer.kill()
        pod.kill()
    ledger = Ledger(consumer.file)
    expected = (each, each * (each + 1) // 2)
    assert ledger.totals() == {f"sub-{n}": expected for n in range(SUBSCRIPTIONS)}
    ledger.close()
