"""Refunds that are due: take them under a lease, ask the provider, write what it said."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import structlog
from sqlalchemy import Connection

from billing_shards import telemetry
from billing_shards.accounts import ledger
from billing_shards.outbox import events
from billing_shards.outbox.events import Event
from billing_shards.payments.model import Failed, RefundOutcome
from billing_shards.payments.providers import Providers
from billing_shards.payments.recheck import take_back
from billing_shards.payments.refunds import store
from billing_shards.payments.refunds.decide import Step, decide
from billing_shards.payments.refunds.model import Refund, RefundStatus, Taken
from billing_shards.payments.refunds.push import push
from billing_shards.payments.webhooks.model import AttemptReference
from billing_shards.settings import RetrySpec, ShardSetSpec
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_log = structlog.get_logger(__name__)

_BATCH = 20
_LEASE_SECONDS = 600  # longer than limits and time-outs of one request together
_TOKEN_BITS = 63

T = TypeVar("T")


class InLoop(Protocol):
    """Runs a coroutine in the event loop that the providers belong to, and waits for it in a thread that is not the loop's."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


def push_due(
    router: ShardRouter, providers: Providers, in_loop: InLoop, database: str, shards: Collection[int], *, spec: ShardSetSpec
) -> bool:
    """Work a batch of each of the database's shards that has due refunds; whether there were any.

    Where one failed, the provider is asked about its charge as well: it may have been taken back, and its webhook lost.
    Raises what `ShardRouter.run` raises; what was taken is then taken again when its lease has ended.
    """
    with router.connect(database) as connection:
        due = store.due_shards(connection, shards)
    for shard in due:
        taken = take(router, shard)
        outcomes = in_loop(ask(providers, taken))
        for one, outcome in zip(taken, outcomes, strict=True):
            settle(router, one, outcome, policy=spec.retry)
            gateway = providers.named(one.refund.provider)
            if isinstance(outcome, Failed) and gateway is not None:
                attempt = AttemptReference(shard=shard, invoice=one.refund.invoice, attempt=one.refund.attempt_no)
                found = in_loop(gateway.find(str(attempt)))
                take_back(router, spec, attempt, found, draw=random.random())  # noqa: S311
    return bool(due)


def take(router: ShardRouter, shard: int) -> list[Taken]:
    """Take due refunds of a shard under a lease."""
    token = secrets.randbits(_TOKEN_BITS) or 1
    taken: list[Taken] = []

    def body(transaction: ShardTransaction) -> list[Taken]:
        taken[:] = store.take_due(transaction, token=token, limit=_BATCH, lease_seconds=_LEASE_SECONDS)
        return taken

    def committed(connection: Connection) -> list[Taken] | None:
        return taken if store.are_taken(connection, shard, taken) else None

    return router.run(shard, body, committed=committed)


async def ask(providers: Providers, taken: Sequence[Taken]) -> list[RefundOutcome]:
    """What the providers say of each, all at once."""
    return await asyncio.gather(*(push(providers.named(one.refund.provider), one) for one in taken))


def settle(router: ShardRouter, taken: Taken, outcome: RefundOutcome, *, policy: RetrySpec) -> Step | None:
    """Write what the provider said: refund, ledger entry and event together. None: its lease was lost, nothing is written."""
    refund = taken.refund
    delays = policy.check_delays_seconds
    step = decide(refund.status, refund.checks, outcome, delays, received=taken.sent_age is not None)

    def body(transaction: ShardTransaction) -> bool:
        if not store.finish(transaction, taken, step, outcome):
            return False
        tell(transaction, refund, step, outcome)
        return True

    # Run twice it writes once: the lease is given back with the first, and fences the second out.
    written = router.run(refund.shard, body, committed=lambda _: None)
    if not written:
        _log.warning("refund_lease_lost", shard=refund.shard, refund=refund.id)
        return None
    telemetry.REFUNDS.labels(step.status.name.lower()).inc()
    return step


def tell(transaction: ShardTransaction, refund: Refund, step: Step, outcome: RefundOutcome) -> None:
    """Ledger entry and event of a step that an outcome led to."""
    entries = [*([_entry(refund)] if step.booked else []), *([_counter_entry(refund)] if step.booked_back else [])]
    told = event_of(refund, step, getattr(outcome, "code", None))
    counts = {name: count for name, count in (("event", int(told is not None)), ("ledger", len(entries))) if count}
    if counts:
        first = transaction.take_many(counts)
        ledger.book(transaction, first.get("ledger", 0), entries)
        events.write(transaction, first.get("event", 0), [told] if told is not None else [])


def _entry(refund: Refund) -> ledger.Entry:
    return ledger.refunded(
        invoice=refund.invoice,
        service=refund.service,
        provider=refund.provider,
        amount=refund.amount,
        currency=refund.currency,
        refund_key=refund.key,
    )


def _counter_entry(refund: Refund) -> ledger.Entry:
    return ledger.refund_failed(
        invoice=refund.invoice,
        service=refund.service,
        provider=refund.provider,
        amount=refund.amount,
        currency=refund.currency,
        refund_key=refund.key,
    )


def event_of(refund: Refund, step: Step, code: str | None) -> Event | None:
    """What is told of a step: that the money went, that it did not or came back, or that a person must look."""
    facts: dict[str, Any] = {
        "invoice": refund.invoice,
        "refund": refund.reference,
        "amount": refund.amount,
        "currency": refund.currency,
    }
    if step.review is not None:
        return Event(type="refund.review", subscription=refund.subscription, payload={**facts, "reason": step.review})
    if step.booked:
        return Event(
            type="invoice.refunded", subscription=refund.subscription, payload={**facts, "by": refund.source.name.lower()}
        )
    if step.status is RefundStatus.FAILED and refund.status is not RefundStatus.FAILED:
        came_back = {"came_back": True} if step.booked_back else {}
        return Event(
            type="refund.failed", subscription=refund.subscription, payload={**facts, "code": code or "unknown", **came_back}
        )
    return None
