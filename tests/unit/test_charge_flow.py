"""One charge: a new attempt is sent, an open one is resolved, and nothing is ever sent under a key that may have expired."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from billing_shards.jobs.model import RENEWAL, Job
from billing_shards.payments.charge import charge
from billing_shards.payments.model import (
    ActionRequired,
    ChargeRequest,
    DeclineClass,
    Declined,
    Found,
    NotFound,
    NotSent,
    Outcome,
    Pending,
    Succeeded,
    Unknown,
    Unresolvable,
)

DAY = 86_400.0
NOT_FOUND = NotFound()
FOUND: tuple[Succeeded | Declined | ActionRequired | Pending | NotSent | Unknown, ...] = (
    Succeeded(provider_ref="ch_1"),
    Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds"),
    ActionRequired(provider_ref="ch_1"),
    Pending(provider_ref="ch_1"),
    NotSent(reason="not reached"),
    Unknown(reason="no answer"),
)
OUTCOMES: tuple[Outcome, ...] = (*FOUND, Unresolvable(reason="refused"))


@dataclass
class Provider:
    """Answers as it is told and notes what it is asked."""

    found: Found = NOT_FOUND
    answer: Outcome = OUTCOMES[0]
    key_ttl_seconds: float = DAY
    name: str = "scripted"
    asked: list[str | ChargeRequest] = field(default_factory=list)

    async def charge(self, request: ChargeRequest) -> Outcome:
        self.asked.append(request)
        return self.answer

    async def find(self, reference: str) -> Found:
        self.asked.append(reference)
        return self.found

    async def close(self) -> None:
        pass


def job(*, resumed: bool, age: float = 0, attempt_no: int = 2) -> Job:
    return Job(
        shard=7,
        id=40,
        lane=RENEWAL,
        provider="http",
        subscription="sub",
        invoice=39,
        amount=990,
        currency="USD",
        payment_method="pm",
        key=bytes(range(32)),
        attempt_no=attempt_no,
        checks=0,
        resumed=resumed,
        attempt_age=age,
        grace_seconds=86_400,
        token=9,
    )


def sent(attempt_no: int = 2) -> ChargeRequest:
    key = job(resumed=False, attempt_no=attempt_no).attempt_key.hex()
    return ChargeRequest(key=key, amount=990, currency="USD", payment_method="pm", reference=f"7/39/{attempt_no}")


@pytest.mark.parametrize("answer", OUTCOMES)
def test_a_new_attempt_is_sent_and_never_looked_for(answer: Outcome) -> None:
    provider = Provider(answer=answer)
    assert asyncio.run(charge(provider, job(resumed=False))) == answer
    assert provider.asked == [sent()]


@pytest.mark.parametrize("found", FOUND)
@pytest.mark.parametrize("age", [0, DAY - 1, 30 * DAY])
def test_an_open_attempt_that_is_found_or_cannot_be_looked_for_is_not_sent(found: Found, age: float) -> None:
    provider = Provider(found=found)
    assert asyncio.run(charge(provider, job(resumed=True, age=age))) == found
    assert provider.asked == ["7/39/2"]


@pytest.mark.parametrize("age", [0, 3600, DAY * 0.89])
@pytest.mark.parametrize("answer", OUTCOMES)
def test_an_open_attempt_that_is_not_there_is_sent_again_under_its_own_key(age: float, answer: Outcome) -> None:
    provider = Provider(answer=answer)
    assert asyncio.run(charge(provider, job(resumed=True, age=age))) == answer
    assert provider.asked == ["7/39/2", sent()]


@pytest.mark.parametrize(("age", "ttl"), [(DAY * 0.9, DAY), (DAY, DAY), (30 * DAY, DAY), (3600, 3600), (55, 60)])
def test_an_open_attempt_whose_key_may_have_expired_is_for_a_person(age: float, ttl: float) -> None:
    """The same key would be a new request to the provider, which may still be working on the first one."""
    provider = Provider(key_ttl_seconds=ttl)
    assert isinstance(asyncio.run(charge(provider, job(resumed=True, age=age))), Unresolvable)
    assert provider.asked == ["7/39/2"]


def test_each_attempt_has_a_key_and_a_reference_of_its_own() -> None:
    requests = [sent(n) for n in range(1, 9)]
    assert len({request.key for request in requests}) == 8
    assert len({request.reference for request in requests}) == 8
    assert all(len(request.key) == 64 for request in requests)
