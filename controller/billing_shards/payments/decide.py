"""What an outcome does to a job: the retry schedule, the looks at unknown outcomes, and every end. Pure.

A decision that keeps the attempt open (`CheckAfter`) never leads to a new key; only a known outcome closes an attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from billing_shards.jobs.model import Job
from billing_shards.payments.model import (
    ActionRequired,
    DeclineClass,
    Declined,
    NotSent,
    Outcome,
    Pending,
    Succeeded,
    Unknown,
    Unresolvable,
)
from billing_shards.settings import RetrySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """The invoice is paid."""

    provider_ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAfter:
    """The attempt failed; the next one begins after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginAnew:
    """The attempt that waited for the customer will take no money: the one that was wanted in its place begins at once.

    It was wanted by the customer, who gave another payment method, or by a person; so no limit of retries is asked.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAfter:
    """The attempt stays open; it is looked at again after `seconds`, for the `checks`-th time since it was opened."""

    seconds: float
    checks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCustomer:
    """Nothing is tried until the customer has acted."""

    reason: str
    look_seconds: float | None = None
    """Until the first look whether the customer has completed the charge; None where there is none to complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Nothing more is tried by itself; what becomes of the subscription is for dunning to judge."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A person must look: whether the money was taken cannot be told by asking."""

    reason: str


Decision: TypeAlias = Paid | RetryAfter | BeginAnew | CheckAfter | AskCustomer | GiveUp | Review


def decide(job: Job, outcome: Outcome, policy: RetrySpec, draw: float) -> Decision:
    """What to do with a claimed job after this outcome. `draw` in [0, 1) is the jitter's."""
    match outcome:
        case Succeeded():
            return Paid(provider_ref=outcome.provider_ref)
        case Declined() if job.canceling:
            return BeginAnew()
        case Declined():
            return _after_decline(job, outcome, policy, draw)
        case ActionRequired() if job.canceling:
            return _check(job, policy, None)
        case ActionRequired():
            return AskCustomer(reason="action_required", look_seconds=look_seconds(0, policy))
        case Pending():
            return _check(job, policy, outcome.next_check_seconds)
        case Unknown():
            return _check(job, policy, outcome.retry_after_seconds)
        case NotSent():
            # Not a look at an outcome, so it does not bring the review nearer: the provider being down is no reason for one.
            seconds = max(outcome.retry_after_seconds or 0.0, float(policy.check_delays_seconds[0]))
            return CheckAfter(seconds=seconds * (1 + policy.jitter * draw), checks=job.checks)
        case Unresolvable():
            return Review(reason=outcome.reason)
        case _:
            assert_never(outcome)


def look_seconds(looks: int, policy: RetrySpec) -> float | None:
    """Until the next look at a charge that waits for the customer, after so many; None: only a webhook tells of it any more."""
    delays = policy.check_delays_seconds
    return float(delays[looks]) if looks < len(delays) else None


def _after_decline(job: Job, outcome: Declined, policy: RetrySpec, draw: float) -> Decision:
    match outcome.decline_class:
        case DeclineClass.HARD:
            return GiveUp(reason="hard_decline")
        case DeclineClass.NEW_METHOD:
            return AskCustomer(reason="new_payment_method")
        case DeclineClass.CUSTOMER:
            return AskCustomer(reason="action_required")
        case DeclineClass.RETRYABLE:
            return _retry(job, policy, draw)
        case _:
            assert_never(outcome.decline_class)


def _retry(job: Job, policy: RetrySpec, draw: float) -> RetryAfter | GiveUp:
    if job.attempt_no >= policy.attempts_max:
        return GiveUp(reason="attempts_exhausted")
    delays = policy.delays_seconds
    seconds = delays[min(job.attempt_no, len(delays)) - 1] * (1 + policy.jitter * draw)
    if seconds > job.grace_seconds:
        return GiveUp(reason="grace_ended")
    return RetryAfter(seconds=seconds)


def _check(job: Job, policy: RetrySpec, asked_seconds: float | None) -> CheckAfter | Review:
    if job.checks >= len(policy.check_delays_seconds):
        return Review(reason="outcome_unknown")
    scheduled = float(policy.check_delays_seconds[job.checks])
    # The provider's own word shortens only the first look: it must not keep us from ever reaching the review.
    seconds = min(scheduled, asked_seconds) if asked_seconds is not None and job.checks == 0 else scheduled
    return CheckAfter(seconds=seconds, checks=job.checks + 1)
