"""The product's port to the model provider, and the network between them, which loses, delays and repeats what is sent."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from billing_shards.payments.declines import classify
from billing_shards.payments.gateway import ChargesOnly
from billing_shards.payments.model import (
    ActionRequired,
    Capabilities,
    Cause,
    ChargeRequest,
    Declined,
    Failed,
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
    Unresolvable,
)
from tests.simulation.provider import ANSWER_SECONDS, DELAY_SECONDS_MAX, Answer, Cancel, Keyed, Provider, State
from tests.simulation.refunding import RefundState

T = TypeVar("T")


@types.coroutine
def until(at: float) -> Generator[float, None, None]:
    """Suspend a host's coroutine until the world's time is `at`."""
    yield at


def at_once(asking: Coroutine[Any, None, T]) -> T:
    """The answer, where nothing else shall happen while it is on its way."""
    try:
        while True:
            asking.send(None)
    except StopIteration as ended:
        answer: T = ended.value
        return answer


@dataclass(slots=True)
class Looks:
    """What hosts were told about attempts: what a review may be founded on."""

    open: Counter[str] = field(default_factory=Counter)
    """Answers of charges and look-ups that left the outcome open, by reference: pending, not there, or none at all."""


class Adapter(ChargesOnly):
    """A `PaymentGateway` over a provider and the network to it. Waiting lets other hosts act, and time pass."""

    def __init__(self, provider: Provider, world_clock: Callable[[], float], looks: Looks) -> None:
        self.name = provider.name
        self.key_ttl_seconds = provider.key_ttl
        self.capabilities = Capabilities(refunds=True, signature_header=None, find_lag_seconds=provider.find_lag)
        self._provider = provider
        self._now = world_clock
        self._looks = looks

    async def charge(self, request: ChargeRequest) -> Outcome:
        """See `PaymentGateway`."""
        answer = await self._send(request)
        outcome = _outcome(answer) if isinstance(answer, Answer) else answer
        if isinstance(outcome, Unknown | Pending | Unresolvable):
            self._looks.open[request.reference] += 1
        return outcome

    async def refund(self, request: RefundRequest) -> RefundOutcome:
        """See `PaymentGateway`."""
        answer = await self._send(request)
        outcome = _refund_outcome(answer) if isinstance(answer, Answer) else answer
        if isinstance(outcome, Unknown | Pending):
            self._looks.open[request.reference] += 1
        return outcome

    async def _send(self, request: Keyed) -> Answer | NotSent | Unknown:
        lost = await self._lost(request)
        if lost is not None:
            return lost
        provider, network, draw = self._provider, self._provider.network, self._provider.rng.random
        if draw() < network.twice:
            provider.later(request, provider.rng.uniform(0, DELAY_SECONDS_MAX))
        answer = provider.send(request, provider.clock())
        if draw() < network.answer_lost or answer.at > provider.clock() + ANSWER_SECONDS:
            return await self._no_answer()
        await until(self._now() + max(0.0, answer.at - provider.clock()))
        return answer

    async def find(self, reference: str) -> Found:
        """See `PaymentGateway`."""
        if self._provider.rng.random() < self._provider.network.find_lost:
            self._looks.open[reference] += 1
            return await self._no_answer()
        found = self._provider.find(reference)
        await until(self._now())
        if found is None:
            self._looks.open[reference] += 1
            return NotFound()
        outcome = _shown(found.id, found.state, found.code, found.advice)
        if isinstance(outcome, Pending):
            self._looks.open[reference] += 1
        return outcome

    async def find_refund(self, reference: str, provider_ref: str) -> RefundFound:  # noqa: ARG002
        """See `PaymentGateway`."""
        if self._provider.rng.random() < self._provider.network.find_lost:
            self._looks.open[reference] += 1
            return await self._no_answer()
        found = self._provider.refunds.find(reference, self._provider.clock())
        outcome = NotFound() if found is None else _shown_refund(found.id, found.state)
        await until(self._now())
        if isinstance(outcome, NotFound | Pending):
            self._looks.open[reference] += 1
        return outcome

    async def cancel(self, reference: str, provider_ref: str) -> Found:
        """See `PaymentGateway`."""
        outcome = await self._cancel(Cancel(provider_ref))
        if not isinstance(outcome, Succeeded | Declined | NotSent):
            self._looks.open[reference] += 1
        return outcome

    async def _cancel(self, request: Cancel) -> Found:
        lost = await self._lost(request)
        if lost is not None:
            return lost
        provider = self._provider
        charge = provider.cancel(request)
        if provider.rng.random() < provider.network.answer_lost:
            return await self._no_answer()
        answer = _shown(charge.id, charge.state, charge.code, charge.advice)
        await until(self._now() + provider.rng.uniform(0, ANSWER_SECONDS))
        return answer

    async def close(self) -> None:
        """See `PaymentGateway`."""

    async def _lost(self, request: Keyed | Cancel) -> NotSent | Unknown | None:
        """What the caller hears of a request that does not arrive, or too late; None where it arrives now."""
        provider, network, draw = self._provider, self._provider.network, self._provider.rng.random
        if draw() < network.not_reached:
            return NotSent(reason="no connection")
        if draw() < network.request_lost:
            return await self._no_answer()
        if draw() < network.request_late:
            provider.later(request, provider.rng.uniform(1, DELAY_SECONDS_MAX))
            return await self._no_answer()
        return None

    async def _no_answer(self) -> Unknown:
        await until(self._now() + ANSWER_SECONDS)
        return Unknown(reason="no answer")


def _outcome(answer: Answer) -> Outcome:
    match answer.status:
        case 200:
            assert answer.charge is not None
            assert answer.shown is not None
            return _shown(answer.charge, *answer.shown)
        case 409 | 429:
            return _not_now(answer)
        case 500:
            return Unknown(reason="the provider failed", cause=Cause.FAILED)
        case _:
            return Unresolvable(reason=answer.code or "refused", cause=Cause.KEY_MISMATCH)


def _refund_outcome(answer: Answer) -> RefundOutcome:
    match answer.status:
        case 200:
            assert answer.refund is not None
            return _shown_refund(*answer.refund)
        case 409 | 429:
            return _not_now(answer)
        case _:
            return Failed(code=answer.code or "refused")


def _not_now(answer: Answer) -> Unknown | NotSent:
    if answer.status == 409:
        return Unknown(reason="in flight", retry_after_seconds=answer.retry_after, cause=Cause.IN_FLIGHT)
    return NotSent(reason="rate limited", retry_after_seconds=answer.retry_after, cause=Cause.RATE_LIMITED)


def _shown_refund(id_: str, state: RefundState) -> Succeeded | Pending | Failed:
    match state:
        case RefundState.SUCCEEDED:
            return Succeeded(provider_ref=id_)
        case RefundState.PENDING:
            return Pending(provider_ref=id_)
        case RefundState.FAILED:
            return Failed(code="lost_or_stolen_card", provider_ref=id_)


def _shown(id_: str, state: State, code: str | None, advice: str | None) -> Succeeded | Declined | ActionRequired | Pending:
    match state:
        case State.SUCCEEDED:
            return Succeeded(provider_ref=id_)
        case State.PENDING:
            return Pending(provider_ref=id_, next_check_seconds=60)
        case State.REQUIRES_ACTION:
            return ActionRequired(provider_ref=id_)
        case State.FAILED | State.CANCELED | State.REVERSED:  # what was taken back before we knew of it was never ours
            assert code is not None
            return Declined(decline_class=classify(code, advice), code=code, provider_ref=id_)
