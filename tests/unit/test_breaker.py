"""The circuit breaker over the whole product of its states, observations and policies."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.payments.breaker import (
    EDGES,
    PROBE_SECONDS,
    Breaker,
    Keep,
    Let,
    Sight,
    State,
    answered,
    ask,
    sight_of,
)
from billing_shards.payments.model import (
    ActionRequired,
    Cause,
    DeclineClass,
    Declined,
    Failed,
    NotFound,
    NotSent,
    Pending,
    Succeeded,
    Unknown,
    Unresolvable,
)
from billing_shards.settings import BreakerSpec

NOW = 1000.0
POLICIES = [BreakerSpec(failures=f, open_seconds=30, probes=p) for f in (1, 2, 5) for p in (1, 2, 3)]
POLICY = BreakerSpec(failures=3, open_seconds=30, probes=2)


def breakers(policy: BreakerSpec) -> list[Breaker]:
    """Every state that can be reached, by kind."""
    closed = [Breaker(period=4, failures=n) for n in range(policy.failures)]
    opened = [Breaker(state=State.OPEN, period=5, until=until) for until in (NOW - 1, NOW, NOW + 7)]
    probing = [
        Breaker(state=State.HALF_OPEN, period=6, probes=probes, good=good)
        for probes in range(policy.probes + 1)
        for good in range(probes + 1)
        if good < policy.probes
    ]
    return closed + opened + probing


PRODUCT = [(policy, breaker) for policy in POLICIES for breaker in breakers(policy)]


@pytest.mark.parametrize(("policy", "breaker"), PRODUCT)
def test_a_request_goes_or_is_kept_by_the_state_alone(policy: BreakerSpec, breaker: Breaker) -> None:
    after, verdict = ask(breaker, policy, NOW)
    assert after.state in EDGES[breaker.state]
    if breaker.state is State.CLOSED:
        assert (after, verdict) == (breaker, Let(period=breaker.period))
    elif breaker.state is State.OPEN and breaker.until > NOW:
        assert (after, verdict) == (breaker, Keep(seconds=7))
    elif breaker.state is State.OPEN:
        assert after == Breaker(state=State.HALF_OPEN, period=6, probes=1)
        assert verdict == Let(period=6)
    elif breaker.probes < policy.probes:
        assert (after.probes, after.good, verdict) == (breaker.probes + 1, breaker.good, Let(period=6))
    else:
        assert (after, verdict) == (breaker, Keep(seconds=PROBE_SECONDS))


@pytest.mark.parametrize(("policy", "breaker"), PRODUCT)
def test_every_answer_in_every_state(policy: BreakerSpec, breaker: Breaker) -> None:
    for sight, period in itertools.product(Sight, (breaker.period - 1, breaker.period, breaker.period + 1)):
        after = answered(breaker, period, sight, policy, NOW)
        assert after.state in EDGES[breaker.state]
        assert (after.period > breaker.period) is (after.state is not breaker.state)
        if period != breaker.period or breaker.state is State.OPEN:
            assert after == breaker, "an answer of another time says nothing"
        elif sight is Sight.BAD:
            last = breaker.state is State.HALF_OPEN or breaker.failures + 1 >= policy.failures
            assert (after.state is State.OPEN) is last
            assert after.until == (NOW + 30 if last else 0)
        elif sight is Sight.NEITHER:
            assert after.state is breaker.state
        elif breaker.state is State.CLOSED:
            assert after == Breaker(period=breaker.period)
        else:
            assert (after.state is State.CLOSED) is (breaker.good + 1 >= policy.probes)


def test_the_life_of_a_breaker() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker, verdict = ask(breaker, POLICY, NOW)
        assert isinstance(verdict, Let)
        breaker = answered(breaker, verdict.period, Sight.BAD, POLICY, NOW)
    assert ask(breaker, POLICY, NOW + 29)[1] == Keep(seconds=1)
    breaker, first = ask(breaker, POLICY, NOW + 30)
    breaker, second = ask(breaker, POLICY, NOW + 30)
    breaker, third = ask(breaker, POLICY, NOW + 30)
    assert (type(first), type(second), type(third)) == (Let, Let, Keep)
    assert isinstance(first, Let)
    breaker = answered(breaker, first.period, Sight.GOOD, POLICY, NOW + 31)
    assert breaker.state is State.HALF_OPEN
    breaker = answered(breaker, first.period, Sight.GOOD, POLICY, NOW + 31)
    assert breaker.state is State.CLOSED


def test_failures_count_only_in_a_row() -> None:
    breaker = Breaker()
    for sight in (Sight.BAD, Sight.BAD, Sight.GOOD, Sight.BAD, Sight.NEITHER, Sight.BAD):
        breaker = answered(breaker, 0, sight, POLICY, NOW)
    assert (breaker.state, breaker.failures) == (State.CLOSED, 2)


def test_answers_to_what_was_sent_before_it_opened_do_not_count_as_probes() -> None:
    breaker = Breaker(failures=2)
    breaker = answered(breaker, 0, Sight.BAD, POLICY, NOW)
    breaker, _ = ask(breaker, POLICY, NOW + 31)
    assert breaker.state is State.HALF_OPEN
    for sight in Sight:
        assert answered(breaker, 0, sight, POLICY, NOW + 31) == breaker


@given(
    st.lists(st.tuples(st.sampled_from(["ask", *Sight]), st.floats(0, 40), st.integers(0, 9)), max_size=60),
    st.sampled_from(POLICIES),
)
def test_whatever_happens_it_lets_something_through_in_the_end(
    steps: list[tuple[str | Sight, float, int]], policy: BreakerSpec
) -> None:
    """Never stuck: once all that was let through is answered, and its time is over, a request goes."""
    breaker, now = Breaker(), 0.0
    under_way: list[int] = []
    for step, seconds, which in steps:
        now += seconds
        if isinstance(step, Sight):
            if under_way:
                breaker = answered(breaker, under_way.pop(which % len(under_way)), step, policy, now)
        else:
            breaker, verdict = ask(breaker, policy, now)
            if isinstance(verdict, Let):
                under_way.append(verdict.period)
    if breaker.state is State.HALF_OPEN:
        assert breaker.probes <= policy.probes
    for period in under_way:
        breaker = answered(breaker, period, Sight.NEITHER, policy, now)
    assert isinstance(ask(breaker, policy, now + policy.open_seconds)[1], Let)


@pytest.mark.parametrize(
    ("outcome", "sight"),
    [
        (Succeeded(provider_ref="ch"), Sight.GOOD),
        (Declined(decline_class=DeclineClass.HARD, code="x"), Sight.GOOD),
        (ActionRequired(), Sight.GOOD),
        (Pending(provider_ref="ch"), Sight.GOOD),
        (NotFound(), Sight.GOOD),
        (Failed(code="x"), Sight.GOOD),
        *((Unresolvable(reason="x", cause=cause), Sight.GOOD) for cause in (Cause.REFUSED, Cause.KEY_MISMATCH)),
        (NotSent(reason="x", cause=Cause.NOT_REACHED), Sight.BAD),
        *((NotSent(reason="x", cause=c), Sight.NEITHER) for c in (Cause.RATE_LIMITED, Cause.CONFIG, Cause.HELD_BACK)),
        *((Unknown(reason="x", cause=cause), Sight.BAD) for cause in (Cause.NO_ANSWER, Cause.FAILED)),
        *((Unknown(reason="x", cause=cause), Sight.GOOD) for cause in (Cause.IN_FLIGHT, Cause.KEY_MISMATCH)),
    ],
    ids=repr,
)
def test_only_the_providers_own_failure_is_a_bad_sign(outcome: object, sight: Sight) -> None:
    assert sight_of(outcome) is sight
