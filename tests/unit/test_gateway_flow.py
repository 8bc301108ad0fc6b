"""Charges from end to end against a provider with every fault at once: adapter, guard, the flow of a charge, the retry rules.

Time is virtual: when a job is to be looked at again, the provider's clock is put ahead to then. At the end the provider's own
list is held against what we believe.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from billing_shards import process
from billing_shards.jobs.model import RENEWAL, Job, clock
from billing_shards.payments.charge import charge
from billing_shards.payments.decide import CheckAfter, Decision, Paid, RetryAfter, Review, decide
from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.guarded import GuardedGateway
from billing_shards.payments.http import HttpGateway
from billing_shards.payments.stripe import StripeGateway
from billing_shards.settings import RetrySpec, ShardSetSpec
from billing_shards.shards.shardset import ManifestSecrets
from hack.fake_gateway import FakeGateway

JOBS = 150
KEY = "sk_test"
POLICY = RetrySpec()
FAULTS = {
    "seed": 11,
    "decline_rate": 0.25,
    "decline_codes": {"insufficient_funds": 5, "stolen_card": 1, "expired_card": 1, "authentication_required": 1},
    "rate_limited_rate": 0.1,
    "retry_after_seconds": 0,
    "in_flight_conflict_rate": 0.1,
    "conflict_seconds": 30,
    "lost_answer_rate": 0.15,
    "error_500_before_rate": 0.05,
    "error_500_after_rate": 0.1,
    "hang_rate": 0.03,
    "hang_seconds": 400,
    "pending_rate": 0.1,
    "pending_decline_rate": 0.5,
    "settle_after_seconds": 100_000,
    "search_lag_seconds": 40,
}


@dataclass(frozen=True, order=True)
class Due:
    at: float
    number: int


@dataclass
class Story:
    """One job: where it stands, and the clock of its open attempt."""

    job: Job
    opened_at: float = 0.0
    end: Decision | None = None


def new_job(number: int) -> Job:
    return Job(
        shard=number % 256, id=number, lane=RENEWAL, subscription=f"sub-{number}", invoice=number, amount=990, currency="USD",
        payment_method="cus_1/pm_card", provider="cards", key=number.to_bytes(32, "big"), attempt_no=1, checks=0, resumed=False,
        canceling=False, attempt_age=0.0, claimed_at=clock(), grace_seconds=14 * 86_400, token=1,
    )  # fmt: skip


@pytest.fixture(params=["http", "stripe"])
def provider(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[tuple[Literal["http", "stripe"], FakeGateway]]:
    with FakeGateway.start(tmp_path, api_key=KEY, **FAULTS) as started:
        yield request.param, started


def gateway_of(kind: str, url: str) -> PaymentGateway:
    """As a claimer makes it."""
    database = {"name": "a", "host": "h", "credentialsSecret": {"name": "s"}, "schemaSecret": {"name": "s"}}
    gateway = {
        "name": "cards", "type": kind, "url": url, "timeoutSeconds": 1, "apiKeySecret": {"name": "cards"},
        "breaker": {"failures": 10_000},
    }  # fmt: skip
    spec = ShardSetSpec.model_validate({"databases": [database], "gateway": gateway})
    secrets = ManifestSecrets({"cards": {"apiKey": KEY}})
    return process.providers(process.ShardSet(name="main", spec=spec, secrets=secrets)).get("cards")


async def until_all_ended(gateway: PaymentGateway, provider: FakeGateway, stories: dict[int, Story]) -> None:
    """What comes next, in virtual time: all jobs that are due within the same five seconds at once."""
    now, waiting = 0.0, [Due(0.0, number) for number in stories]
    while waiting:
        at = waiting[0].at
        batch = [heapq.heappop(waiting).number]
        while waiting and waiting[0].at <= at + 5:
            batch.append(heapq.heappop(waiting).number)
        if at + 5 > now:
            await asyncio.to_thread(provider.advance, at + 5 - now)
            now = at + 5
        waits = await asyncio.gather(*(step(gateway, stories[number], now) for number in batch))
        for number, seconds in zip(batch, waits, strict=True):
            if seconds is not None:
                heapq.heappush(waiting, Due(now + seconds, number))


async def step(gateway: PaymentGateway, story: Story, now: float) -> float | None:
    """One claim of a job, as charge and settle have it; when it comes again."""
    job = story.job._replace(attempt_age=now - story.opened_at if story.job.resumed else 0.0)
    if not job.resumed:
        story.opened_at = now
    decision = decide(job, await charge(gateway, job, service="video"), POLICY, 0.5)
    match decision:
        case CheckAfter():
            story.job = job._replace(resumed=True, checks=decision.checks)
            return decision.seconds
        case RetryAfter():
            story.job = job._replace(resumed=False, checks=0, attempt_no=job.attempt_no + 1)
            return decision.seconds
        case _:
            story.end = decision
            return None


def test_whatever_goes_wrong_nobody_is_charged_twice_and_every_success_is_known(
    provider: tuple[Literal["http", "stripe"], FakeGateway],
) -> None:
    kind, fake = provider
    stories = {number: Story(job=new_job(number)) for number in range(1, JOBS + 1)}

    async def main() -> None:
        gateway = gateway_of(kind, fake.url)
        assert isinstance(gateway, GuardedGateway)
        assert isinstance(gateway._gateway, HttpGateway if kind == "http" else StripeGateway)
        try:
            await until_all_ended(gateway, fake, stories)
        finally:
            await gateway.close()

    asyncio.run(main())
    summary = fake.summary()
    assert summary["double_charges"] == 0
    met = {fault for fault, times in summary["faults"].items() if times}
    assert met == {"rate_limited", "hang", "in_flight_conflict", "error_500_before", "error_500_after", "lost_answer"}
    fake.configure(api_key=None)
    taken = {made["reference"].rpartition("/")[0]: made["id"] for made in fake.charges() if made["status"] == "succeeded"}
    paid = {
        f"{story.job.shard}/{story.job.invoice}": story.end.provider_ref
        for story in stories.values()
        if isinstance(story.end, Paid)
    }
    assert paid == taken
    assert {type(story.end).__name__ for story in stories.values()} == {"Paid", "GiveUp", "AskCustomer", "Review"}
    reviewed = [story for story in stories.values() if isinstance(story.end, Review)]
    assert all(story.job.checks == len(POLICY.check_delays_seconds) for story in reviewed)
