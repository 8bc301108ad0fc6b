"""The flow of one charge: begin a new attempt, or resolve the one whose outcome is unknown. Never both.

An attempt that an earlier worker opened may have reached the provider. So the provider is asked by our reference first; the same
key is sent again only where the provider knows nothing and still remembers the key; after that only a person can tell.
"""

from __future__ import annotations

import structlog

from billing_shards.jobs.model import Job
from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.model import ChargeRequest, NotFound, NotSent, Outcome, Unresolvable

_log = structlog.get_logger(__name__)

# A key is not used in the last stretch of its life: the request may be slow, and the provider's clock is not ours.
_KEY_MARGIN = 0.9


async def charge(gateway: PaymentGateway | None, job: Job) -> Outcome:
    """Charge a claimed job at its attempt's provider; None where the spec does not list that one any more.

    Returns an outcome whatever happens at the provider.
    """
    if gateway is None:
        _log.error("provider_not_configured", provider=job.provider, shard=job.shard, job=job.id)
        return NotSent(reason=f"spec lists no gateway {job.provider}")
    if not job.resumed:
        return await gateway.charge(_request(job))
    found = await gateway.find(job.reference)
    if not isinstance(found, NotFound):
        return found
    if job.attempt_age < gateway.key_ttl_seconds * _KEY_MARGIN:
        _log.info("attempt_resent", shard=job.shard, job=job.id, attempt=job.attempt_no)
        return await gateway.charge(_request(job))
    return Unresolvable(reason="not found at the provider, and its key has expired")


def _request(job: Job) -> ChargeRequest:
    return ChargeRequest(
        key=job.attempt_key.hex(),
        amount=job.amount,
        currency=job.currency,
        payment_method=job.payment_method,
        reference=job.reference,
    )
