"""Lanes in a whole claimer on real servers: what hangs, fails or floods in one holds up nothing of another."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from billing_shards.claimer import CONNECTIONS, Claimer
from billing_shards.jobs import store
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Lane
from billing_shards.payments.gateway import ChargesOnly
from billing_shards.payments.guarded import GuardedGateway
from billing_shards.payments.model import Cause, ChargeRequest, Found, NotFound, NotSent, Outcome, Succeeded, Unknown
from billing_shards.payments.providers import Providers
from billing_shards.shards import shardset
from tests.mysql.shard_set import NAME, ShardSet
from tests.mysql.test_queue import expire, reap_all

PATIENCE_SECONDS = 90
GATEWAYS = [{"name": name, "url": "http://127.0.0.1:9"} for name in ("slow", "fast")]
SERVICES = [
    {"name": "video", "lane": 1, "gateway": "slow"},
    {"name": "audio", "lane": 2, "gateway": "fast"},
]
FENCE = "UPDATE shard_owner SET state = {} WHERE shard_id = %(shard)s"
VIDEO, AUDIO, COMMON, RETRIES, GONE = 2, 4, 0, 1, 60


class Gateway(ChargesOnly):
    """A provider in this process, which hangs on some payment methods until it is let go, and is never reached for others."""

    key_ttl_seconds = 86_400.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.let_go = asyncio.Event()
        self.charged: Counter[str] = Counter()
        self.under_way = 0
        self.most_under_way = 0

    async def charge(self, request: ChargeRequest) -> Outcome:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if request.payment_method == "pm_hang":
                await self.let_go.wait()
            await asyncio.sleep(0.01)
        finally:
            self.under_way -= 1
        if request.payment_method == "pm_down" and not self.let_go.is_set():
            return NotSent(reason="not reached", cause=Cause.NOT_REACHED)
        if request.payment_method == "pm_silent" and not self.let_go.is_set():
            return Unknown(reason="no answer")
        self.charged[request.reference] += 1
        return Succeeded(provider_ref="ch_" + request.reference)

    async def find(self, reference: str) -> Found:
        return Succeeded(provider_ref="ch_" + reference) if self.charged[reference] else NotFound()

    async def close(self) -> None:
        pass


class Working:
    """A claimer at work in this process, and its providers."""

    def __init__(self, shard_set: ShardSet, claimer: Claimer, gateways: dict[str, Gateway], guarded: Providers) -> None:
        self.shard_set = shard_set
        self.claimer = claimer
        self.gateways = gateways
        self.guarded = guarded
        self.running = asyncio.create_task(claimer.run())

    def let_go(self) -> None:
        for gateway in self.gateways.values():
            gateway.let_go.set()

    async def until_paid(self, *prefixes: str) -> None:
        """Every invoice of subscriptions whose names begin so is paid."""
        await self.until(lambda: not unpaid(self.shard_set, prefixes))

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not await asyncio.to_thread(condition):
            if self.running.done():
                self.running.result()
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


@asynccontextmanager
async def working(shard_set: ShardSet, *, guarded: bool = False) -> AsyncIterator[Working]:
    """A claimer for all shards, ended in good order: whatever hangs is let go."""
    spec = shard_set.spec
    gateways = {one.name: Gateway(one.name) for one in spec.all_gateways}
    providers = Providers(GuardedGateway(gateways[one.name], one) if guarded else gateways[one.name] for one in spec.all_gateways)
    with ExitStack() as stack:
        router, renewals = (shardset.open_router(NAME, spec, shard_set.secrets, pool_size=size) for size in (CONNECTIONS, 1))
        for one in (router, renewals):
            stack.callback(one.close)
        made = Working(shard_set, Claimer(spec, router, renewals, providers, shard_set.shards), gateways, providers)
        try:
            yield made
        finally:
            made.let_go()
            made.claimer.stop()
            await asyncio.wait_for(made.running, PATIENCE_SECONDS)


def unpaid(shard_set: ShardSet, prefixes: Iterable[str]) -> int:
    return sum(shard_set.count("invoice", f"status <> 2 AND subscription_id LIKE '{prefix}-%%'") for prefix in prefixes)


def add(shard_set: ShardSet, prefix: str, lane: int, count: int, method: str = "pm_ok") -> None:
    for number in range(count):
        shard_set.add_due_job(f"{prefix}-{number}", lane=lane, payment_method=method, overdue_seconds=60 + number)


@pytest.fixture
def make(make_shard_set: Callable[..., ShardSet]) -> Callable[..., ShardSet]:
    def of(services: Any = SERVICES, **claimer: Any) -> ShardSet:
        settings = {"workers": 16, "batch": 10, "idlePollSeconds": 0.2, "leaseSeconds": 30, **claimer}
        retry = {"checkDelaysSeconds": [1] * 30}
        return make_shard_set(claimer=settings, gateways=GATEWAYS, services=services, retry=retry)

    return of


@pytest.mark.parametrize("in_flight_max", [None, 8, 120], ids=["left out", "fewer", "more"])
def test_a_service_whose_provider_hangs_for_ever_holds_up_no_other(
    make: Callable[..., ShardSet], in_flight_max: int | None
) -> None:
    """Also where more jobs are held than there are workers, and where the others' jobs fall due when it hangs already."""
    shard_set = make(inFlightMax=in_flight_max) if in_flight_max else make()
    add(shard_set, "video", VIDEO, 70, "pm_hang")

    async def main() -> None:
        async with working(shard_set) as work:
            await work.until(lambda: work.gateways["slow"].under_way > 0)
            add(shard_set, "audio", AUDIO, 30)
            add(shard_set, "common", COMMON, 20)
            await work.until_paid("audio", "common")
            assert unpaid(shard_set, ["video"]) == 70
            assert 1 <= work.gateways["slow"].under_way < 16
            work.let_go()
            await work.until_paid("video")

    asyncio.run(main())
    assert shard_set.count("payment_attempt") == 120


