"""Publishing to real brokers: order, numbers, poison, crashes, slowness, two publishers. Each test on NATS and on RabbitMQ, over
TLS.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from billing_shards.errors import BrokerUnavailable, EventRefused
from billing_shards.outbox import events, rounds
from billing_shards.outbox.brokers import Broker
from billing_shards.outbox.events import Event
from billing_shards.outbox.model import Message, Problem
from billing_shards.outbox.publisher import Publisher
from hack.brokers import BrokerServer, NatsServer, RabbitServer
from tests.mysql.brokers import BrokerSite, connected, publisher_of, publishing, site_on
from tests.mysql.contract import WRONG_ON_PURPOSE
from tests.mysql.shard_set import ShardSet

PATIENCE_SECONDS = 90
QUEUE_SETTLES_SECONDS = 3
"""RabbitMQ 4.3: a quorum queue that is killed in the second it was made comes back without what it had confirmed."""
ISSUED = {"invoice": 1, "amount": 990, "currency": "USD", "period_start": "2024-01-31", "period_end": "2024-02-29"}
REVIEW = {"invoice": 1, "reason": "workers_lost"}


@pytest.fixture(scope="module", params=[NatsServer, RabbitServer], ids=["nats", "rabbitmq"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    with request.param.start(tmp_path_factory.mktemp("broker") / "data", tls=True) as started:
        yield started


@pytest.fixture
def site(server: BrokerServer) -> BrokerSite:
    return site_on(server)


def write(shard_set: ShardSet, shard: int, told: Sequence[tuple[str, str]]) -> None:
    """Events given as (type, subscription), in one transaction."""

    def body(transaction: Any) -> None:
        payloads = {"invoice.issued": ISSUED, "payment.review": REVIEW}
        made = [Event(type=kind, subscription=name, payload=payloads.get(kind, {})) for kind, name in told]
        events.write(transaction, transaction.take("event", len(made)), made)

    shard_set.router.run(shard, body)


def issued(*names: str) -> list[tuple[str, str]]:
    return [("invoice.issued", name) for name in names]


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def unsent(shard_set: ShardSet) -> int:
    return shard_set.count("outbox", "sent_at IS NULL")


def run(work: Coroutine[Any, Any, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return asyncio.run(work)


async def published(shard_set: ShardSet, site: BrokerSite, *publishers: Publisher) -> list[dict[str, Any]]:
    """What arrives once everything is sent."""
    async with publishing(*publishers):
        await until(lambda: unsent(shard_set) == 0)
    return await site.received()


def first_deliveries(arrived: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of each id, in the order of their arrival: what a consumer that de-duplicates acts upon."""
    return list({one["id"]: one for one in arrived}.values())


def assert_in_order(arrived: Sequence[dict[str, Any]]) -> None:
    """By shard without gaps, by subscription in order."""
    by_subscription: defaultdict[str, list[str]] = defaultdict(list)
    for one in first_deliveries(arrived):
        by_subscription[one["subject"]].append(one["sequence"])
    assert all(numbers == sorted(numbers) for numbers in by_subscription.values())
    by_shard: defaultdict[int, set[int]] = defaultdict(set)
    for one in arrived:
        by_shard[one["shard"]].add(int(one["sequence"]))
    assert all(numbers == set(range(1, len(numbers) + 1)) for numbers in by_shard.values())


def test_every_event_arrives_once_numbered_without_gaps_and_in_order(shard_set: ShardSet, site: BrokerSite) -> None:
    for shard in (0, 5):
        for _ in range(4):
            write(shard_set, shard, issued(*(f"{shard}-{n % 7}" for n in range(25))))
    arrived = run(published(shard_set, site, publisher_of(site, shard_set.router, shard_set.shards, batch=40)))
    assert len(arrived) == len({one["id"] for one in arrived}) == 200
    assert_in_order(arrived)
    assert arrived[0]["specversion"] == "1.0"
    assert arrived[0]["data"] == ISSUED


