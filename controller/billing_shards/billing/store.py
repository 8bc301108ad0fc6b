"""The SQL of subscriptions and invoices. Each function is one statement; transactions are made by the shells."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import Any

from sqlalchemy import Connection

from billing_shards.billing.model import RECURRING, Due, Invoice, Plan, Stop, Subscription
from billing_shards.billing.periods import Interval, Unit
from billing_shards.db import Rows, queries
from billing_shards.shards.transactions import ShardTransaction

_q = queries("billing")


def due_shards(connection: Connection, shards: Collection[int]) -> list[int]:
    """Those of `shards` with a subscription of which a period has begun; all on one database."""
    return [row[0] for row in connection.exec_driver_sql(_q.due_shards, {"shards": tuple(shards)})]


def lock_due(transaction: ShardTransaction, limit: int) -> list[Due]:
    """Subscriptions that are due, longest first, but for those that another scheduler holds."""
    rows = transaction.read(_q.due_subscriptions, {"now": transaction.now, "limit": limit})
    return [
        Due(subscription=subscription_of(row), next_period=row[12], catch_up_until=row[13], cancel_at=row[14]) for row in rows
    ]


def insert_invoices(transaction: ShardTransaction, first: int, invoices: Sequence[Invoice]) -> dict[int, Invoice]:
    """Write the invoices under the ids from `first` on; those written, by id. A period that has an invoice is left out."""
    numbered = dict(enumerate(invoices, first))
    rows = [
        (
            number,
            i.subscription.id,
            _text(i.period_start),
            _text(i.period_end),
            i.subscription.amount,
            i.subscription.currency,
            _text(i.due_at),
        )
        for number, i in numbered.items()
    ]
    params = {"rows": Rows(rows), "charge_type": RECURRING, "now": transaction.now}
    transaction.write(_q.insert_invoices, params, table="invoice", keys=[(number,) for number in numbered])
    found = transaction.read(_q.inserted_invoices, {"first": first, "last": first + len(invoices) - 1})
    return {row[0]: numbered[row[0]] for row in found}


def insert_jobs(transaction: ShardTransaction, first: int, invoices: Mapping[int, Invoice]) -> None:
    """Write one ready job for each invoice, under the ids from `first` on, in its service's lane."""
    rows = [
        (
            job,
            _text(i.charge_at),
            i.subscription.id,
            invoice,
            i.subscription.amount,
            i.subscription.currency,
            i.subscription.payment_method,
            i.key.hex(),
            _text(i.grace_until),
            i.lane,
        )
        for job, (invoice, i) in enumerate(invoices.items(), first)
    ]
    params = {"rows": Rows(rows), "now": transaction.now}
    transaction.write(_q.insert_jobs, params, table="billing_job", keys=[(row[0],) for row in rows])


def advance(transaction: ShardTransaction, plans: Sequence[Plan]) -> None:
    """Note how far each subscription is invoiced, and why no further."""
    rows = [
        (
            plan.subscription,
            plan.next_period,
            None if plan.next_invoice_at is None else _text(plan.next_invoice_at),
            plan.stop is Stop.HELD,
            plan.stop is Stop.CANCELED,
        )
        for plan in plans
    ]
    params = {"rows": Rows(rows), "now": transaction.now}
    transaction.write(_q.advance_subscriptions, params, table="subscription", keys=[(row[0],) for row in rows])


def is_committed(connection: Connection, shard: int, invoice: int) -> bool:
    """Whether an invoice is there, waiting for a COMMIT that is under way."""
    return bool(connection.exec_driver_sql(_q.invoice_committed, {"shard": shard, "id": invoice}).scalar_one())


def agreed(connection: Connection, ids: Sequence[tuple[int, str]]) -> dict[str, Subscription]:
    """Those of the subscriptions (shard and id) that the database has, by id."""
    rows = connection.exec_driver_sql(_q.agreed_terms, {"ids": Rows(ids)})
    return {row[0]: subscription_of(row) for row in rows}


def agreed_in(transaction: ShardTransaction, ids: Sequence[str]) -> dict[str, Subscription]:
    """`agreed` of the transaction's own shard."""
    keys = [(transaction.shard, id_) for id_ in ids]
    return {row[0]: subscription_of(row) for row in transaction.read(_q.agreed_terms, {"ids": Rows(keys)})}


def insert_subscriptions(transaction: ShardTransaction, subscriptions: Sequence[Subscription]) -> None:
    """Write new, active subscriptions, none of whose periods is invoiced. An id that is there is an IntegrityError."""
    rows = [
        (
            s.id,
            s.customer_id,
            s.service,
            s.amount,
            s.currency,
            s.interval.unit,
            s.interval.count,
            _text(s.start_date),
            s.time_zone,
            s.payment_method,
            s.anchor_day,
            s.first_period,
            _text(s.begins_at(s.first_period)),
        )
        for s in subscriptions
    ]
    params = {"rows": Rows(rows), "now": transaction.now}
    transaction.write(_q.insert_subscriptions, params, table="subscription", keys=[(row[0],) for row in rows])


def subscription_of(row: Sequence[Any]) -> Subscription:
    """The terms in a row that begins with the columns of `agreed_terms`."""
    return Subscription(
        id=row[0],
        customer_id=row[1],
        service=row[2],
        amount=row[3],
        currency=row[4],
        interval=Interval(unit=Unit(row[5]), count=row[6]),
        start_date=row[7],
        time_zone=row[8],
        payment_method=row[9],
        anchor_day=row[10],
        first_period=row[11],
    )


def _text(moment: date) -> str:
    """A date or a datetime as JSON_TABLE reads it."""
    return str(moment)
