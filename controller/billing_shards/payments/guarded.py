"""A provider behind its limits and its circuit breaker. What it suffers is its own: other providers have guards of their own."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from billing_shards import telemetry
from billing_shards.payments.breaker import Breaker, Keep, Sight, State, answered, ask, sight_of
from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.limits import Limits
from billing_shards.payments.model import (
    Cause,
    ChargeRequest,
    Declined,
    Found,
    NotSent,
    Outcome,
    RefundFound,
    RefundOutcome,
    RefundRequest,
    Unknown,
    Unresolvable,
    WebhookEvent,
)
from billing_shards.settings import GatewaySpec

_log = structlog.get_logger(__name__)

_RATE_LIMITED_SECONDS = 1.0  # where the provider does not say how long
_MISCONFIGURED_SECONDS = 5.0  # between requests while our key is refused

T = TypeVar("T")


class GuardedGateway:
    """A `PaymentGateway` that sends to another one, if it may. What it keeps back is `NotSent`, and its job is given back.

    To be made, used and closed within one event loop. `clock` counts seconds and never goes back.
    """

    def __init__(self, gateway: PaymentGateway, spec: GatewaySpec, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = gateway.name
        self.key_ttl_seconds = gateway.key_ttl_seconds
        self.capabilities = gateway.capabilities
        self._gateway = gateway
        self._policy = spec.breaker
        self._clock = clock
        self._limits = Limits(spec, clock)
        self._breaker = Breaker()
        telemetry.BREAKER_OPEN.labels(self.name).set(0)

    async def charge(self, request: ChargeRequest) -> Outcome:
        """See `PaymentGateway`."""
        return await self._send("charge", lambda: self._gateway.charge(request))

    async def find(self, reference: str) -> Found:
        """See `PaymentGateway`."""
        return await self._send("find", lambda: self._gateway.find(reference))

    async def cancel(self, reference: str, provider_ref: str) -> Found:
        """See `PaymentGateway`."""
        return await self._send("cancel", lambda: self._gateway.cancel(reference, provider_ref))

    async def refund(self, request: RefundRequest) -> RefundOutcome:
        """See `PaymentGateway`."""
        return await self._send("refund", lambda: self._gateway.refund(request))

    async def find_refund(self, reference: str, provider_ref: str) -> RefundFound:
        """See `PaymentGateway`."""
        return await self._send("find_refund", lambda: self._gateway.find_refund(reference, provider_ref))

    def parse_webhook(self, body: bytes) -> WebhookEvent:
        """See `PaymentGateway`."""
        return self._gateway.parse_webhook(body)

    async def referenced(self, event: WebhookEvent) -> WebhookEvent | NotSent | Unknown:
        """See `PaymentGateway`."""
        if event.reference is not None:
            return event
        return await self._send("referenced", lambda: self._gateway.referenced(event))

    async def close(self) -> None:
        """See `PaymentGateway`."""
        await self._gateway.close()

    @property
    def held_back_seconds(self) -> float:
        """For how long it would send nothing, as of now; 0 where it would."""
        _, verdict = ask(self._breaker, self._policy, self._clock())
        return max(verdict.seconds if isinstance(verdict, Keep) else 0.0, self._limits.held_seconds)

    async def _send(self, operation: str, send: Callable[[], Awaitable[T]]) -> T | NotSent:
        if self._breaker.state is State.OPEN and self.held_back_seconds > 0:  # before it waits for a turn
            return _kept_back(self.name, "it is failing", self.held_back_seconds)
        async with self._limits.turn() as held:
            if held > 0:
                return _kept_back(self.name, "it asked us to wait", held)
            breaker, verdict = ask(self._breaker, self._policy, self._clock())
            self._become(breaker)
            if isinstance(verdict, Keep):
                return _kept_back(self.name, "it is failing", verdict.seconds)
            sight = Sight.NEITHER
            try:
                with telemetry.GATEWAY_SECONDS.labels(operation).time():
                    outcome = await send()
                sight = sight_of(outcome)
                telemetry.GATEWAY_ANSWERS.labels(self.name, operation, _label(outcome)).inc()
                self._heed(outcome)
            finally:
                self._become(answered(self._breaker, verdict.period, sight, self._policy, self._clock()))
            return outcome

    def _heed(self, outcome: object) -> None:
        """Hold the provider for as long as it asked for, or as its refusal of our key makes sense."""
        if not isinstance(outcome, NotSent | Unknown):
            return
        if outcome.cause is Cause.CONFIG:
            _log.error("gateway_key_unusable", provider=self.name, reason=outcome.reason)
            self._limits.hold(_MISCONFIGURED_SECONDS)
        elif outcome.cause is Cause.RATE_LIMITED:
            seconds = outcome.retry_after_seconds
            self._limits.hold(_RATE_LIMITED_SECONDS if seconds is None else seconds)
        elif outcome.cause is Cause.FAILED and outcome.retry_after_seconds is not None:  # a 503 that names its time
            self._limits.hold(outcome.retry_after_seconds)

    def _become(self, breaker: Breaker) -> None:
        before, self._breaker = self._breaker, breaker
        if breaker.state is not before.state:
            telemetry.BREAKER_OPEN.labels(self.name).set(breaker.state is not State.CLOSED)
            log = _log.info if breaker.state is State.CLOSED else _log.warning
            log("breaker_changed", provider=self.name, was=before.state.value, now=breaker.state.value)


def _label(outcome: object) -> str:
    if isinstance(outcome, NotSent | Unknown | Unresolvable):
        return outcome.cause.value
    return outcome.decline_class.value if isinstance(outcome, Declined) else type(outcome).__name__.lower()


def _kept_back(name: str, why: str, seconds: float) -> NotSent:
    telemetry.CHARGES_KEPT_BACK.labels(name).inc()
    return NotSent(reason=f"kept back: {why}", retry_after_seconds=seconds, cause=Cause.HELD_BACK)
