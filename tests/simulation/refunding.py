"""The refunds of the model provider: of a charge that succeeded, and never above what it took. No line of it is the product's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from billing_shards.payments.model import RefundRequest

if TYPE_CHECKING:
    from random import Random


class RefundState(Enum):
    SUCCEEDED = "succeeded"
    PENDING = "pending"
    FAILED = "failed"
    """No money went, or it came back."""


_FATES = (
    (RefundState.SUCCEEDED, RefundState.FAILED),
    *((RefundState.SUCCEEDED, None),) * 6,
    (RefundState.PENDING, RefundState.SUCCEEDED),
    (RefundState.PENDING, RefundState.FAILED),
    (RefundState.FAILED, None),
)
"""What a refund is at once, and what it turns to."""


@dataclass(slots=True, kw_only=True)
class Refund:
    """A refund as the provider has it."""

    id: str
    request: RefundRequest
    state: RefundState
    visible_at: float
    turns_at: float | None
    turns_to: RefundState | None


class Refunds:
    """All refunds of one provider."""

    def __init__(self, name: str, rng: Random, find_lag: float) -> None:
        self._name = name
        self._rng = rng
        self._find_lag = find_lag
        self.made: list[Refund] = []

    def make(self, request: RefundRequest, taken: int, now: float, *, tells: bool) -> Refund | str:
        """A new refund of a charge that took `taken`, or the code of why not. A promise of money counts as money.

        `tells`: whether webhooks are sent, which alone tell that a refund which succeeded has failed after all.
        """
        fate, turns_to = self._rng.choice(_FATES if tells else _FATES[1:])
        if request.amount > taken - self.gone(request.provider_ref):
            return "refund_too_large"
        refund = Refund(
            id=f"re_{self._name}_{len(self.made) + 1}",
            request=request,
            state=fate,
            visible_at=now + self._rng.uniform(0, self._find_lag),
            turns_at=None
            if turns_to is None
            else now + self._rng.choice((self._rng.uniform(1, 600), self._rng.uniform(60, 200_000))),
            turns_to=turns_to,
        )
        self.made.append(refund)
        return refund

    def find(self, reference: str, now: float) -> Refund | None:
        """The newest of this reference that look-ups show."""
        found = [one for one in self.made if one.request.reference == reference and one.visible_at <= now]
        return found[-1] if found else None

    def turn(self, now: float) -> Sequence[Refund]:
        """Those that turn out to be something else now."""
        due = [one for one in self.made if one.turns_at is not None and one.turns_at <= now]
        for one in due:
            assert one.turns_to is not None
            one.state, one.turns_at, one.turns_to = one.turns_to, None, None
        return due

    def next_turn(self) -> float | None:
        """When one turns."""
        return min((one.turns_at for one in self.made if one.turns_at is not None), default=None)

    def gone(self, charge: str) -> int:
        """What was given back of a charge, or is on its way."""
        of_charge = [one for one in self.made if one.request.provider_ref == charge]
        return sum(one.request.amount for one in of_charge if one.state is not RefundState.FAILED)
