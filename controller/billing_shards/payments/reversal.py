"""A late failure: a charge that had succeeded, and was taken back by the customer's bank.

The ledger gets a counter-entry, the attempt is closed as reversed, the invoice is open again, and its job waits for a fresh
attempt, the customer or a person, by the bank's reason. All in the transaction that learnt of it, under the locks of job and
invoice; done twice it would find the attempt reversed already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from billing_shards.accounts import ledger
from billing_shards.db import queries
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Status, attempt_key
from billing_shards.outbox.events import Event
from billing_shards.payments.decide import AskCustomer, RetryAfter, Review
from billing_shards.payments.webhooks.decide import after_reversal
from billing_shards.payments.webhooks.store import Case
from billing_shards.settings import RetrySpec
from billing_shards.shards.transactions import ShardTransaction

_q = queries("webhooks")

After = RetryAfter | AskCustomer | Review


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """What the transaction still has to write, last: the ledger's entry and the event."""

    entry: ledger.Entry
    event: Event


def reverse(
    transaction: ShardTransaction, case: Case, code: str | None, *, policy: RetrySpec, lanes: Lanes, draw: float
) -> Booking:
    """Take back the payment of a case whose attempt succeeded and whose invoice is paid. `draw` in [0, 1) is the jitter's."""
    after = after_reversal(code, case.last_attempt_no, policy, draw)
    attempt = {"job": case.job, "attempt_no": case.attempt_no, "code": code}
    transaction.write(_q.reverse_attempt, attempt, table="payment_attempt", keys=[(case.job, case.attempt_no)])
    _reopen_job(transaction, case, after, grace_seconds=policy.grace_seconds, lanes=lanes)
    transaction.write(_q.reopen_invoice, {"invoice": case.invoice}, table="invoice", keys=[(case.invoice,)])
    transaction.write(_q.dun, {"subscription": case.subscription}, table="subscription", keys=[(case.subscription,)])
    entry = ledger.payment_reversed(
        invoice=case.invoice,
        subscription=case.subscription,
        provider=case.state.provider,
        amount=case.state.amount,
        currency=case.state.currency,
        attempt_key=attempt_key(case.job_key, case.attempt_no),
    )
    return Booking(entry=entry, event=_event(case, code, after))


def _reopen_job(transaction: ShardTransaction, case: Case, after: After, *, grace_seconds: int, lanes: Lanes) -> None:
    params = {
        "job": case.job,
        "lane": int(lanes.of_service(case.service).again),
        "status": int(_status(after)),
        "seconds": after.seconds if isinstance(after, RetryAfter) else 0,
        "subscription": case.subscription,
        "invoice": case.invoice,
        "amount": case.state.amount,
        "currency": case.state.currency,
        "payment_method": case.payment_method,
        "attempt_no": case.last_attempt_no,
        "key": case.job_key,
        "grace_seconds": grace_seconds,
    }
    transaction.write(_q.reopen_job, params, table="billing_job", keys=[(case.job,)])


def _status(after: After) -> Status:
    match after:
        case RetryAfter():
            return Status.READY
        case AskCustomer():
            return Status.AWAITING_CUSTOMER
        case Review():
            return Status.REVIEW


def _event(case: Case, code: str | None, after: After) -> Event:
    facts: dict[str, Any] = {
        "invoice": case.invoice,
        "attempt": case.attempt_no,
        "amount": case.state.amount,
        "currency": case.state.currency,
        "provider_ref": case.provider_ref,
        "code": code,
    }
    if isinstance(after, RetryAfter):
        facts["retry_seconds"] = round(after.seconds)
    else:
        facts["reason"] = after.reason
    return Event(type="payment.reversed", subscription=case.subscription, payload=facts)