def test_a_flood_of_retries_that_hang_holds_up_no_renewal(make: Callable[..., ShardSet]) -> None:
    shard_set = make(services=[])
    add(shard_set, "again", RETRIES, 80, "pm_hang")
    add(shard_set, "new", COMMON, 30)

    async def main() -> None:
        async with working(shard_set) as work:
            await work.until_paid("new")
            assert unpaid(shard_set, ["again"]) == 80

    asyncio.run(main())


@pytest.mark.parametrize("method", ["pm_down", "pm_silent"])
def test_a_service_that_fails_again_and_again_holds_up_no_other(make: Callable[..., ShardSet], method: str) -> None:
    shard_set = make()
    add(shard_set, "video", VIDEO, 40, method)
    add(shard_set, "audio", AUDIO, 30)

    async def main() -> None:
        async with working(shard_set) as work:
            await work.until_paid("audio")
            assert unpaid(shard_set, ["video"]) == 40
            work.let_go()
            await work.until_paid("video")

    asyncio.run(main())


def test_nothing_is_claimed_for_a_provider_that_is_left_alone(make: Callable[..., ShardSet]) -> None:
    """Its breaker is open: jobs would only go round. They stay due, and are charged when it is tried again."""
    shard_set = make()
    add(shard_set, "video", VIDEO, 60, "pm_silent")

    async def main() -> None:
        async with working(shard_set, guarded=True) as work:
            await work.until(lambda: work.guarded.held_back_seconds("slow") > 0)
            await work.until(lambda: shard_set.count("billing_job", "status = 1") == 0)
            add(shard_set, "audio", AUDIO, 10)
            await work.until_paid("audio")
            assert shard_set.count("payment_attempt", "provider = 'slow'") < 60
            assert unpaid(shard_set, ["video"]) == 60

    asyncio.run(main())


def test_a_lane_whose_service_was_taken_out_of_the_spec_is_charged_by_the_common_provider(make: Callable[..., ShardSet]) -> None:
    shard_set = make()
    add(shard_set, "gone", GONE, 15)
    add(shard_set, "gone-again", GONE + 1, 5)
    add(shard_set, "video", VIDEO, 40, "pm_hang")
    common = Lanes(shard_set.spec).provider(Lanes(shard_set.spec).of_service("gone"))

    async def main() -> None:
        async with working(shard_set) as work:
            await work.until_paid("gone")

    asyncio.run(main())
    assert shard_set.count("payment_attempt", f"provider = '{common}'") == 20


