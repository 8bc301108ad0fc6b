"""A provider behind its limits and its breaker: what is sent, what waits, what is given back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from billing_shards.jobs.model import RENEWAL, Job, clock
from billing_shards.payments.breaker import PROBE_SECONDS, Breaker, State
from billing_shards.payments.decide import CheckAfter, decide
from billing_shards.payments.gateway import ChargesOnly
from billing_shards.payments.guarded import GuardedGateway
from billing_shards.payments.model import (
    Cause,
    ChargeRequest,
    DeclineClass,
    Declined,
    Found,
    NotFound,
    NotSent,
    Outcome,
    Pending,
    RefundRequest,
    Succeeded,
    Unknown,
    Unresolvable,
)
from billing_shards.settings import GatewaySpec, RetrySpec

DOWN = Unknown(reason="no answer")
UP = Succeeded(provider_ref="ch_1")

T = TypeVar("T")


@dataclass
class Provider(ChargesOnly):
    """Answers as it is told; counts what it is asked, and how much of it at once."""

    answer: Outcome = UP
    seconds: float = 0.0
    name: str = "scripted"
    key_ttl_seconds: float = 86_400.0
    asked: int = 0
    at_once: int = 0
    most_at_once: int = 0
    closed: bool = field(default=False)

    async def charge(self, request: ChargeRequest) -> Outcome:  # noqa: ARG002
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.at_once -= 1
        return self.answer

    async def find(self, reference: str) -> Found:  # noqa: ARG002
        self.asked += 1
        return NotFound()

    async def close(self) -> None:
        self.closed = True


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


REQUEST = ChargeRequest(key="k", amount=1, currency="USD", payment_method="pm", reference="1/1/1")


def guarded(
    provider: Provider, body: Callable[[GuardedGateway], Awaitable[T]], clock: Callable[[], float] = time.monotonic, **spec: Any
) -> T:
    async def main() -> T:
        return await body(GuardedGateway(provider, GatewaySpec(url="http://nobody", **spec), clock))

    return asyncio.run(main())


def test_a_failing_provider_is_left_alone_then_tried_then_used_again() -> None:
    provider, clock = Provider(answer=DOWN), Clock()

    async def body(gateway: GuardedGateway) -> None:
        for _ in range(3):
            assert await gateway.charge(REQUEST) == DOWN
        assert gateway.held_back_seconds == 30
        clock.now += 10
        kept = NotSent(reason="kept back: it is failing", retry_after_seconds=20.0, cause=Cause.HELD_BACK)
        assert await gateway.charge(REQUEST) == kept
        assert await gateway.find("1/1/1") == kept
        assert await gateway.find_refund("r", "ch") == kept
        assert await gateway.refund(RefundRequest(key="k", provider_ref="ch", amount=1, currency="USD", reference="r")) == kept
        assert provider.asked == 3
        clock.now += 20
        assert await gateway.charge(REQUEST) == DOWN  # the probe fails: another 30 s
        assert gateway.held_back_seconds == 30
        clock.now += 30
        provider.answer = UP
        assert await gateway.charge(REQUEST) == UP
        assert await gateway.charge(REQUEST) == UP
        assert gateway.held_back_seconds == 0
        assert await asyncio.gather(*(gateway.charge(REQUEST) for _ in range(9))) == [UP] * 9

    with capture_logs() as logs:
        guarded(provider, body, clock, breaker={"failures": 3, "openSeconds": 30, "probes": 2})
    changes = [(entry["was"], entry["now"]) for entry in logs if entry["event"] == "breaker_changed"]
    assert changes == [
        ("closed", "open"), ("open", "half_open"), ("half_open", "open"), ("open", "half_open"), ("half_open", "closed"),
    ]  # fmt: skip


def test_only_so_many_probes_at_once() -> None:
    provider, clock = Provider(answer=DOWN), Clock()

    async def body(gateway: GuardedGateway) -> list[Outcome]:
        await gateway.charge(REQUEST)
        clock.now += 31
        provider.answer, provider.seconds, provider.asked = UP, 0.05, 0
        return await asyncio.gather(*(gateway.charge(REQUEST) for _ in range(50)))

    outcomes = guarded(provider, body, clock, breaker={"failures": 1, "openSeconds": 30, "probes": 3})
    assert (provider.asked, outcomes.count(UP)) == (3, 3)
    assert {outcome.cause for outcome in outcomes if isinstance(outcome, NotSent)} == {Cause.HELD_BACK}


def test_while_probes_are_under_way_it_says_that_it_sends_nothing() -> None:
    """So that no jobs are claimed only to be given back."""
    provider, clock = Provider(answer=DOWN), Clock()

    async def body(gateway: GuardedGateway) -> tuple[float, float, float]:
        await gateway.charge(REQUEST)
        clock.now += 31
        before = gateway.held_back_seconds
        provider.answer, provider.seconds = UP, 0.05
        probe = asyncio.create_task(gateway.charge(REQUEST))
        await asyncio.sleep(0.01)
        meanwhile = gateway.held_back_seconds
        await probe
        return before, meanwhile, gateway.held_back_seconds

    assert guarded(provider, body, clock, breaker={"failures": 1, "openSeconds": 30, "probes": 1}) == (0, PROBE_SECONDS, 0)


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        (UP, "succeeded"),
        (DOWN, "no_answer"),
        (NotSent(reason="", cause=Cause.CONFIG), "config"),
        (Unresolvable(reason=""), "refused"),
        (Declined(decline_class=DeclineClass.HARD, code="lost_card"), "hard"),
        (Pending(provider_ref="ch"), "pending"),
    ],
    ids=repr,
)
def test_each_answer_is_counted_by_what_it_says(outcome: Outcome, answer: str) -> None:
    labels = {"provider": "scripted", "operation": "charge", "answer": answer}
    before = REGISTRY.get_sample_value("billing_shards_gateway_answers_total", labels) or 0
    guarded(Provider(answer=outcome), lambda gateway: gateway.charge(REQUEST))
    assert REGISTRY.get_sample_value("billing_shards_gateway_answers_total", labels) == before + 1


def test_a_probe_that_is_abandoned_makes_room_for_another() -> None:
    provider, clock = Provider(answer=DOWN), Clock()

    async def body(gateway: GuardedGateway) -> Outcome:
        await gateway.charge(REQUEST)
        clock.now += 31
        provider.answer, provider.seconds = UP, 60
        abandoned = asyncio.create_task(gateway.charge(REQUEST))
        await asyncio.sleep(0.01)
        abandoned.cancel()
        await asyncio.gather(abandoned, return_exceptions=True)
        provider.seconds = 0
        return await gateway.charge(REQUEST)

    assert guarded(provider, body, clock, breaker={"failures": 1, "openSeconds": 30, "probes": 1}) == UP


def test_what_is_kept_back_is_given_back_cheaply_and_never_reviewed() -> None:
    """The job keeps its attempt open and comes again when the breaker may have closed; looks are not counted."""
    kept = NotSent(reason="kept back", retry_after_seconds=25, cause=Cause.HELD_BACK)
    for checks in range(20):
        job = Job(
            shard=1, id=1, lane=RENEWAL, subscription="s", invoice=1, amount=1, currency="USD", payment_method="pm",
            provider="scripted", key=b"", attempt_no=1, checks=checks, resumed=True, canceling=False, attempt_age=0,
            claimed_at=clock(), grace_seconds=0, token=1,
        )  # fmt: skip
        assert decide(job, kept, RetrySpec(), 0.0) == CheckAfter(seconds=25, checks=checks)


@pytest.mark.parametrize(
    ("answer", "held"),
    [
        (NotSent(reason="", cause=Cause.RATE_LIMITED, retry_after_seconds=7), 7),
        (NotSent(reason="", cause=Cause.RATE_LIMITED), 1),
        (NotSent(reason="", cause=Cause.CONFIG), 5),
        (Unknown(reason="", cause=Cause.FAILED, retry_after_seconds=9), 9),
        (Unknown(reason="", cause=Cause.FAILED), 0),
        (Unknown(reason="", cause=Cause.IN_FLIGHT, retry_after_seconds=9), 0),
        (Unknown(reason="", cause=Cause.NO_ANSWER), 0),
        (NotSent(reason="", cause=Cause.NOT_REACHED), 0),
        (UP, 0),
    ],
    ids=repr,
)
def test_a_provider_that_asks_for_it_is_held_for_as_long(answer: Outcome, held: float) -> None:
    provider, clock = Provider(answer=answer), Clock()

    async def body(gateway: GuardedGateway) -> Outcome:
        await gateway.charge(REQUEST)
        assert gateway.held_back_seconds == held
        clock.now += held
        provider.answer = UP
        return await gateway.charge(REQUEST)

    assert guarded(provider, body, clock) == UP


def test_a_long_wait_is_given_back_and_a_short_one_is_waited_for() -> None:
    provider = Provider(answer=NotSent(reason="", cause=Cause.RATE_LIMITED, retry_after_seconds=60))

    async def body(gateway: GuardedGateway) -> None:
        await gateway.charge(REQUEST)
        kept = await gateway.charge(REQUEST)
        assert isinstance(kept, NotSent)
        assert kept.cause is Cause.HELD_BACK
        assert kept.retry_after_seconds == pytest.approx(60, abs=5)

    guarded(provider, body, time.monotonic)
    assert provider.asked == 1
    provider.answer = NotSent(reason="", cause=Cause.RATE_LIMITED, retry_after_seconds=0.3)

    async def short(gateway: GuardedGateway) -> float:
        await gateway.charge(REQUEST)
        started = time.monotonic()
        provider.answer = UP
        assert await gateway.charge(REQUEST) == UP
        return time.monotonic() - started

    assert guarded(provider, short, time.monotonic) >= 0.29


def test_one_providers_trouble_is_not_anothers() -> None:
    failing, working = Provider(answer=DOWN), Provider()

    async def main() -> list[Outcome]:
        spec = GatewaySpec.model_validate({"url": "http://nobody", "breaker": {"failures": 1}})
        bad, good = GuardedGateway(failing, spec), GuardedGateway(working, spec)
        await bad.charge(REQUEST)
        assert isinstance(await bad.charge(REQUEST), NotSent)
        return [await good.charge(REQUEST) for _ in range(5)]

    assert asyncio.run(main()) == [UP] * 5


def test_no_more_requests_at_once_than_agreed() -> None:
    provider = Provider(seconds=0.01)

    async def body(gateway: GuardedGateway) -> list[Outcome]:
        return await asyncio.gather(*(gateway.charge(REQUEST) for _ in range(20)))

    assert guarded(provider, body, in_flight_max=4) == [UP] * 20
    assert provider.most_at_once == 4


def test_an_open_breaker_is_noticed_before_a_turn_is_waited_for() -> None:
    """Whoever waits behind hanging requests learns at once that the provider is given up."""
    provider = Provider(answer=DOWN)

    async def body(gateway: GuardedGateway) -> None:
        await gateway.charge(REQUEST)
        gateway._limits._in_flight = asyncio.Semaphore(0)
        async with asyncio.timeout(5):
            assert isinstance(await gateway.charge(REQUEST), NotSent)

    guarded(provider, body, breaker={"failures": 1})


def test_what_it_is_it_has_from_its_provider() -> None:
    provider = Provider()

    async def body(gateway: GuardedGateway) -> None:
        assert (gateway.name, gateway.key_ttl_seconds, gateway.capabilities) == ("scripted", 86_400.0, provider.capabilities)
        assert gateway._breaker == Breaker(state=State.CLOSED)
        await gateway.close()

    guarded(provider, body)
    assert provider.closed