def test_an_unroutable_event_is_an_error_that_holds_up_its_own_subscription_alone(shard_set: ShardSet, site: BrokerSite) -> None:
    async def work() -> list[dict[str, Any]]:
        await (await connected(site)).close()  # makes stream and queue
        await site.narrow()
        told = [("invoice.issued", "a"), ("payment.review", "a"), ("invoice.issued", "a"), ("invoice.issued", "b")]
        write(shard_set, 1, told)
        publisher = publisher_of(site, shard_set.router, shard_set.shards, queue=None)  # it would bind its own queue again
        async with publishing(publisher):
            await until(lambda: unsent(shard_set) == 2)
            await until(lambda: shard_set.count("outbox_blocked", "event_id = 2 AND problem = 'unroutable'") == 1)
            early = await site.received()
            await site.widen()
            shard_set.change(1, "UPDATE outbox_blocked SET next_try_at = NOW(6) WHERE shard_id = %(shard)s")
            await until(lambda: unsent(shard_set) == 0)
        return early + await site.received()

    arrived = run(work())
    assert {one["id"] for one in arrived[:2]} == {"main/1/1", "main/1/4"}
    assert [one["id"] for one in arrived[2:]] == ["main/1/2", "main/1/3"]
    assert shard_set.count("outbox_blocked") == 0


def test_poison_is_set_aside_and_shows_while_others_go_on(shard_set: ShardSet, site: BrokerSite) -> None:
    bad = WRONG_ON_PURPOSE
    write(shard_set, 2, [("invoice.vanished", f"{bad}a"), ("invoice.issued", f"{bad}a"), ("invoice.issued", "good")])

    def large(transaction: Any) -> None:
        payload = {**ISSUED, "note": "x" * 5000}
        one = Event(type="invoice.issued", subscription=f"{bad}b", payload=payload)
        events.write(transaction, transaction.take("event", 1), [one])

    shard_set.router.run(2, large)

    async def work() -> list[dict[str, Any]]:
        async with publishing(publisher_of(site, shard_set.router, shard_set.shards, messageBytesMax=2048)):
            await until(lambda: shard_set.count("outbox_blocked") == 2)
            await until(lambda: unsent(shard_set) == 3)
        return await site.received()

    assert [one["id"] for one in run(work())] == ["main/2/3"]
    rows = shard_set.rows(2, "SELECT event_id, problem, details FROM outbox_blocked WHERE shard_id = %(shard)s ORDER BY event_id")
    assert [row[:2] for row in rows] == [(1, Problem.SCHEMA), (4, Problem.TOO_LARGE)]
    assert "invoice.vanished" in rows[0][2]


def test_a_broker_that_dies_loses_nothing_and_stops_no_billing(shard_set: ShardSet, site: BrokerSite) -> None:
    async def work() -> list[dict[str, Any]]:
        await (await connected(site)).close()
        await asyncio.sleep(QUEUE_SETTLES_SECONDS)
        write(shard_set, 3, issued(*(f"s{n % 5}" for n in range(60))))
        async with publishing(publisher_of(site, shard_set.router, shard_set.shards, batch=10)):
            await until(lambda: unsent(shard_set) < 60)
            await asyncio.to_thread(site.server.kill)
            for n in range(20):
                await asyncio.to_thread(write, shard_set, 3, issued(f"s{n % 5}"))  # billing goes on
            left = await asyncio.to_thread(unsent, shard_set)
            await asyncio.to_thread(site.server.restart)
            await until(lambda: unsent(shard_set) == 0)
        assert left >= 20
        return await site.received()

    arrived = run(work())
    assert len({one["id"] for one in arrived}) == 80
    assert_in_order(arrived)


def test_a_broker_that_stands_still_loses_nothing(shard_set: ShardSet, site: BrokerSite) -> None:
    """No connection breaks and nothing is refused: there is just no answer."""

    async def work() -> list[dict[str, Any]]:
        write(shard_set, 3, issued(*(f"s{n % 5}" for n in range(60))))
        pid = site.server.pid
        async with publishing(publisher_of(site, shard_set.router, shard_set.shards, batch=10, confirmSeconds=1)):
            await until(lambda: unsent(shard_set) < 60)
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(2.5)
                before = await asyncio.to_thread(unsent, shard_set)
                await asyncio.to_thread(write, shard_set, 3, issued("s1"))
                assert await asyncio.to_thread(unsent, shard_set) == before + 1
            finally:
                os.kill(pid, signal.SIGCONT)
            await until(lambda: unsent(shard_set) == 0)
        return await site.received()

    arrived = run(work())
    assert len({one["id"] for one in arrived}) == 61
    assert_in_order(arrived)


