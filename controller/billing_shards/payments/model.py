"""Outcomes of a charge. A closed union: `Unknown` is neither success nor failure, and must be resolved before anything new."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias


class AttemptOutcome(IntEnum):
    """`payment_attempt.outcome`."""

    UNKNOWN = 0
    SUCCEEDED = 1
    DECLINED = 2
    ACTION_REQUIRED = 3
    NOT_SENT = 4
    PENDING = 5


class DeclineClass(Enum):
    """What a decline means for the next attempt."""

    RETRYABLE = "retryable"
    """May pass later: too little money, issuer not available."""
    NEW_METHOD = "new_method"
    """Will not pass with this payment method: the customer must give another."""
    CUSTOMER = "customer"
    """The customer must act (authenticate)."""
    HARD = "hard"
    """Will never pass, and must not be tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The provider took the money."""

    provider_ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """The provider, or the issuer behind it, refused."""

    decline_class: DeclineClass
    code: str
    provider_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequired:
    """The charge waits for the customer."""

    provider_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Accepted; whether money comes is told later."""

    provider_ref: str
    next_check_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSent:
    """The request surely did nothing: the provider was not reached, or it turned us away at the door. As the answer of a look-up:
    there was no look.
    """

    reason: str
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The provider may have made the charge, or may still be making it."""

    reason: str
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolvable:
    """Asking and sending again lead nowhere: the provider does not know the attempt and has forgotten its key (a new send could
    charge twice), or it finds fault with the request itself.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """The answer of a look-up only: the provider knows no charge of this reference (yet)."""


Outcome: TypeAlias = Succeeded | Declined | ActionRequired | Pending | NotSent | Unknown | Unresolvable
Found: TypeAlias = Succeeded | Declined | ActionRequired | Pending | NotSent | Unknown | NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRequest:
    """One send of one attempt. Sent again, it is the same to the last byte."""

    key: str
    """The idempotency key, in hex."""
    amount: int
    """Minor units."""
    currency: str
    payment_method: str
    reference: str
