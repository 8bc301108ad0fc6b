"""The flow of one charge: begin a new attempt, or resolve the one whose outcome is unknown. Never both.

An attempt that an earlier worker opened may have reached the provider. So the provider is asked by our reference first; the same
key is sent again only where the provider knows nothing and still remembers the key. After that it is only looked for, as often
as the schedule has it, and then a person must tell. (After Stripe's "Idempotent requests" and brandur.org/idempotency-keys.)

How old an attempt is counts when the request goes out, not when it was claimed: a process that stood still for longer than the
key lives (a frozen node) sends nothing, for others may have resolved the attempt meanwhile.

An attempt that waited for the customer, where another one is wanted, is canceled first: the customer could complete both.
"""

from __future__ import annotations

import structlog

from billing_shards.jobs.model import Job
from billing_shards.payments.gateway import PaymentGateway, key_lives, not_listed
from billing_shards.payments.model import ActionRequired, Cause, ChargeRequest, NotFound, NotSent, Outcome, Unknown, Unresolvable

_log = structlog.get_logger(__name__)


async def charge(gateway: PaymentGateway | None, job: Job, *, service: str | None = None) -> Outcome:
    """Charge a claimed job at its attempt's provider; None where the spec does not list that one any more. `service` is told to
    the provider.

    Returns an outcome whatever happens at the provider.
    """
    if gateway is None:
        _log.error("provider_not_configured", provider=job.provider, shard=job.shard, job=job.id)
        return not_listed(job.provider)
    if job.canceling:
        return await _cancel(gateway, job)
    request = _request(job, service)
    if job.resumed:
        return await _resolve(gateway, job, request)
    if not key_lives(gateway, job.attempt_age, at=job.claimed_at):
        _log.warning("attempt_held_too_long", shard=job.shard, job=job.id, attempt=job.attempt_no)
        return NotSent(reason="held too long to be sent", cause=Cause.HELD_BACK)
    return await gateway.charge(request)


async def _cancel(gateway: PaymentGateway, job: Job) -> Outcome:
    """Never sends the charge again: its key would only bring the stored answer, that it waits."""
    found = await gateway.find(job.reference)
    if isinstance(found, ActionRequired) and found.provider_ref is not None:
        found = await gateway.cancel(job.reference, found.provider_ref)
    if isinstance(found, NotFound):
        return Unknown(reason="a charge that waited for the customer is not found", cause=Cause.FAILED)
    return found


async def _resolve(gateway: PaymentGateway, job: Job, request: ChargeRequest) -> Outcome:
    remembered = key_lives(gateway, job.attempt_age, at=job.claimed_at)
    # A look-up that lags behind would see nothing yet; the same key, sent again, brings the answer itself.
    if not remembered or job.attempt_age >= gateway.capabilities.find_lag_seconds:
        found = await gateway.find(job.reference)
        if not isinstance(found, NotFound):
            return found
    if not key_lives(gateway, job.attempt_age, at=job.claimed_at):
        return Unknown(reason="not found at the provider, and its key has expired", cause=Cause.KEY_EXPIRED)
    _log.info("attempt_resent", shard=job.shard, job=job.id, attempt=job.attempt_no)
    outcome = await gateway.charge(request)
    if isinstance(outcome, Unresolvable) and outcome.cause is Cause.KEY_MISMATCH:
        # It knows the key, so the first send arrived, and will be found; the payment method, say, has been changed since.
        return Unknown(reason=outcome.reason, cause=Cause.KEY_MISMATCH)
    return outcome


def _request(job: Job, service: str | None) -> ChargeRequest:
    return ChargeRequest(
        key=job.attempt_key.hex(),
        amount=job.amount,
        currency=job.currency,
        payment_method=job.payment_method,
        reference=job.reference,
        service=service,
    )
