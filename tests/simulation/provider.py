"""A payment provider, modelled on its own from docs/gateway-protocol.md: keys, charges, look-ups. No line of it is the product's.

It is the witness: what it took is the truth that the databases are held against at the end. It has a clock of its own, loses and
repeats messages, answers late, forgets keys at the end of their life, and shows new charges in look-ups only after a while.
"""

from __future__ import annotations

import random
import types
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import Enum

from billing_shards.payments.declines import classify
from billing_shards.payments.gateway import ChargesOnly
from billing_shards.payments.model import (
    ActionRequired,
    Capabilities,
    Cause,
    ChargeRequest,
    Declined,
    Found,
    NotFound,
    NotSent,
    Outcome,
    Pending,
    Succeeded,
    Unknown,
    Unresolvable,
    WebhookEvent,
    WebhookKind,
)

ANSWER_SECONDS = 30.0
"""How long a caller waits for an answer."""
DELAY_SECONDS_MAX = 120.0
"""How long a request may be on its way."""

METHODS = (
    *("pm_ok",) * 6,
    *("pm_soft_1", "pm_soft_2", "pm_soft", "pm_hard", "pm_expired", "pm_advice"),
    *("pm_customer",) * 3,
    *("pm_pending_good", "pm_pending_good", "pm_pending_bad", "pm_pending_long"),
    *("pm_reversed", "pm_reversed"),
    *("pm_500_before", "pm_500_after", "pm_500_after", "pm_slow", "pm_slow", "pm_very_slow"),
)
"""Payment methods, each of which the provider treats in its own way, as often as they shall be drawn."""


class State(Enum):
    SUCCEEDED = "succeeded"
    PENDING = "pending"
    FAILED = "failed"
    REQUIRES_ACTION = "requires_action"
    CANCELED = "canceled"
    """It waited for the customer, who cannot complete it any more."""
    REVERSED = "reversed"
    """Taken, and taken back by the customer's bank."""


_KINDS: dict[State, WebhookKind] = {
    State.SUCCEEDED: "charge.succeeded",
    State.PENDING: "charge.pending",
    State.FAILED: "charge.failed",
    State.REVERSED: "charge.reversed",
}


_FATES: dict[str, tuple[State, str | None, str | None]] = {
    "pm_soft": (State.FAILED, "insufficient_funds", None),
    "pm_soft_1": (State.FAILED, "try_again_later", None),
    "pm_soft_2": (State.FAILED, "try_again_later", None),
    "pm_hard": (State.FAILED, "stolen_card", None),
    "pm_expired": (State.FAILED, "expired_card", None),
    "pm_advice": (State.FAILED, "insufficient_funds", "do_not_try_again"),
    "pm_customer": (State.REQUIRES_ACTION, None, None),
    "pm_pending_good": (State.PENDING, None, None),
    "pm_pending_bad": (State.PENDING, None, None),
    "pm_pending_long": (State.PENDING, None, None),
}
"""What becomes of a charge, with code and advice; of others: it succeeds."""


