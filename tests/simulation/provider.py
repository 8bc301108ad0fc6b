"""A payment provider, modelled on its own from docs/gateway-protocol.md: keys, charges, refunds, look-ups. No line of it
is the product's.

It is the witness: what it took is the truth that the databases are held against at the end. It has a clock of its own, loses and
repeats messages, answers late, forgets keys at the end of their life, and shows new charges in look-ups only after a while.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from billing_shards.payments.model import ChargeRequest, RefundRequest, WebhookEvent, WebhookKind
from tests.simulation.refunding import Refund, Refunds, RefundState

ANSWER_SECONDS = 30.0
"""How long a caller waits for an answer."""
DELAY_SECONDS_MAX = 120.0
"""How long a request may be on its way."""

METHODS = (
    *("pm_ok",) * 6,
    *("pm_soft_1", "pm_soft_2", "pm_soft", "pm_hard", "pm_expired", "pm_advice"),
    *("pm_customer",) * 3,
    *("pm_pending_good", "pm_pending_good", "pm_pending_bad", "pm_pending_long"),
    *("pm_reversed", "pm_reversed", "pm_reversed_in_part"),
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
    disputed_at: float | None = None
    """When the customer's bank takes back a part of it."""
    taken_back: int = 0
    """That part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the provider sends back for a charge or a refund. `at`: when it is ready."""

    status: int
    at: float
    charge: str | None = None
    shown: tuple[State, str | None, str | None] | None = None
    refund: tuple[str, RefundState] | None = None
    code: str | None = None
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request that a charge which waits for the customer is not to be completed."""

    charge: str


Keyed: TypeAlias = ChargeRequest | RefundRequest


@dataclass(slots=True, kw_only=True)
class _Key:
    request: Keyed
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
        self.refunds = Refunds(name, rng, find_lag)
        self._keys: dict[str, _Key] = {}
        self._on_their_way: list[tuple[float, Keyed | Cancel]] = []
        self._tries: Counter[str] = Counter()
        self.webhooks: list[tuple[float, WebhookEvent]] | None = None
        """To be delivered, each from a time on; None where this provider sends none."""

    def later(self, request: Keyed | Cancel, seconds: float) -> None:
        """A request that arrives after `seconds`, whose answer nobody waits for."""
        self._on_their_way.append((self.clock() + seconds, request))

    def next_event(self) -> float | None:
        """By its clock: when a request arrives, or a charge or a refund turns."""
        times = [at for at, _ in self._on_their_way]
        times += [at for at, _ in self.webhooks or ()]
        times += [at for charge in self.charges for at in (charge.turns_at, charge.disputed_at) if at is not None]
        times += [at for at in (self.refunds.next_turn(),) if at is not None]
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
                self.send(request, at)
        for charge in self.charges:
            if charge.turns_at is not None and charge.turns_at <= now and charge.turns_to is not None:
                charge.state, charge.code = charge.turns_to
                charge.turns_at = charge.turns_to = None
                self._tell(charge)
            if charge.disputed_at is not None and charge.disputed_at <= now:
                self._take_back_part(charge)
        for refund in self.refunds.turn(now):
            self._tell_refund(refund)

    def send(self, request: Keyed, now: float) -> Answer:
        """A request for a charge or a refund arrives at `now`."""
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
        answer = self._first_answer(request, now) if isinstance(request, ChargeRequest) else self._refund(request, now)
        if answer.status != 400:
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

    def _take_back_part(self, charge: Charge) -> None:
        """Never all that it took: that is another message."""
        charge.disputed_at = None
        left = min(charge.amount - self.refunds.gone(charge.id), charge.amount - 1)
        if left > 0:
            charge.taken_back = self.rng.randint(1, left)
            self._tell(charge, kind="charge.reversed", amount=charge.taken_back, code="fraudulent")

    def _refund(self, request: RefundRequest, now: float) -> Answer:
        charge = next(charge for charge in self.charges if charge.id == request.provider_ref)
        if charge.state is not State.SUCCEEDED:
            return Answer(status=400, at=now, code="charge_not_refundable")
        made = self.refunds.make(request, charge.amount - charge.taken_back, now, tells=self.webhooks is not None)
        if isinstance(made, str):
            return Answer(status=400, at=now, code=made)
        self._tell_refund(made)
        return Answer(status=200, at=now + self.rng.uniform(0, 2 * ANSWER_SECONDS), refund=(made.id, made.state))

    def _tell_refund(self, refund: Refund) -> None:
        if self.webhooks is None or refund.state is RefundState.PENDING:
            return
        self._post(
            WebhookEvent(
                id=f"evt_{refund.id}_{refund.state.value}",
                kind="refund.succeeded" if refund.state is RefundState.SUCCEEDED else "refund.failed",
                reference=refund.request.reference,
                provider_ref=refund.id,
                amount=refund.request.amount,
                currency=refund.request.currency,
                code=None if refund.state is RefundState.SUCCEEDED else "lost_or_stolen_card",
            ),
            self.clock(),
        )

    def _tell(self, charge: Charge, **changes: Any) -> None:
        kind = _KINDS.get(charge.state)
        if self.webhooks is None or kind is None:
            return
        event = WebhookEvent(
            id=f"evt_{charge.id}_{charge.state.value}_{charge.taken_back}",
            kind=kind,
            reference=charge.reference,
            provider_ref=charge.id,
            amount=charge.amount,
            currency=charge.currency,
            code=charge.code,
        )
        self._post(replace(event, **changes), max(self.clock(), charge.made_at))

    def _post(self, event: WebhookEvent, at: float) -> None:
        """By webhook, sometimes twice, and in any order."""
        assert self.webhooks is not None
        for _ in range(self.rng.choice((1, 1, 2))):
            delay = self.rng.choice((0.0, self.rng.uniform(0, 60), self.rng.uniform(0, 20_000)))
            self.webhooks.append((at + delay, event))

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
        if method == "pm_reversed_in_part" and self.webhooks is not None:
            charge.disputed_at = at + self.rng.uniform(60, 300_000)
        self.charges.append(charge)
        self._tell(charge)
        return charge