def test_a_shard_that_is_being_handed_over_holds_up_no_other(make: Callable[..., ShardSet]) -> None:
    shard_set = make()
    add(shard_set, "sub", COMMON, 40)
    kept = shard_set.count("invoice", "shard_id = 3")
    assert 0 < kept < 40
    shard_set.change(3, FENCE.format(2))

    async def main() -> None:
        async with working(shard_set) as work:
            await work.until(lambda: shard_set.count("invoice", "status = 1") == kept)
            shard_set.change(3, FENCE.format(1))
            await work.until_paid("sub")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("workers", "in_flight_max", "batch"), [(5, None, 50), (4, 20, 3), (50, 10, 50)], ids=["workers", "batch", "in flight"]
)
def test_workers_batch_and_jobs_in_flight_are_each_bounded_by_their_own_setting(
    make: Callable[..., ShardSet], workers: int, in_flight_max: int | None, batch: int
) -> None:
    own = {"inFlightMax": in_flight_max} if in_flight_max else {}
    shard_set = make(workers=workers, batch=batch, **own)
    add(shard_set, "sub", COMMON, 60, "pm_hang")
    most = in_flight_max or 3 * workers

    async def main() -> None:
        async with working(shard_set) as work:
            slots = min(workers, most)
            await work.until(lambda: work.gateways["http"].under_way >= slots // 2)
            await asyncio.sleep(1)  # five looks
            assert shard_set.count("billing_job", "status = 1") <= most
            work.let_go()
            await work.until_paid("sub")
            assert work.gateways["http"].most_under_way <= slots

    asyncio.run(main())
    tokens = Counter(
        row[0]
        for shard in shard_set.shards
        for row in shard_set.rows(shard, "SELECT lease_token FROM billing_job WHERE shard_id = %(shard)s")
    )
    assert max(tokens.values()) <= min(batch, most)
    assert sum(tokens.values()) == 60


def test_leases_are_renewed_while_every_other_connection_is_taken(make: Callable[..., ShardSet]) -> None:
    """Workers that are slow and a pool that is used up must not cost the leases: the jobs would run twice."""
    shard_set = make(leaseSeconds=5, workers=40)
    add(shard_set, "sub", COMMON, 10, "pm_hang")

    async def main() -> None:
        async with working(shard_set) as work:
            await work.until(lambda: shard_set.count("billing_job", "status = 1") == 10)
            before = leases(shard_set)
            with ExitStack() as stack:
                for name in shard_set.router.databases:
                    for _ in range(CONNECTIONS):
                        stack.enter_context(work.claimer._router.connect(name))
                await asyncio.sleep(7)
                assert await asyncio.to_thread(reap_all, shard_set) == 0
                assert leases(shard_set) == before
            work.let_go()
            await work.until_paid("sub")

    asyncio.run(main())
    assert shard_set.count("payment_attempt") == shard_set.count("ledger_entry", "kind = 2") == 10


def test_a_shard_that_is_being_handed_over_costs_no_other_its_leases_and_keeps_none_lost(make: Callable[..., ShardSet]) -> None:
    """Neither renewals nor the reaper stop at the first shard that refuses."""
    shard_set = make(leaseSeconds=5, workers=60)
    add(shard_set, "sub", COMMON, 24, "pm_hang")
    fenced = next(shard for shard in range(4) if shard_set.count("invoice", f"shard_id = {shard}"))
    others = shard_set.count("billing_job", f"shard_id <> {fenced}")
    assert 0 < others < 24

    async def main() -> None:
        async with working(shard_set) as work:
            await work.until(lambda: shard_set.count("billing_job", "status = 1") == 24)
            shard_set.change(fenced, FENCE.format(2))
            await work.until(lambda: shard_set.count("billing_job", "status = 1 AND due_at < NOW(6)") > 0)
            await asyncio.sleep(6)  # more than a lease
            lost = shard_set.count("billing_job", f"shard_id <> {fenced} AND (status <> 1 OR due_at < NOW(6))")
            shard_set.change(fenced, FENCE.format(1))
            assert lost == 0
            work.let_go()
            await work.until_paid("sub")

    asyncio.run(main())
    assert shard_set.count("ledger_entry", "kind = 2") == 24


def test_the_reaper_goes_past_a_shard_that_is_being_handed_over(make: Callable[..., ShardSet]) -> None:
    shard_set = make()
    add(shard_set, "sub", COMMON, 24)
    held = [
        job
        for shard in shard_set.shards
        for job in store.claim(shard_set.router, shard, Lane(COMMON), limit=24, lease_seconds=60, provider="http").jobs
    ]
    for job in held:
        expire(shard_set, job)
    shards = sorted({job.shard for job in held})
    fenced = (shards[0], shards[-1])
    for shard in fenced:
        shard_set.change(shard, FENCE.format(2))
    assert reap_all(shard_set) == sum(job.shard not in fenced for job in held)


def leases(shard_set: ShardSet) -> set[tuple[int, int, int]]:
    query = "SELECT shard_id, id, lease_token FROM billing_job WHERE shard_id = %(shard)s AND status = 1"
    return {tuple(row) for shard in shard_set.shards for row in shard_set.rows(shard, query)}