def test_two_publishers_share_the_shards_and_keep_the_order(shard_set: ShardSet, site: BrokerSite) -> None:
    for shard in range(4):
        write(shard_set, shard, issued(*(f"{shard}-{n % 3}" for n in range(50))))
    both = [publisher_of(site, shard_set.router, shard_set.shards, batch=7) for _ in range(2)]
    arrived = run(published(shard_set, site, *both))
    assert len(arrived) == len({one["id"] for one in arrived}) == 200
    assert_in_order(arrived)


class Late:
    """A connection of which one message waits until it is let go, as when a process is held up."""

    def __init__(self, inner: Broker, number: int) -> None:
        self._inner = inner
        self._which = f"/{number}"
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def publish(self, message: Message) -> None:
        if message.id.endswith(self._which):
            self.reached.set()
            await self.go.wait()
        await self._inner.publish(message)

    async def close(self) -> None:
        await self._inner.close()


def test_a_publisher_whose_lease_ended_while_it_was_held_up_brings_nothing_new_out_of_order(
    shard_set: ShardSet, site: BrokerSite
) -> None:
    """It sends again what another one sent meanwhile, under the same ids: a consumer that de-duplicates sees no difference."""
    write(shard_set, 4, issued("s", "s", "s"))

    async def work() -> list[dict[str, Any]]:
        first = publisher_of(site, shard_set.router, shard_set.shards)
        late = Late(await connected(site), 2)
        held_up = asyncio.create_task(first.publish(4, late, 10))
        await late.reached.wait()  # event 1 is sent, event 2 is about to be
        shard_set.change(4, "UPDATE shard_task SET until = NOW(6) - INTERVAL 1 SECOND WHERE shard_id = %(shard)s")
        async with publishing(publisher_of(site, shard_set.router, shard_set.shards)):
            await until(lambda: unsent(shard_set) == 0)
            write(shard_set, 4, issued("s"))
            await until(lambda: unsent(shard_set) == 0)
        late.go.set()
        await held_up
        await late.close()
        return await site.received()

    arrived = run(work())
    assert [one["id"] for one in first_deliveries(arrived)] == [f"main/4/{number}" for number in (1, 2, 3, 4)]
    assert shard_set.count("outbox", "sent_at IS NOT NULL") == 4


def test_a_publisher_that_stops_leaves_its_shards_at_once(shard_set: ShardSet, site: BrokerSite) -> None:
    write(shard_set, 6, issued("s"))
    run(published(shard_set, site, publisher_of(site, shard_set.router, shard_set.shards)))
    batch = rounds.take(shard_set.router, 6, token=1, lease_seconds=30, limit=1)
    assert not hasattr(batch, "seconds")


def test_a_broker_that_refuses_us_or_that_we_refuse_is_told(site: BrokerSite) -> None:
    async def work() -> None:
        for changes in (
            {"credentialsSecret": None},
            {"caSecret": None},  # the system trusts nobody who signed its certificate
            {"url": site.server.url.replace(str(site.server.port), "9")},
        ):
            with pytest.raises(BrokerUnavailable):
                await connected(site, **changes)

    asyncio.run(work())


def test_a_message_comes_back_where_nobody_wants_it(site: BrokerSite) -> None:
    async def work() -> None:
        broker = await connected(site)
        await site.narrow()
        await broker.publish(Message(id="main/0/1", subject="000.invoice.issued", body=b"{}"))
        with pytest.raises(EventRefused) as refused:
            await broker.publish(Message(id="main/0/2", subject="000.payment.review", body=b"{}"))
        assert refused.value.problem == Problem.UNROUTABLE
        await broker.publish(Message(id="main/0/3", subject="000.invoice.issued", body=b"{}"))
        await broker.close()

    asyncio.run(work())
