"""Applying what was stored: a batch of a shard's webhooks, in one transaction, by what `decide` says of each."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from billing_shards import telemetry
from billing_shards.accounts import ledger
from billing_shards.jobs.lanes import Lanes
from billing_shards.outbox import events
from billing_shards.outbox.events import Event
from billing_shards.payments import reversal
from billing_shards.payments.refunds import store as refund_store
from billing_shards.payments.refunds.model import Refund, RefundStatus, Source, refund_key
from billing_shards.payments.webhooks import decide, store
from billing_shards.payments.webhooks.model import (
    Action,
    Ask,
    AttemptReference,
    Contradiction,
    Done,
    RefundReference,
    RefundState,
    Reverse,
    Stored,
    TakenBack,
    Wait,
    parse_reference,
)
from billing_shards.payments.webhooks.store import Case
from billing_shards.settings import RetrySpec, ShardSetSpec
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_log = structlog.get_logger(__name__)

_BATCH = 100
_PURGE_BATCH = 500
_ID_BITS = 63


@dataclass(slots=True, kw_only=True)
class _Work:
    """What a batch comes to."""

    looked_at: list[tuple[Stored, str | None, float]] = field(default_factory=list)
    """Each webhook with its result and the seconds it is kept, or None and the seconds until the next look."""
    ask: list[Case] = field(default_factory=list)
    reopen: list[Case] = field(default_factory=list)
    refunds: list[int] = field(default_factory=list)
    entries: list[ledger.Entry] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def done(self, webhook: Stored, result: str) -> None:
        self.looked_at.append((webhook, result, store.KEPT_SECONDS))

    def wait(self, webhook: Stored) -> None:
        self.looked_at.append((webhook, None, decide.wait_seconds(webhook.tries)))


class Applier:
    """Applies the stored webhooks of a shard set."""

    def __init__(self, spec: ShardSetSpec, router: ShardRouter, *, draw: Callable[[], float] = random.random) -> None:
        self._router = router
        self._policy: RetrySpec = spec.retry
        self._lanes = Lanes(spec)
        self._shard_count = spec.shard_count
        self._draw = draw

    def apply(self, database: str, shards: Sequence[int]) -> bool:
        """A batch of each of the database's shards that has webhooks to be looked at; whether there were any.

        Raises what `ShardRouter.run` raises; the batch that failed is then applied by a later call.
        """
        with self._router.connect(database) as connection:
            due = store.due_shards(connection, shards)
        for shard in due:
            # Run twice it does no harm: what is done with is not due any more.
            work = self._router.run(shard, self._apply, committed=lambda _: None)
            for result, count in Counter(result for _, result, _ in work.looked_at if result is not None).items():
                telemetry.WEBHOOKS_APPLIED.labels(result).inc(count)
        return bool(due)

    def purge(self, database: str, shards: Sequence[int]) -> bool:
        """Delete a batch of each shard's webhooks that have been kept long enough; whether there were any."""
        with self._router.connect(database) as connection:
            due = store.purgeable_shards(connection, shards)
        for shard in due:
            self._router.run(shard, lambda transaction: store.purge(transaction, _PURGE_BATCH), committed=lambda _: None)
        return bool(due)

    def _apply(self, transaction: ShardTransaction) -> _Work:
        named = [
            (webhook, parse_reference(webhook.reference, self._shard_count)) for webhook in store.lock_due(transaction, _BATCH)
        ]
        work = _Work()
        self._attempts(transaction, [(w, r) for w, r in named if isinstance(r, AttemptReference)], work)
        self._refunds(transaction, [(w, r) for w, r in named if isinstance(r, RefundReference)], work)
        for webhook, reference in named:
            if reference is None:
                work.done(webhook, "no_reference")
        store.ask_jobs(transaction, work.ask, work.reopen)
        refund_store.ask_now(transaction, work.refunds)
        store.finish(transaction, work.looked_at)
        _book(transaction, work)
        return work

    def _attempts(self, transaction: ShardTransaction, named: Sequence[tuple[Stored, AttemptReference]], work: _Work) -> None:
        cases = store.lock_cases(transaction, {reference for _, reference in named})
        changed: set[int] = set()
        for webhook, reference in named:
            if reference.invoice in changed:  # its state is not the one that was read any more: it stays due
                continue
            case = cases.get(reference)
            action = decide.of_attempt(webhook, None if case is None else case.state)
            if case is None or isinstance(action, Done | Wait):
                _note(work, webhook, action)
                continue
            changed.add(reference.invoice)
            self._act(transaction, webhook, case, action, work)

    def _act(self, transaction: ShardTransaction, webhook: Stored, case: Case, action: Action, work: _Work) -> None:
        match action:
            case Ask():
                (work.reopen if action.reopen else work.ask).append(case)
                _note(work, webhook, action)
            case Reverse():
                booking = reversal.reverse(
                    transaction, case, webhook.code, policy=self._policy, lanes=self._lanes, draw=self._draw()
                )
                work.entries.append(booking.entry)
                work.events.append(booking.event)
                work.done(webhook, "reversed")
                _log.warning("payment_reversed", shard=transaction.shard, invoice=case.invoice, code=webhook.code)
            case TakenBack():
                _take_back(transaction, webhook, case, action.amount, work)
            case Contradiction():
                work.events.append(_review(case, action.reason))
                work.done(webhook, action.reason)
                _log.error("webhook_contradicts", shard=transaction.shard, invoice=case.invoice, reason=action.reason)
            case Done() | Wait():
                _note(work, webhook, action)

    def _refunds(self, transaction: ShardTransaction, named: Sequence[tuple[Stored, RefundReference]], work: _Work) -> None:
        told = refund_store.lock_told(transaction, {reference.refund for _, reference in named})
        for webhook, reference in named:
            refund = told.get(reference.refund)
            state = (
                None if refund is None else RefundState(provider=refund.provider, status=refund.status, in_work=refund.in_work)
            )
            action = decide.of_refund(webhook, state)
            if refund is not None and isinstance(action, Ask):
                work.refunds.append(refund.id)
            if refund is not None and isinstance(action, Contradiction):
                facts = {
                    "invoice": refund.invoice,
                    "refund": webhook.reference,
                    "amount": refund.amount,
                    "currency": refund.currency,
                }
                payload = {**facts, "reason": action.reason}
                work.events.append(Event(type="refund.review", subscription=refund.subscription, payload=payload))
                work.done(webhook, action.reason)
            else:
                _note(work, webhook, action)


