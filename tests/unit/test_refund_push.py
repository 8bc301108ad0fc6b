"""One refund at the provider: sent once under its key, looked up before it is sent again, and not sent when it is too late."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from billing_shards.jobs.model import clock
from billing_shards.payments.gateway import ChargesOnly
from billing_shards.payments.model import (
    Cause,
    ChargeRequest,
    Found,
    NotFound,
    NotSent,
    Outcome,
    Pending,
    RefundFound,
    RefundOutcome,
    RefundRequest,
    Succeeded,
    Unknown,
)
from billing_shards.payments.refunds.model import Refund, RefundStatus, Source, Taken
from billing_shards.payments.refunds.push import push

DAY = 86_400.0


@dataclass
class Provider(ChargesOnly):
    """Knows no refund, takes each that is sent, and notes what it is asked."""

    name: str = "scripted"
    key_ttl_seconds: float = DAY
    found: RefundFound = field(default_factory=NotFound)
    asked: list[str] = field(default_factory=list)

    async def charge(self, request: ChargeRequest) -> Outcome:
        raise AssertionError(f"{request.reference} was charged")

    async def find(self, reference: str) -> Found:
        raise AssertionError(f"{reference} was looked for")

    async def close(self) -> None:
        pass

    async def refund(self, request: RefundRequest) -> RefundOutcome:
        self.asked.append(f"send {request.key}")
        return Succeeded(provider_ref="re_1")

    async def find_refund(self, reference: str, provider_ref: str) -> RefundFound:
        self.asked.append(f"find {reference} {provider_ref}")
        return self.found


def taken(*, sent_age: float | None, stood_still: float = 0, status: RefundStatus = RefundStatus.UNKNOWN) -> Taken:
    refund = Refund(
        shard=7,
        id=5,
        invoice=39,
        request_key="key:one",
        subscription="sub",
        service="video",
        attempt_no=1,
        provider="scripted",
        charge_ref="ch_1",
        amount=990,
        currency="USD",
        key=bytes(32),
        source=Source.OURS,
        status=status,
        provider_ref=None,
        code=None,
        checks=0,
    )
    return Taken(refund=refund, token=1, taken_at=clock() - stood_still, sent_age=sent_age)


SEND, FIND = f"send {bytes(32).hex()}", "find 7/39/r5 ch_1"


def test_a_new_refund_is_sent_and_not_looked_for() -> None:
    provider = Provider()
    assert asyncio.run(push(provider, taken(sent_age=None, status=RefundStatus.REQUESTED))) == Succeeded(provider_ref="re_1")
    assert provider.asked == [SEND]


def test_what_may_have_been_sent_is_looked_for_first_and_sent_again_within_its_keys_life() -> None:
    provider = Provider()
    assert asyncio.run(push(provider, taken(sent_age=60))) == Succeeded(provider_ref="re_1")
    assert provider.asked == [FIND, SEND]
    found = Provider(found=Pending(provider_ref="re_1"))
    assert asyncio.run(push(found, taken(sent_age=60))) == Pending(provider_ref="re_1")
    assert found.asked == [FIND]


@pytest.mark.parametrize(("sent_age", "stood_still"), [(DAY * 0.9, 0), (60, DAY), (DAY * 30, 0)])
def test_after_the_keys_life_it_is_only_looked_for(sent_age: float, stood_still: float) -> None:
    provider = Provider()
    outcome = asyncio.run(push(provider, taken(sent_age=sent_age, stood_still=stood_still)))
    assert isinstance(outcome, Unknown)
    assert outcome.cause is Cause.KEY_EXPIRED
    assert provider.asked == [FIND]


def test_a_process_that_stood_still_sends_nothing() -> None:
    """Others have sent the refund meanwhile under the same key, which the provider has forgotten since."""
    provider = Provider()
    outcome = asyncio.run(push(provider, taken(sent_age=None, stood_still=DAY, status=RefundStatus.REQUESTED)))
    assert outcome == NotSent(reason="held too long to be sent", cause=Cause.HELD_BACK)
    assert provider.asked == []
