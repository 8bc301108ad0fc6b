"""Outcomes of a charge. A closed union: `Unknown` is neither success nor failure, and must be resolved before anything new."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Literal, TypeAlias


class AttemptOutcome(IntEnum):
    """`payment_attempt.outcome`."""

    UNKNOWN = 0
    SUCCEEDED = 1
    DECLINED = 2
    ACTION_REQUIRED = 3
    NOT_SENT = 4
    PENDING = 5
    REVERSED = 6
    """It had succeeded, and the bank took the money back."""
    CANCELING = 7
    """It waited for the customer, and another one is wanted: open until the provider says that it is canceled, or was paid."""


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


class Cause(Enum):
    """Why there is no answer about the money. It tells whose fault that is: the circuit breaker counts only the provider's."""

    NOT_REACHED = "not_reached"
    """`NotSent`: no connection."""
    RATE_LIMITED = "rate_limited"
    """`NotSent`: turned away at the door, as one too many."""
    CONFIG = "config"
    """`NotSent`: our key or our settings are no good; the same for every request until a person has mended it."""
    HELD_BACK = "held_back"
    """`NotSent`: we did not try, because the provider is failing (its breaker is open), or because it is too late to try."""
    NO_ANSWER = "no_answer"
    """`Unknown`: sent, and nothing came back in time."""
    FAILED = "failed"
    """`Unknown`: the provider answered that it failed, or what it would not say itself (a proxy's page)."""
    IN_FLIGHT = "in_flight"
    """`Unknown`: it is still working on a request with this key."""
    KEY_MISMATCH = "key_mismatch"
    """`Unresolvable`: the key was used with other parameters. `Unknown` where we sent it before: what arrived will be found."""
    REFUSED = "refused"
    """`Unresolvable`: it finds fault with the request itself."""
    KEY_EXPIRED = "key_expired"
    """`Unknown`: it does not know the attempt and may have forgotten its key, so that a new send could charge twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The provider took the money; of a refund: gave it back."""

    provider_ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """The provider, or the issuer behind it, refused; or the charge was canceled. It will take no money."""

    decline_class: DeclineClass
    code: str
    provider_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequired:
    """The charge waits for the customer, who may complete it at any time until it is canceled."""

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
    cause: Cause = Cause.NOT_REACHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The provider may have made the charge, or may still be making it."""

    reason: str
    retry_after_seconds: float | None = None
    cause: Cause = Cause.NO_ANSWER


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolvable:
    """Asking and sending again lead nowhere: the provider finds fault with the request itself."""

    reason: str
    cause: Cause = Cause.REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """The answer of a look-up only: the provider knows no charge, or no refund, of this reference (yet)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A refund that will not be: refused, or begun and failed later. No money moved, or it came back."""

    code: str
    provider_ref: str | None = None


Outcome: TypeAlias = Succeeded | Declined | ActionRequired | Pending | NotSent | Unknown | Unresolvable
Found: TypeAlias = Succeeded | Declined | ActionRequired | Pending | NotSent | Unknown | NotFound
RefundOutcome: TypeAlias = Succeeded | Pending | Failed | NotSent | Unknown
RefundFound: TypeAlias = RefundOutcome | NotFound


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
    service: str | None = None
    """The product that is billed, where it has lanes of its own: for the provider's reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundRequest:
    """One refund, full or partial, of a charge that succeeded. Sent again, it is the same to the last byte."""

    key: str
    """The idempotency key, in printable ASCII, never that of a charge."""
    provider_ref: str
    """The provider's name of the charge."""
    amount: int
    """Minor units."""
    currency: str
    """The charge's."""
    reference: str
    """Our name of the refund: how it is found again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a provider does beyond taking charges."""

    refunds: bool
    signature_header: str | None
    """The header that signs its webhooks; None where it sends none."""
    find_lag_seconds: float
    """How long a charge may exist before `find` sees it. Within this time `NotFound` says nothing."""


WebhookKind: TypeAlias = Literal[
    "charge.succeeded",
    "charge.failed",
    "charge.reversed",
    "charge.pending",
    "refund.succeeded",
    "refund.failed",
    "other",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEvent:
    """What a provider tells us by itself, in our words. It may come twice, late, or before what it follows."""

    id: str
    """The provider's name of this event: the same each time it is delivered."""
    kind: WebhookKind
    """`charge.reversed`: a charge that had succeeded was taken back by the bank; `other`: nothing that we act upon."""
    reference: str | None
    """Our reference of the attempt or the refund; None where the event does not carry it."""
    provider_ref: str | None
    """The provider's name of the charge, or of the refund."""
    amount: int | None
    """Minor units; of a reversal, what was taken back."""
    currency: str | None
    code: str | None
    """Why it failed or was reversed, in the provider's words."""
