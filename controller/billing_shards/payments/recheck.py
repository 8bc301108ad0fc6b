"""A late failure that no webhook told of, found by asking: the provider says of a charge that had succeeded that it did not.

Asked where there is a reason to: a refund of the charge failed, or a person wants to know.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from billing_shards.accounts import ledger
from billing_shards.jobs.lanes import Lanes
from billing_shards.outbox import events
from billing_shards.payments import reversal
from billing_shards.payments.model import AttemptOutcome, Declined, Found
from billing_shards.payments.refunds import store as refund_store
from billing_shards.payments.webhooks import store
from billing_shards.payments.webhooks.model import AttemptReference
from billing_shards.settings import ShardSetSpec
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """The attempt that paid an invoice."""

    attempt: AttemptReference
    provider: str


def charged(router: ShardRouter, shard: int, invoice: int) -> Charged | None:
    """The attempt that paid this invoice; None where none did, or it is not there. Raises what `ShardRouter.run` raises."""

    def body(transaction: ShardTransaction) -> Charged | None:
        found = refund_store.invoice(transaction, invoice)
        payment = None if found is None else refund_store.payment(transaction, found.key)
        if payment is None:
            return None
        attempt = AttemptReference(shard=shard, invoice=invoice, attempt=payment.attempt_no)
        return Charged(attempt=attempt, provider=payment.provider)

    return router.run(shard, body, committed=lambda _: None)


def take_back(router: ShardRouter, spec: ShardSetSpec, attempt: AttemptReference, found: Found, *, draw: float) -> bool:
    """Reverse an attempt that succeeded here, where the provider's look-up says that it did not; whether it is reversed now.

    An answer that does not say so, for whatever reason, changes nothing. Raises what `ShardRouter.run` raises.
    """
    if not isinstance(found, Declined):
        return False
    lanes = Lanes(spec)

    def body(transaction: ShardTransaction) -> bool:
        case = store.lock_cases(transaction, [attempt]).get(attempt)
        if case is None or not case.state.is_paid or case.state.outcome is not AttemptOutcome.SUCCEEDED:
            return case is not None and case.state.outcome is AttemptOutcome.REVERSED
        booking = reversal.reverse(transaction, case, found.code, policy=spec.retry, lanes=lanes, draw=draw)
        first = transaction.take_many({"event": 1, "ledger": 1})
        ledger.book(transaction, first["ledger"], [booking.entry])
        events.write(transaction, first["event"], [booking.event])
        return True

    # Run again after it took place, it finds the attempt reversed, and says so.
    reversed_ = router.run(attempt.shard, body, committed=lambda _: None)
    if reversed_:
        _log.warning("payment_reversed", shard=attempt.shard, invoice=attempt.invoice, code=found.code, told_by="look-up")
    return reversed_
