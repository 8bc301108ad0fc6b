"""The port to a payment provider. Adapters turn whatever happens into an `Outcome`; they never raise for a charge."""

from __future__ import annotations

from typing import Protocol

from billing_shards.payments.model import ChargeRequest, Found, Outcome


class PaymentGateway(Protocol):
    """A provider. Every call is bounded in time."""

    name: str
    """Names the provider on attempts and in the ledger's clearing account."""
    key_ttl_seconds: float
    """How long it remembers an idempotency key."""

    async def charge(self, request: ChargeRequest) -> Outcome:
        """Send one attempt. The same key within its life makes one charge, however often it is sent."""

    async def find(self, reference: str) -> Found:
        """What became of the attempt of this reference. `NotFound` does not yet mean that it failed."""

    async def close(self) -> None:
        """Close connections."""
