"""One charge: a new attempt is sent, an open one is resolved, and nothing is ever sent under a key that may have expired."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from billing_shards.jobs.model import RENEWAL, RETRY, Job, clock
from billing_shards.payments.charge import charge
from billing_shards.payments.decide import AskCustomer, BeginAnew, CheckAfter, GiveUp, Paid, RetryAfter, Review, decide
from billing_shards.payments.declines import classify
from billing_shards.payments.gateway import ChargesOnly
from billing_shards.payments.model import (
    ActionRequired,
    Capabilities,
    Cause,
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
from billing_shards.settings import RetrySpec

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
class Provider(ChargesOnly):
    """Answers as it is told and notes what it is asked."""

    found: Found = NOT_FOUND
    canceled: Found = NOT_FOUND
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

    async def cancel(self, reference: str, provider_ref: str) -> Found:
        self.asked.append(f"cancel {provider_ref} of {reference}")
        return self.canceled

    async def close(self) -> None:
        pass


def job(*, resumed: bool, age: float = 0, attempt_no: int = 2, checks: int = 0, canceling: bool = False) -> Job:
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
        checks=checks,
        resumed=resumed,
        canceling=canceling,
        attempt_age=age,
        claimed_at=clock(),
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


EXPIRED = Unknown(reason="not found at the provider, and its key has expired", cause=Cause.KEY_EXPIRED)


@pytest.mark.parametrize(("age", "ttl"), [(DAY * 0.9, DAY), (DAY, DAY), (30 * DAY, DAY), (3600, 3600), (55, 60)])
def test_an_open_attempt_whose_key_may_have_expired_is_only_looked_for(age: float, ttl: float) -> None:
    """The same key would be a new request to the provider, which may still be working on the first one."""
    provider = Provider(key_ttl_seconds=ttl)
    assert asyncio.run(charge(provider, job(resumed=True, age=age))) == EXPIRED
    assert provider.asked == ["7/39/2"]


@pytest.mark.parametrize("stood_still", [DAY * 0.9, 30 * DAY])
def test_a_process_that_stood_still_for_longer_than_the_key_lives_sends_nothing(stood_still: float) -> None:
    """Others have reaped the job meanwhile and were paid under the same key, which the provider has forgotten since."""
    provider = Provider()
    new = job(resumed=False)
    outcome = asyncio.run(charge(provider, new._replace(claimed_at=new.claimed_at - stood_still)))
    assert outcome == NotSent(reason="held too long to be sent", cause=Cause.HELD_BACK)
    assert provider.asked == []
    resumed = job(resumed=True)
    assert asyncio.run(charge(provider, resumed._replace(claimed_at=resumed.claimed_at - stood_still))) == EXPIRED
    assert provider.asked == ["7/39/2"]


def test_after_the_keys_life_come_the_looks_that_are_left_and_then_a_person() -> None:
    policy, provider, ends = RetrySpec(), Provider(), []
    for checks in range(len(policy.check_delays_seconds) + 1):
        outcome = asyncio.run(charge(provider, job(resumed=True, age=2 * DAY, checks=checks)))
        ends.append(decide(job(resumed=True, checks=checks), outcome, policy, 0.0))
    assert [type(end) for end in ends] == [CheckAfter] * len(policy.check_delays_seconds) + [Review]
    assert set(provider.asked) == {"7/39/2"}


def test_looks_outlast_a_keys_life_and_begin_long_before_its_end() -> None:
    """So that the same key is sent again while it may be, and what settles late is found still."""
    delays = RetrySpec().check_delays_seconds
    assert sum(delays[:5]) < DAY * 0.9 / 10
    assert sum(delays) > 3 * DAY


@pytest.mark.parametrize(("age", "asked"), [(0, [0]), (59, [0]), (60, ["7/39/2", 0]), (DAY, ["7/39/2"])])
def test_a_look_up_that_lags_behind_is_not_asked_about_a_young_attempt(age: float, asked: list[object]) -> None:
    provider = Provider()
    provider.capabilities = Capabilities(refunds=False, signature_header=None, find_lag_seconds=60)
    asyncio.run(charge(provider, job(resumed=True, age=age)))
    assert provider.asked == [sent() if item == 0 else item for item in asked]


def test_a_provider_that_the_spec_does_not_list_any_more_is_not_asked() -> None:
    outcome = asyncio.run(charge(None, job(resumed=True)))
    assert outcome == NotSent(reason="spec lists no gateway http", retry_after_seconds=600, cause=Cause.CONFIG)


def test_the_service_is_told_to_the_provider() -> None:
    provider = Provider()
    asyncio.run(charge(provider, job(resumed=False), service="video"))
    assert [request.service for request in provider.asked if isinstance(request, ChargeRequest)] == ["video"]


# An attempt that waited for the customer, where another one is wanted

NOT_THERE = Unknown(reason="a charge that waited for the customer is not found", cause=Cause.FAILED)
CANCELED = Declined(decline_class=DeclineClass.RETRYABLE, code="canceled", provider_ref="ch_1")


@pytest.mark.parametrize("age", [0, 59, DAY, 30 * DAY])
@pytest.mark.parametrize("canceled", [*FOUND, NOT_FOUND], ids=repr)
def test_a_charge_that_still_waits_is_canceled_and_never_sent_again(canceled: Found, age: float) -> None:
    provider = Provider(found=ActionRequired(provider_ref="ch_1"), canceled=canceled)
    outcome = asyncio.run(charge(provider, job(resumed=True, canceling=True, age=age)))
    assert outcome == (NOT_THERE if canceled == NOT_FOUND else canceled)
    assert provider.asked == ["7/39/2", "cancel ch_1 of 7/39/2"]


@pytest.mark.parametrize("found", [*(each for each in FOUND if not isinstance(each, ActionRequired)), NOT_FOUND], ids=repr)
def test_a_charge_that_does_not_wait_any_more_is_taken_as_it_is(found: Found) -> None:
    provider = Provider(found=found)
    outcome = asyncio.run(charge(provider, job(resumed=True, canceling=True)))
    assert outcome == (NOT_THERE if found == NOT_FOUND else found)
    assert provider.asked == ["7/39/2"]


def test_a_charge_whose_name_is_not_known_is_not_canceled_and_blocks_the_next() -> None:
    provider = Provider(found=ActionRequired())
    canceling = job(resumed=True, canceling=True)
    assert isinstance(decide(canceling, asyncio.run(charge(provider, canceling)), RetrySpec(), 0.0), CheckAfter)
    assert provider.asked == ["7/39/2"]


def test_the_customer_gives_another_card_and_completes_the_first_charge_all_the_same() -> None:
    """No second key until the provider says that the first charge will take nothing; where it took the money, that pays."""
    provider, canceling = Provider(found=ActionRequired(provider_ref="ch_1")), job(resumed=True, canceling=True)
    for answer, end in ((Succeeded(provider_ref="ch_1"), Paid(provider_ref="ch_1")), (CANCELED, BeginAnew())):
        provider.canceled = answer
        assert decide(canceling, asyncio.run(charge(provider, canceling)), RetrySpec(), 0.0) == end
    assert not [asked for asked in provider.asked if isinstance(asked, ChargeRequest)]


# What went wrong elsewhere


@pytest.mark.parametrize("found", [*FOUND, NOT_FOUND], ids=repr)
def test_no_second_payment_while_the_first_is_unknown(found: Found) -> None:
    """Kill Bill 1015: a new payment succeeded while the first was unknown, and then the first had succeeded as well."""
    provider = Provider(found=found, answer=Unknown(reason="no answer"))
    asyncio.run(charge(provider, job(resumed=True, attempt_no=2)))
    keys = {request.key for request in provider.asked if isinstance(request, ChargeRequest)}
    assert keys <= {sent(attempt_no=2).key}


def test_what_is_found_to_have_failed_is_tried_again() -> None:
    """Kill Bill 1832: a pending payment that failed later was never retried."""
    declined = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds")
    outcome = asyncio.run(charge(Provider(found=declined), job(resumed=True, checks=3)))
    assert isinstance(decide(job(resumed=True, checks=3), outcome, RetrySpec(), 0.0), RetryAfter)


def test_what_is_found_to_have_succeeded_is_paid_however_long_it_was_pending() -> None:
    """Hyperswitch 1475: the provider had succeeded, and the payment was left in processing."""
    for checks in range(15):
        outcome = asyncio.run(
            charge(Provider(found=Succeeded(provider_ref="ch_9")), job(resumed=True, checks=checks, age=9 * DAY))
        )
        assert decide(job(resumed=True, checks=checks), outcome, RetrySpec(), 0.0) == Paid(provider_ref="ch_9")


@pytest.mark.parametrize(
    "outcome",
    [
        Unknown(reason="in flight", cause=Cause.IN_FLIGHT, retry_after_seconds=1),
        NotSent(reason="", cause=Cause.RATE_LIMITED),
        NotSent(reason="", cause=Cause.HELD_BACK, retry_after_seconds=30),
    ],
    ids=repr,
)
def test_waiting_uses_up_no_attempt(outcome: Outcome) -> None:
    """Polar 13349: retries while a lock was held used up the whole dunning."""
    decision = decide(job(resumed=True, attempt_no=6), outcome, RetrySpec(attempts_max=6), 0.0)
    assert isinstance(decision, CheckAfter)


def test_a_time_out_and_then_a_conflict_is_no_failure() -> None:
    """stripe-ruby 431: after a time-out the repeated request met the first one in flight, and was reported as failed."""
    in_flight = Unknown(reason="in flight", cause=Cause.IN_FLIGHT, retry_after_seconds=1)
    provider = Provider(answer=in_flight)
    assert asyncio.run(charge(provider, job(resumed=True))) == in_flight
    provider.found = Succeeded(provider_ref="ch_1")
    assert asyncio.run(charge(provider, job(resumed=True))) == provider.found


def test_a_changed_payment_method_is_no_new_key_and_no_failure_while_the_first_send_is_unknown() -> None:
    """Odoo 107723: another card under the same key was an error. Here each attempt has a key of its own; where the method was
    changed during one, the first send arrived and will be found.
    """
    mismatch = Unresolvable(reason="refused: idempotency_key_mismatch", cause=Cause.KEY_MISMATCH)
    provider = Provider(answer=mismatch)
    assert asyncio.run(charge(provider, job(resumed=True))) == Unknown(reason=mismatch.reason, cause=Cause.KEY_MISMATCH)
    assert asyncio.run(charge(provider, job(resumed=False))) == mismatch


@pytest.mark.parametrize("code", ["resource_missing", "expired_card", "account_closed"])
def test_a_payment_method_that_is_gone_is_not_tried_again(code: str) -> None:
    """User Registration 1420: `resource_missing` was retried 1,596 times in 51 days."""
    declined = Declined(decline_class=classify(code, None), code=code)
    outcome = asyncio.run(charge(Provider(answer=declined), job(resumed=False)))
    assert decide(job(resumed=False), outcome, RetrySpec(), 0.0) == AskCustomer(reason="new_payment_method")


def test_the_number_of_attempts_is_held_against_its_limit() -> None:
    """User Registration 1453: a counter that nobody compared with its maximum."""
    declined = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds")
    policy = RetrySpec(attempts_max=3)
    ends = [decide(job(resumed=False, attempt_no=n), declined, policy, 0.0) for n in (1, 2, 3, 4)]
    assert [type(end) for end in ends] == [RetryAfter, RetryAfter, GiveUp, GiveUp]


def test_a_key_is_made_of_the_attempt_alone() -> None:
    """pympp 155: a token that changed with each request was part of the key, and the customer was charged twice."""
    one = job(resumed=True)
    other = one._replace(payment_method="pm_2", token=10, lane=RETRY, checks=3, attempt_age=99.0)
    assert one.attempt_key == other.attempt_key
    assert one.reference == other.reference


def test_each_attempt_has_a_key_and_a_reference_of_its_own() -> None:
    requests = [sent(n) for n in range(1, 9)]
    assert len({request.key for request in requests}) == 8
    assert len({request.reference for request in requests}) == 8
    assert all(len(request.key) == 64 for request in requests)
