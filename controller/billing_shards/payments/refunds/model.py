"""Values of refunds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum


class RefundStatus(IntEnum):
    """`refund.status`."""

    REQUESTED = 0
    """Not sent, or surely not received."""
    PENDING = 1
    """The provider has it; whether the customer gets the money is told later."""
    SUCCEEDED = 2
    FAILED = 3
    """No money went, or it came back. The amount may be refunded anew, under another key."""
    UNKNOWN = 4
    """Sent, and nobody knows yet what became of it."""
    REVIEW = 5
    """A person must find out what became of it."""


class Source(IntEnum):
    """`refund.source`: whose doing it was."""

    OURS = 1
    BANK = 2
    """The customer's bank took back a part of the charge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refund:
    """One refund, as its row has it."""

    shard: int
    id: int
    invoice: int
    request_key: str
    subscription: str
    service: str
    attempt_no: int
    provider: str
    """Where the attempt that took the money was made; the refund goes there, whatever the spec says by now."""
    charge_ref: str
    amount: int
    """Minor units of `currency`."""
    currency: str
    key: bytes
    """What the provider is given: the same for every send."""
    source: Source
    status: RefundStatus
    provider_ref: str | None
    code: str | None
    checks: int
    """Looks at an outcome that was not known, so far."""

    @property
    def reference(self) -> str:
        """Our name of it at the provider, and in its webhooks."""
        return f"{self.shard}/{self.invoice}/r{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A refund that this process asks the provider about, under a lease."""

    refund: Refund
    token: int
    taken_at: float
    """By `jobs.model.clock`."""
    sent_age: float | None
    """Seconds since its first send, by the server's clock, when it was taken; None where it was surely never received."""


def refund_key(shard: int, invoice: int, request_key: str) -> bytes:
    """The idempotency key that the provider is given: never that of a charge."""
    return hashlib.sha256(f"refund|{shard}/{invoice}|{request_key}".encode()).digest()
