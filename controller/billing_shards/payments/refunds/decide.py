"""What the provider's answer does to a refund. Pure.

What is booked follows from what the provider said, never from what was asked: success is booked once, and a refund that fails
after it is booked back. A failure that succeeds after all is for a person: its amount may have been refunded anew meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from billing_shards.payments.model import Failed, NotSent, Pending, RefundOutcome, Succeeded, Unknown
from billing_shards.payments.refunds.model import RefundStatus

EDGES: dict[RefundStatus, frozenset[RefundStatus]] = {
    RefundStatus.REQUESTED: frozenset(RefundStatus),
    RefundStatus.PENDING: frozenset(
        {RefundStatus.PENDING, RefundStatus.SUCCEEDED, RefundStatus.FAILED, RefundStatus.REVIEW},
    ),
    RefundStatus.UNKNOWN: frozenset(RefundStatus) - {RefundStatus.REQUESTED},
    RefundStatus.REVIEW: frozenset({RefundStatus.REVIEW, RefundStatus.SUCCEEDED, RefundStatus.FAILED}),
    RefundStatus.SUCCEEDED: frozenset({RefundStatus.SUCCEEDED, RefundStatus.FAILED}),
    RefundStatus.FAILED: frozenset({RefundStatus.FAILED}),
}
"""From each status to those that one answer may lead to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What becomes of a refund."""

    status: RefundStatus
    check_seconds: float | None
    """When the provider is asked next; None: no more, until it tells us something by itself."""
    checks: int
    received: bool
    """Whether the provider may have the request: from the first such send its key's life is counted."""
    booked: bool = False
    """The money went: book it."""
    booked_back: bool = False
    """It had been booked, and came back."""
    review: str | None = None
    """Why a person must look."""


def decide(status: RefundStatus, checks: int, outcome: RefundOutcome, delays: Sequence[float], *, received: bool) -> Step:
    """The step after an answer. `delays`: seconds before each look at an outcome that is not known; then comes the review.

    `received`: whether an earlier send may have reached the provider.
    """
    match status:
        case RefundStatus.SUCCEEDED:
            return _after_success(checks, outcome)
        case RefundStatus.FAILED:
            again = "succeeded_after_failing" if isinstance(outcome, Succeeded) else None
            return Step(status=status, check_seconds=None, checks=checks, received=True, review=again)
        case RefundStatus.REQUESTED | RefundStatus.PENDING | RefundStatus.UNKNOWN | RefundStatus.REVIEW:
            return _under_way(status, checks, outcome, delays, received=received)
        case _:
            assert_never(status)


def _after_success(checks: int, outcome: RefundOutcome) -> Step:
    """Only a failure undoes it. A provider that cannot be asked now will be when its webhook is looked at again."""
    if isinstance(outcome, Failed):
        return Step(status=RefundStatus.FAILED, check_seconds=None, checks=checks, received=True, booked_back=True)
    return Step(status=RefundStatus.SUCCEEDED, check_seconds=None, checks=checks, received=True)


def _under_way(status: RefundStatus, checks: int, outcome: RefundOutcome, delays: Sequence[float], *, received: bool) -> Step:
    match outcome:
        case Succeeded():
            return Step(status=RefundStatus.SUCCEEDED, check_seconds=None, checks=checks, received=True, booked=True)
        case Failed():
            return Step(status=RefundStatus.FAILED, check_seconds=None, checks=checks, received=True)
        case NotSent():
            # Not a look at an outcome, so it does not bring the review nearer. In review it is not asked again by itself.
            seconds = None if status is RefundStatus.REVIEW else max(outcome.retry_after_seconds or 0.0, delays[0])
            return Step(status=status, check_seconds=seconds, checks=checks, received=received)
        case Pending():
            return _look_again(status, RefundStatus.PENDING, checks, delays)
        case Unknown():
            after = RefundStatus.PENDING if status is RefundStatus.PENDING else RefundStatus.UNKNOWN
            return _look_again(status, after, checks, delays)
        case _:
            assert_never(outcome)


def _look_again(status: RefundStatus, after: RefundStatus, checks: int, delays: Sequence[float]) -> Step:
    if status is RefundStatus.REVIEW:
        return Step(status=status, check_seconds=None, checks=checks, received=True)
    if checks >= len(delays):
        return Step(status=RefundStatus.REVIEW, check_seconds=None, checks=checks, received=True, review="outcome_unknown")
    return Step(status=after, check_seconds=delays[checks], checks=checks + 1, received=True)
