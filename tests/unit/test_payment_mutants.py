"""Bounds of the retry rules that the tables of test_payment_decide leave open: mutants showed them."""

from __future__ import annotations

import pytest

from billing_shards.jobs.model import RENEWAL, Job
from billing_shards.payments.decide import CheckAfter, Decision, GiveUp, RetryAfter, decide
from billing_shards.payments.model import DeclineClass, Declined, NotSent, Outcome
from billing_shards.settings import RetrySpec

POLICY = RetrySpec(jitter=0.5)
DECLINE = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds")


def job(*, grace_seconds: int) -> Job:
    return Job(
        shard=1,
        id=2,
        lane=RENEWAL,
        subscription="sub",
        invoice=3,
        amount=990,
        currency="USD",
        payment_method="pm",
        provider="http",
        key=bytes(32),
        attempt_no=1,
        checks=0,
        resumed=False,
        canceling=False,
        attempt_age=0,
        claimed_at=0,
        grace_seconds=grace_seconds,
        token=9,
    )


@pytest.mark.parametrize(
    ("grace_seconds", "outcome", "draw", "wanted"),
    [
        # The last moment of the grace is still within it.
        (300, DECLINE, 0.0, RetryAfter(seconds=300)),
        (299, DECLINE, 0.0, GiveUp(reason="grace_ended")),
        # Jitter lengthens, also what was never sent.
        (9999, NotSent(reason="x"), 0.5, CheckAfter(seconds=12.5, checks=0)),
        (9999, NotSent(reason="x", retry_after_seconds=100), 0.5, CheckAfter(seconds=125, checks=0)),
    ],
    ids=repr,
)
def test_bounds(grace_seconds: int, outcome: Outcome, draw: float, wanted: Decision) -> None:
    assert decide(job(grace_seconds=grace_seconds), outcome, POLICY, draw) == wanted
