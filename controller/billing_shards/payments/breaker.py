"""A circuit breaker: while a provider fails, nothing is sent to it but, now and then, a few requests that try whether it works
again. Pure; `guarded.GuardedGateway` is its shell, one for each provider of a process.

The idea is Michael Nygard's ("Release It!", Stability Patterns). An answer counts only in the period in which its request was let
through: one that was sent before the breaker opened says nothing about the provider of now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from billing_shards.payments.model import Cause, NotSent, Unknown
from billing_shards.settings import BreakerSpec

PROBE_SECONDS = 1.0
"""What is kept back while probes are under way may ask again after this."""


class State(Enum):
    """`CLOSED` lets everything through, `OPEN` nothing, `HALF_OPEN` a few."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Sight(Enum):
    """What an answer says about the provider's health."""

    GOOD = "good"
    BAD = "bad"
    NEITHER = "neither"
    """It turned us away for a reason of its own, or the request was abandoned: no sign in either direction."""


EDGES: dict[State, frozenset[State]] = {
    State.CLOSED: frozenset({State.CLOSED, State.OPEN}),
    State.OPEN: frozenset({State.OPEN, State.HALF_OPEN}),
    State.HALF_OPEN: frozenset({State.HALF_OPEN, State.CLOSED, State.OPEN}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """A breaker at one moment."""

    state: State = State.CLOSED
    period: int = 0
    """Grows with each change of state."""
    failures: int = 0
    """`CLOSED`: bad answers since the last good one."""
    until: float = 0.0
    """`OPEN`: when it may be tried again, in seconds of the caller's clock."""
    probes: int = 0
    """`HALF_OPEN`: let through and not answered by a `NEITHER`."""
    good: int = 0
    """`HALF_OPEN`: probes that were answered well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Let:
    """The request may go; its answer is to be brought back with this period."""

    period: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The request may not go; it may ask again after `seconds`."""

    seconds: float


def ask(breaker: Breaker, policy: BreakerSpec, now: float) -> tuple[Breaker, Let | Keep]:
    """May a request go? `now` in seconds of a clock that never goes back."""
    match breaker.state:
        case State.CLOSED:
            return breaker, Let(period=breaker.period)
        case State.OPEN:
            if now < breaker.until:
                return breaker, Keep(seconds=breaker.until - now)
            probing = Breaker(state=State.HALF_OPEN, period=breaker.period + 1, probes=1)
            return probing, Let(period=probing.period)
        case State.HALF_OPEN:
            if breaker.probes >= policy.probes:
                return breaker, Keep(seconds=PROBE_SECONDS)
            return replace(breaker, probes=breaker.probes + 1), Let(period=breaker.period)
        case _:
            assert_never(breaker.state)


def answered(breaker: Breaker, period: int, sight: Sight, policy: BreakerSpec, now: float) -> Breaker:
    """The breaker after an answer to a request that was let through in `period`."""
    if period != breaker.period:
        return breaker
    match breaker.state:
        case State.CLOSED:
            return _answered_closed(breaker, sight, policy, now)
        case State.OPEN:
            return breaker
        case State.HALF_OPEN:
            return _answered_half_open(breaker, sight, policy, now)
        case _:
            assert_never(breaker.state)


def _answered_closed(breaker: Breaker, sight: Sight, policy: BreakerSpec, now: float) -> Breaker:
    if sight is Sight.NEITHER:
        return breaker
    if sight is Sight.GOOD:
        return replace(breaker, failures=0) if breaker.failures else breaker
    failures = breaker.failures + 1
    return _opened(breaker, policy, now) if failures >= policy.failures else replace(breaker, failures=failures)


def _answered_half_open(breaker: Breaker, sight: Sight, policy: BreakerSpec, now: float) -> Breaker:
    if sight is Sight.BAD:
        return _opened(breaker, policy, now)
    if sight is Sight.NEITHER:
        return replace(breaker, probes=breaker.probes - 1)
    good = breaker.good + 1
    return Breaker(period=breaker.period + 1) if good >= policy.probes else replace(breaker, good=good)


def _opened(breaker: Breaker, policy: BreakerSpec, now: float) -> Breaker:
    return Breaker(state=State.OPEN, period=breaker.period + 1, until=now + policy.open_seconds)


def sight_of(outcome: object) -> Sight:
    """What an outcome of any call says about the provider's health. A decline is a sign of good health."""
    if isinstance(outcome, NotSent):
        return Sight.BAD if outcome.cause is Cause.NOT_REACHED else Sight.NEITHER
    if isinstance(outcome, Unknown) and outcome.cause in {Cause.NO_ANSWER, Cause.FAILED}:
        return Sight.BAD
    return Sight.GOOD