@dataclass(slots=True, kw_only=True)
class Charge:
    """A charge as the provider has it."""

    id: str
    reference: str
    amount: int
    currency: str
    state: State
    code: str | None
    advice: str | None
    made_at: float
    visible_at: float
    turns_at: float | None = None
    turns_to: tuple[State, str | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the provider sends back for a charge. `at`: when it is ready."""

    status: int
    at: float
    charge: str | None = None
    shown: tuple[State, str | None, str | None] | None = None
    code: str | None = None
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request that a charge which waits for the customer is not to be completed."""

    charge: str


@dataclass(slots=True, kw_only=True)
class _Key:
    request: ChargeRequest
    answer: Answer
    """The first one; it is the answer for as long as the key lives."""


@dataclass(slots=True, kw_only=True)
class Network:
    """How bad it is between a host and the provider: shares of requests, in [0, 1]."""

    not_reached: float = 0.0
    request_lost: float = 0.0
    request_late: float = 0.0
    answer_lost: float = 0.0
    twice: float = 0.0
    limited: float = 0.0
    find_lost: float = 0.0


class Provider:
    """The model. `clock` is its own: a constant away from everybody else's."""

    def __init__(self, name: str, rng: random.Random, clock: Callable[[], float], *, key_ttl: float, find_lag: float) -> None:
        self.name = name
        self.rng = rng
        self.clock = clock
        self.key_ttl = key_ttl
        self.find_lag = find_lag
        self.network = Network()
        self.charges: list[Charge] = []
        self._keys: dict[str, _Key] = {}
        self._on_their_way: list[tuple[float, ChargeRequest | Cancel]] = []
        self._tries: Counter[str] = Counter()
        self.webhooks: list[tuple[float, WebhookEvent]] | None = None
        """To be delivered, each from a time on; None where this provider sends none."""

    def later(self, request: ChargeRequest | Cancel, seconds: float) -> None:
        """A request that arrives after `seconds`, whose answer nobody waits for."""
        self._on_their_way.append((self.clock() + seconds, request))

    def next_event(self) -> float | None:
        """By its clock: when a request arrives or a pending charge turns."""
        times = [at for at, _ in self._on_their_way]
        times += [at for at, _ in self.webhooks or ()]
        times += [charge.turns_at for charge in self.charges if charge.turns_at is not None]
        return min(times, default=None)

    def tick(self) -> None:
        """Let everything happen that is due."""
        now = self.clock()
        due = [entry for entry in self._on_their_way if entry[0] <= now]
        self._on_their_way = [entry for entry in self._on_their_way if entry[0] > now]
        for at, request in sorted(due, key=lambda entry: entry[0]):
            if isinstance(request, Cancel):
                self.cancel(request)
            else:
                self.charge(request, at)
        for charge in self.charges:
            if charge.turns_at is not None and charge.turns_at <= now and charge.turns_to is not None:
                charge.state, charge.code = charge.turns_to
                charge.turns_at = charge.turns_to = None
                self._tell(charge)

    def charge(self, request: ChargeRequest, now: float) -> Answer:
        """A request for a charge arrives at `now`."""
        self._keys = {key: entry for key, entry in self._keys.items() if now < entry.answer.at + self.key_ttl}
        known = self._keys.get(request.key)
        if known is not None:
            if known.request != request:
                return Answer(status=400, at=now, code="idempotency_key_mismatch")
            if now < known.answer.at:
                return Answer(status=409, at=now, retry_after=known.answer.at - now)
            return known.answer
        if self.rng.random() < self.network.limited:
            return Answer(status=429, at=now, retry_after=self.rng.choice((1.0, 60.0, 900.0)))
        answer = self._first_answer(request, now)
        self._keys[request.key] = _Key(request=request, answer=answer)
        return answer

    def find(self, reference: str) -> Charge | None:
        """The newest charge of a reference that look-ups show by now."""
        now = self.clock()
        found = [c for c in self.charges if c.reference == reference and c.visible_at <= now]
        return found[-1] if found else None

    def cancel(self, request: Cancel) -> Charge:
        """A charge that waits for the customer never takes money after this; any other is left as it is."""
        charge = next(charge for charge in self.charges if charge.id == request.charge)
        if charge.state is State.REQUIRES_ACTION:
            charge.state, charge.code = State.CANCELED, "canceled"
            charge.turns_at = charge.turns_to = None
        return charge

    def _tell(self, charge: Charge) -> None:
        """By webhook, sometimes twice, and in any order."""
        kind = _KINDS.get(charge.state)
        if self.webhooks is None or kind is None:
            return
        event = WebhookEvent(
            id=f"evt_{charge.id}_{charge.state.value}",
            kind=kind,
            reference=charge.reference,
            provider_ref=charge.id,
            amount=charge.amount,
            currency=charge.currency,
            code=charge.code,
        )
        for _ in range(self.rng.choice((1, 1, 2))):
            delay = self.rng.choice((0.0, self.rng.uniform(0, 60), self.rng.uniform(0, 20_000)))
            self.webhooks.append((max(self.clock(), charge.made_at) + delay, event))

    def _first_answer(self, request: ChargeRequest, now: float) -> Answer:
        """What becomes of a request under a new key."""
        method = request.payment_method
        invoice = request.reference.rpartition("/")[0]
        self._tries[invoice] += 1
        busy = {"pm_slow": self.rng.uniform(1, 60), "pm_very_slow": self.rng.uniform(60, 600)}.get(method, 0.0)
        if method == "pm_500_before":
            return Answer(status=500, at=now)
        charge = self._make(request, now + busy, method, self._tries[invoice])
        if method == "pm_500_after":
            return Answer(status=500, at=now)
        return Answer(status=200, at=now + busy, charge=charge.id, shown=(charge.state, charge.code, charge.advice))

    def _make(self, request: ChargeRequest, at: float, method: str, tries: int) -> Charge:
        state, code, advice = _FATES.get(method, (State.SUCCEEDED, None, None))
        if method.startswith("pm_soft_") and tries > int(method[-1]):
            state, code = State.SUCCEEDED, None
        lag = self.rng.uniform(0, self.find_lag)
        charge = Charge(
            id=f"ch_{self.name}_{len(self.charges) + 1}",
            reference=request.reference,
            amount=request.amount,
            currency=request.currency,
            state=state,
            code=code,
            advice=advice,
            made_at=at,
            visible_at=at + lag,
        )
        if state is State.PENDING:
            charge.turns_at = at + self.rng.uniform(60, 7200) * (100 if method == "pm_pending_long" else 1)
            charge.turns_to = (State.FAILED, "insufficient_funds") if method == "pm_pending_bad" else (State.SUCCEEDED, None)
        if state is State.REQUIRES_ACTION and self.webhooks is not None and self.rng.random() < 0.7:  # as with the next
            charge.turns_at = at + self.rng.choice((self.rng.uniform(1, 600), self.rng.uniform(60, 400_000)))
            charge.turns_to = self.rng.choice(((State.SUCCEEDED, None), (State.FAILED, "authentication_required")))
        if method == "pm_reversed" and tries == 1 and self.webhooks is not None:  # it tells of it in no other way
            charge.turns_at = at + self.rng.uniform(60, 300_000)
            charge.turns_to = (State.REVERSED, self.rng.choice(("insufficient_funds", "account_closed", "fraudulent")))
        self.charges.append(charge)
        self._tell(charge)
        return charge


@types.coroutine
def until(at: float) -> Generator[float, None, None]:
    """Suspend a host's coroutine until the world's time is `at`."""
    yield at


@dataclass(slots=True)
class Looks:
    """What hosts were told about attempts: what a review may be founded on."""

    open: Counter[str] = field(default_factory=Counter)
    """Answers of charges and look-ups that left the outcome open, by reference: pending, not there, or none at all."""


class Adapter(ChargesOnly):
    """A `PaymentGateway`, without refunds, over a provider and the network to it. Waiting lets other hosts act, and time pass."""

    def __init__(self, provider: Provider, world_clock: Callable[[], float], looks: Looks) -> None:
        self.name = provider.name
        self.key_ttl_seconds = provider.key_ttl
        self.capabilities = Capabilities(refunds=False, signature_header=None, find_lag_seconds=provider.find_lag)
        self._provider = provider
        self._now = world_clock
        self._looks = looks

    async def charge(self, request: ChargeRequest) -> Outcome:
        """See `PaymentGateway`."""
        outcome = await self._charge(request)
        if isinstance(outcome, Unknown | Pending | Unresolvable):
            self._looks.open[request.reference] += 1
        return outcome

    async def _charge(self, request: ChargeRequest) -> Outcome:
        provider, network, draw = self._provider, self._provider.network, self._provider.rng.random
        if draw() < network.not_reached:
            return NotSent(reason="no connection")
        if draw() < network.request_lost:
            return await self._no_answer()
        if draw() < network.request_late:
            provider.later(request, provider.rng.uniform(1, DELAY_SECONDS_MAX))
            return await self._no_answer()
        if draw() < network.twice:
            provider.later(request, provider.rng.uniform(0, DELAY_SECONDS_MAX))
        answer = provider.charge(request, provider.clock())
        if draw() < network.answer_lost or answer.at > provider.clock() + ANSWER_SECONDS:
            return await self._no_answer()
        await until(self._now() + max(0.0, answer.at - provider.clock()))
        return _outcome(answer)

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

    async def cancel(self, reference: str, provider_ref: str) -> Found:
        """See `PaymentGateway`."""
        outcome = await self._cancel(Cancel(provider_ref))
        if not isinstance(outcome, Succeeded | Declined | NotSent):
            self._looks.open[reference] += 1
        return outcome

    async def _cancel(self, request: Cancel) -> Found:
        provider, network, draw = self._provider, self._provider.network, self._provider.rng.random
        if draw() < network.not_reached:
            return NotSent(reason="no connection")
        if draw() < network.request_lost:
            return await self._no_answer()
        if draw() < network.request_late:
            provider.later(request, provider.rng.uniform(1, DELAY_SECONDS_MAX))
            return await self._no_answer()
        charge = provider.cancel(request)
        if draw() < network.answer_lost:
            return await self._no_answer()
        answer = _shown(charge.id, charge.state, charge.code, charge.advice)
        await until(self._now() + provider.rng.uniform(0, ANSWER_SECONDS))
        return answer

    async def close(self) -> None:
        """See `PaymentGateway`."""

    async def _no_answer(self) -> Unknown:
        await until(self._now() + ANSWER_SECONDS)
        return Unknown(reason="no answer")


def _outcome(answer: Answer) -> Outcome:
    match answer.status:
        case 200:
            assert answer.charge is not None
            assert answer.shown is not None
            return _shown(answer.charge, *answer.shown)
        case 409:
            return Unknown(reason="in flight", retry_after_seconds=answer.retry_after, cause=Cause.IN_FLIGHT)
        case 429:
            return NotSent(reason="rate limited", retry_after_seconds=answer.retry_after, cause=Cause.RATE_LIMITED)
        case 500:
            return Unknown(reason="the provider failed", cause=Cause.FAILED)
        case _:
            return Unresolvable(reason=answer.code or "refused", cause=Cause.KEY_MISMATCH)


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