def _note(work: _Work, webhook: Stored, action: Action) -> None:
    match action:
        case Done():
            work.done(webhook, action.result)
        case Ask() if action.done:
            work.done(webhook, "asked")
        case _:
            work.wait(webhook)


def _take_back(transaction: ShardTransaction, webhook: Stored, case: Case, amount: int, work: _Work) -> None:
    """A part of the charge is gone: written as a refund that succeeded, so that what may still be refunded is known."""
    request_key = f"bank:{webhook.event_id}"
    if refund_store.by_key(transaction, case.invoice, request_key) is not None:  # told again after its row was deleted
        work.done(webhook, "known")
        return
    refund = Refund(
        shard=transaction.shard,
        id=secrets.randbits(_ID_BITS),
        invoice=case.invoice,
        request_key=request_key,
        subscription=case.subscription,
        service=case.service,
        attempt_no=case.attempt_no,
        provider=case.state.provider,
        charge_ref=case.provider_ref or "",
        amount=amount,
        currency=case.state.currency,
        key=refund_key(transaction.shard, case.invoice, request_key),
        source=Source.BANK,
        status=RefundStatus.SUCCEEDED,
        provider_ref=None,
        code=webhook.code,
        checks=0,
    )
    refund_store.insert(transaction, refund)
    work.entries.append(
        ledger.refunded(
            invoice=refund.invoice,
            service=refund.service,
            provider=refund.provider,
            amount=amount,
            currency=refund.currency,
            refund_key=refund.key,
        )
    )
    payload = {"invoice": case.invoice, "refund": refund.reference, "amount": amount, "currency": refund.currency, "by": "bank"}
    work.events.append(Event(type="invoice.refunded", subscription=case.subscription, payload=payload))
    work.done(webhook, "taken_back_in_part")


def _review(case: Case, reason: str) -> Event:
    facts = {"invoice": case.invoice, "attempt": case.attempt_no, "amount": case.state.amount, "currency": case.state.currency}
    return Event(type="payment.review", subscription=case.subscription, payload={**facts, "reason": reason})


def _book(transaction: ShardTransaction, work: _Work) -> None:
    counts = {name: count for name, count in (("event", len(work.events)), ("ledger", len(work.entries))) if count}
    if counts:
        first = transaction.take_many(counts)
        ledger.book(transaction, first.get("ledger", 0), work.entries)
        events.write(transaction, first.get("event", 0), work.events)
