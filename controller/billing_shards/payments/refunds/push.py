"""The flow of one refund: send it, or find out what became of the send. Never a new key.

A request that may have reached the provider is looked up by our reference first; the same key is sent again only where the
provider knows nothing and still remembers the key. After that it is only looked for.
"""

from __future__ import annotations

import structlog

from billing_shards.payments.gateway import PaymentGateway, key_lives, not_listed
from billing_shards.payments.model import Cause, NotFound, NotSent, RefundOutcome, RefundRequest, Unknown
from billing_shards.payments.refunds.model import RefundStatus, Taken

_log = structlog.get_logger(__name__)

_SENT_AGAIN = frozenset({RefundStatus.REQUESTED, RefundStatus.UNKNOWN})


async def push(gateway: PaymentGateway | None, taken: Taken) -> RefundOutcome:
    """Ask for a refund, or about it, at the provider that took the money; None where the spec does not list that one any more.

    Returns an outcome whatever happens at the provider.
    """
    refund = taken.refund
    if gateway is None:
        _log.error("provider_not_configured", provider=refund.provider, shard=refund.shard, refund=refund.id)
        return not_listed(refund.provider)
    if taken.sent_age is None:
        if not key_lives(gateway, 0.0, at=taken.taken_at):
            _log.warning("refund_held_too_long", shard=refund.shard, refund=refund.id)
            return NotSent(reason="held too long to be sent", cause=Cause.HELD_BACK)
        return await gateway.refund(_request(taken))
    found = await gateway.find_refund(refund.reference, refund.charge_ref)
    if not isinstance(found, NotFound):
        return found
    if refund.status in _SENT_AGAIN and key_lives(gateway, taken.sent_age, at=taken.taken_at):
        _log.info("refund_resent", shard=refund.shard, refund=refund.id)
        return await gateway.refund(_request(taken))
    return Unknown(reason="not found at the provider", cause=Cause.KEY_EXPIRED)


def _request(taken: Taken) -> RefundRequest:
    refund = taken.refund
    return RefundRequest(
        key=refund.key.hex(),
        provider_ref=refund.charge_ref,
        amount=refund.amount,
        currency=refund.currency,
        reference=refund.reference,
    )
