"""The port to a payment provider. Adapters turn whatever happens into a value; they never raise for a charge or a refund."""

from __future__ import annotations

from typing import Protocol

from billing_shards.errors import InvalidInput
from billing_shards.jobs.model import clock
from billing_shards.payments.model import (
    Capabilities,
    Cause,
    ChargeRequest,
    Failed,
    Found,
    NotFound,
    NotSent,
    Outcome,
    RefundFound,
    RefundOutcome,
    RefundRequest,
    Unknown,
    WebhookEvent,
)

# A key is not used in the last stretch of its life: the request may be slow, and the provider's clock is not ours.
_KEY_MARGIN = 0.9

_NOT_LISTED_SECONDS = 600.0


class PaymentGateway(Protocol):
    """A provider. Every call is bounded in time."""

    name: str
    """Names the provider on attempts and in the ledger's clearing account."""
    key_ttl_seconds: float
    """How long it remembers an idempotency key."""
    capabilities: Capabilities

    async def charge(self, request: ChargeRequest) -> Outcome:
        """Send one attempt. The same key within its life makes one charge, however often it is sent."""

    async def find(self, reference: str) -> Found:
        """What became of the attempt of this reference. `NotFound` does not yet mean that it failed."""

    async def cancel(self, reference: str, provider_ref: str) -> Found:
        """See to it that a charge which waits for the customer is never completed; what it is after that, or was already.

        `Declined` where no money was taken, and none will be. Asked again, it does nothing more.
        """

    async def refund(self, request: RefundRequest) -> RefundOutcome:
        """Give money back. Keyed as a charge is; the provider keeps the sum of a charge's refunds within what it took."""

    async def find_refund(self, reference: str, provider_ref: str) -> RefundFound:
        """What became of the refund of this reference, of the charge that the provider calls `provider_ref`."""

    def parse_webhook(self, body: bytes) -> WebhookEvent:
        """What a webhook says. Pure; only for a body whose signature was verified. Raises `InvalidInput` where it is no event."""

    async def referenced(self, event: WebhookEvent) -> WebhookEvent | NotSent | Unknown:
        """The event with our reference, for which the provider is asked where its event does not carry it. It may have none."""

    async def close(self) -> None:
        """Close connections."""


def not_listed(name: str) -> NotSent:
    """In place of an answer, where the spec does not list the provider any more: it is asked when it is listed again."""
    return NotSent(reason=f"spec lists no gateway {name}", retry_after_seconds=_NOT_LISTED_SECONDS, cause=Cause.CONFIG)


def key_lives(gateway: PaymentGateway, age: float, *, at: float) -> bool:
    """Whether the provider still remembers an idempotency key now, if it ever had it.

    `age`: seconds since it may first have been sent, as of `at`, a moment of `clock`: a process may have stood still since, and
    others have sent it.
    """
    return age + clock() - at < gateway.key_ttl_seconds * _KEY_MARGIN


class ChargesOnly:
    """A base for gateways whose charges never wait for the customer, and that neither refund nor send webhooks."""

    capabilities = Capabilities(refunds=False, signature_header=None, find_lag_seconds=0.0)

    async def cancel(self, reference: str, provider_ref: str) -> Found:  # noqa: ARG002
        """See `PaymentGateway`."""
        return NotFound()

    async def refund(self, request: RefundRequest) -> RefundOutcome:  # noqa: ARG002
        """See `PaymentGateway`."""
        return Failed(code="refunds_not_supported")

    async def find_refund(self, reference: str, provider_ref: str) -> RefundFound:  # noqa: ARG002
        """See `PaymentGateway`."""
        return NotFound()

    def parse_webhook(self, body: bytes) -> WebhookEvent:  # noqa: ARG002
        """See `PaymentGateway`."""
        raise InvalidInput("webhook", "this provider sends none")

    async def referenced(self, event: WebhookEvent) -> WebhookEvent | NotSent | Unknown:
        """See `PaymentGateway`."""
        return event
