"""The scheduler: writes what is owed for every period that has begun.

Invoice, ledger charge, job, event and the subscription's advance are one transaction for a batch of subscriptions: a scheduler
that is killed leaves either all of them or none. Two schedulers may work on one shard: each skips the subscriptions that the
other holds, and an invoice that is there already is left alone with all that belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from billing_shards import telemetry
from billing_shards.accounts import ledger
from billing_shards.billing import decide, store
from billing_shards.billing.model import Invoice, Plan, Stop, ended
from billing_shards.jobs.lanes import Lanes
from billing_shards.outbox import events
from billing_shards.settings import BillingSpec
from billing_shards.shards.transactions import ShardRouter, ShardTransaction


def due_shards(router: ShardRouter, shards: Sequence[int]) -> list[int]:
    """Those of `shards` that have something to schedule, by one query to each database. Raises `DatabaseError`s."""
    found: list[int] = []
    for name, of_database in router.by_database(shards).items():
        with router.connect(name) as connection:
            found += store.due_shards(connection, of_database)
    return sorted(found)


def schedule_shard(
    router: ShardRouter,
    shard: int,
    *,
    lanes: Lanes,
    grace_seconds: int,
    missed_max: int = BillingSpec().catch_up_periods_max,
    limit: int = 500,
    catch_up_max: int = 12,
) -> int:
    """Invoice up to `limit` due subscriptions of a shard, up to `catch_up_max` periods each; how many invoices were written.

    Run again until the shard is not due any more. Jobs wait in the lane of their service and fall due at the subscription's place
    in its window; charging may go on for `grace_seconds`. A subscription that has missed more than `missed_max` periods
    is held instead, and one whose last period is over is canceled. Raises what `ShardRouter.run` raises.
    """
    issued: dict[int, Invoice] = {}
    stopped: list[Plan] = []

    def body(transaction: ShardTransaction) -> int:
        issued.clear()
        stopped.clear()
        due = store.lock_due(transaction, limit)
        plans = [
            decide.plan(
                one,
                transaction.now,
                lanes=lanes,
                grace_seconds=grace_seconds,
                catch_up_max=catch_up_max,
                missed_max=missed_max,
            )
            for one in due
        ]
        if plans:
            issued.update(_issue(transaction, [invoice for plan in plans for invoice in plan.invoices]))
            store.advance(transaction, plans)
            stopped[:] = [plan for plan in plans if plan.stop is not None]
            _account(transaction, issued, stopped)
        return len(issued)

    def committed(connection: Connection) -> int | None:
        """None also where nothing but the advance was written: done again, that does no harm."""
        return len(issued) if issued and store.is_committed(connection, shard, next(iter(issued))) else None

    with telemetry.BATCH_SECONDS.labels("schedule").time():
        count = router.run(shard, body, committed=committed)
    telemetry.INVOICES_ISSUED.inc(count)
    telemetry.SUBSCRIPTIONS_HELD.inc(sum(plan.stop is Stop.HELD for plan in stopped))
    return count


def _issue(transaction: ShardTransaction, invoices: Sequence[Invoice]) -> dict[int, Invoice]:
    """Invoices and their jobs, from one block of ids; those that were not there before, by id."""
    if not invoices:
        return {}
    first = transaction.take("id", 2 * len(invoices))
    issued = store.insert_invoices(transaction, first, invoices)
    if issued:
        store.insert_jobs(transaction, first + len(invoices), issued)
    return issued


def _account(transaction: ShardTransaction, issued: Mapping[int, Invoice], stopped: Sequence[Plan]) -> None:
    """Ledger and outbox, last: the rows of their counters are locked from here to the COMMIT."""
    told = [_event(number, invoice) for number, invoice in issued.items()] + [_stop_event(plan) for plan in stopped]
    if not told:
        return
    first = transaction.take_many({"event": len(told), "ledger": len(issued)} if issued else {"event": len(told)})
    if issued:
        ledger.book(transaction, first["ledger"], [_charge(number, invoice) for number, invoice in issued.items()])
    events.write(transaction, first["event"], told)


def _charge(number: int, invoice: Invoice) -> ledger.Entry:
    subscription = invoice.subscription
    return ledger.invoice_issued(
        invoice=number,
        subscription=subscription.id,
        service=subscription.service,
        amount=subscription.amount,
        currency=subscription.currency,
        job_key=invoice.key,
    )


def _event(number: int, invoice: Invoice) -> events.Event:
    facts = {
        "invoice": number,
        "amount": invoice.subscription.amount,
        "currency": invoice.subscription.currency,
        "period_start": invoice.period_start.isoformat(),
        "period_end": invoice.period_end.isoformat(),
    }
    return events.Event(type="invoice.issued", subscription=invoice.subscription.id, payload=facts)


def _stop_event(plan: Plan) -> events.Event:
    if plan.stop is Stop.HELD:
        missed = {"reason": "too_many_periods_missed", "next_period_start": plan.next_day.isoformat()}
        return events.Event(type="subscription.held", subscription=plan.subscription, payload=missed)
    return events.Event(type="subscription.canceled", subscription=plan.subscription, payload=ended("period_ended"))
