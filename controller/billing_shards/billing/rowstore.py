"""The SQL of whole subscriptions, their closed spans, and what they owe. Transactions are made by the shells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import Connection

from billing_shards.accounts import ledger
from billing_shards.billing.dunning import Unpaid
from billing_shards.billing.model import Status
from billing_shards.billing.state import Row
from billing_shards.billing.store import subscription_of
from billing_shards.billing.terms import Span
from billing_shards.db import Rows, queries
from billing_shards.jobs.model import Status as JobStatus
from billing_shards.jobs.model import job_key, known_due
from billing_shards.jobs.store import cancel_waiting
from billing_shards.shards.transactions import ShardTransaction

_d = queries("dunning")
_s = queries("subscriptions")

Read = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""Rows of a query on one shard: `ShardTransaction.read`, or a plain connection's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """An invoice that is not paid, with its job."""

    unpaid: Unpaid
    subscription: str
    period_start: date
    key: bytes
    """Of its job."""
    job: int | None
    """None where the job was purged."""
    job_status: JobStatus | None
    payment_method: str | None
    """The job's."""
    due_at: datetime | None
    """When the job is claimed next or looked at, or its lease ends; None: not before the customer acts."""


def due_shards(connection: Connection, shards: Collection[int]) -> list[int]:
    """Those of `shards` with a subscription that dunning is to look at; all on one database."""
    return [row[0] for row in connection.exec_driver_sql(_d.due_shards, {"shards": tuple(shards)})]


def lock_due(transaction: ShardTransaction, limit: int) -> list[Row]:
    """Subscriptions that dunning is to look at, longest due first, but for those that somebody else holds."""
    ids = tuple(row[0] for row in transaction.read(_d.due, {"now": transaction.now, "limit": limit}))
    return lock(transaction, ids) if ids else []


def lock(transaction: ShardTransaction, ids: Collection[str]) -> list[Row]:
    """Those of the subscriptions that are there, locked."""
    return [row_of(row) for row in transaction.read(_s.lock, {"ids": tuple(ids)})]


def reader(connection: Connection, shard: int) -> Read:
    """Plain reads of one shard."""
    return lambda query, params: connection.exec_driver_sql(query, {"shard": shard, **params}).all()


def find(read: Read, subscription: str) -> tuple[Row, datetime] | None:
    """A subscription, and the server's time."""
    rows = read(_s.read, {"id": subscription})
    return (row_of(rows[0]), rows[0][23]) if rows else None


def spans(read: Read, subscription: str) -> list[Span]:
    """The terms it had before, oldest first."""
    return [Span(terms=subscription_of(row), next_period=row[12]) for row in read(_s.spans, {"subscription": subscription})]


def row_of(row: Sequence[Any]) -> Row:
    """The value of a row of `lock`."""
    return Row(
        terms=subscription_of(row),
        status=Status(row[12]),
        next_period=row[13],
        next_invoice_at=row[14],
        catch_up_until=row[15],
        held_since=row[16],
        cancel_at=row[17],
        past_due_since=row[18],
        suspended_since=row[19],
        notices=row[20],
        write_off=bool(row[21]),
        next_dunning_at=row[22],
    )


def save(transaction: ShardTransaction, rows: Sequence[Row]) -> None:
    """Write subscriptions that the transaction has locked."""
    values = [
        (
            row.terms.id,
            row.terms.service,
            row.terms.amount,
            row.terms.currency,
            row.terms.interval.unit,
            row.terms.interval.count,
            _text(row.terms.start_date),
            row.terms.payment_method,
            row.terms.anchor_day,
            row.terms.first_period,
            row.status,
            row.next_period,
            _text(row.next_invoice_at),
            row.catch_up_until,
            _text(row.held_since),
            _text(row.cancel_at),
            _text(row.past_due_since),
            _text(row.suspended_since),
            row.notices,
            int(row.write_off),
            _text(row.next_dunning_at),
        )
        for row in rows
    ]
    params = {"rows": Rows(values), "now": transaction.now}
    transaction.write(_s.save, params, table="subscription", keys=[(row.terms.id,) for row in rows])


def insert_spans(transaction: ShardTransaction, closed: Sequence[Span]) -> None:
    """Keep spans that are in force no more."""
    if not closed:
        return
    values = [
        (
            span.terms.id,
            _text(span.terms.first_day(span.terms.first_period)),
            span.terms.service,
            span.terms.amount,
            span.terms.currency,
            span.terms.interval.unit,
            span.terms.interval.count,
            _text(span.terms.start_date),
            span.terms.anchor_day,
            span.terms.first_period,
            span.next_period,
        )
        for span in closed
    ]
    params = {"rows": Rows(values), "now": transaction.now}
    transaction.write(_s.insert_spans, params, table="subscription_span", keys=[row[:2] for row in values])


def owed(read: Read, subscriptions: Collection[str]) -> dict[str, tuple[Owed, ...]]:
    """What each of the subscriptions has not paid, oldest period first; those that owe nothing are left out."""
    invoices = read(_d.unpaid_invoices, {"subscriptions": tuple(subscriptions)})
    keys = {row[0]: job_key(row[1], row[3], row[2]) for row in invoices}
    jobs = _jobs(read, list(keys.values()))
    found: defaultdict[str, list[Owed]] = defaultdict(list)
    for row in invoices:
        found[row[1]].append(_owed(row, keys[row[0]], jobs.get(row[0])))
    return {subscription: tuple(of_one) for subscription, of_one in found.items()}


def _jobs(read: Read, keys: Sequence[bytes]) -> dict[int, Sequence[Any]]:
    if not keys:
        return {}
    rows = read(_d.jobs, {"keys": Rows([(key.hex(),) for key in keys])})
    return {row[1]: row for row in rows}


def _owed(invoice: Sequence[Any], key: bytes, job: Sequence[Any] | None) -> Owed:
    given_up = invoice[6] == _GIVEN_UP
    unpaid = Unpaid(
        invoice=invoice[0],
        amount=invoice[4],
        currency=invoice[5],
        late=given_up or (job is not None and bool(job[6])),
        given_up=given_up,
        attempt_open=job is not None and bool(job[5]),
    )
    return Owed(
        unpaid=unpaid,
        subscription=invoice[1],
        period_start=invoice[3],
        key=key,
        job=None if job is None else job[0],
        job_status=None if job is None else JobStatus(job[2]),
        payment_method=None if job is None else job[3],
        due_at=None if job is None else known_due(job[4]),
    )


_GIVEN_UP = 3  # invoice.status


def free_jobs(transaction: ShardTransaction, jobs: Collection[int]) -> frozenset[int]:
    """Those of the jobs that nobody works on and that wait for no outcome; they are locked."""
    if not jobs:
        return frozenset()
    return frozenset(row[0] for row in transaction.read(_d.lock_jobs, {"ids": tuple(jobs)}))


def take_method(transaction: ShardTransaction, methods: Mapping[int, str], *, grace_seconds: int) -> None:
    """Give jobs that `free_jobs` locked other payment methods; those that wait for a retry or the customer are due now."""
    params = {"rows": Rows(list(methods.items())), "grace_seconds": grace_seconds}
    transaction.write(_d.take_method, params, table="billing_job", keys=[(job,) for job in methods])
    cancel_waiting(transaction, methods)


def reopen_invoices(transaction: ShardTransaction, invoices: Collection[int]) -> None:
    """Invoices that were given up are collected again."""
    if invoices:
        keys = [(invoice,) for invoice in invoices]
        transaction.write(_d.reopen_invoices, {"ids": tuple(invoices)}, table="invoice", keys=keys)


def stop_jobs(transaction: ShardTransaction, jobs: Collection[int]) -> None:
    """Jobs that `free_jobs` locked are not tried any more."""
    if jobs:
        transaction.write(_d.stop_jobs, {"ids": tuple(jobs)}, table="billing_job", keys=[(job,) for job in jobs])


def write_off_invoices(transaction: ShardTransaction, invoices: Collection[int]) -> int:
    """Invoices are not owed any more; how many were."""
    keys = [(invoice,) for invoice in invoices]
    return transaction.write(_d.write_off_invoices, {"ids": tuple(invoices)}, table="invoice", keys=keys)


def services(transaction: ShardTransaction, keys: Mapping[int, bytes]) -> dict[int, str]:
    """The service that each invoice was issued for, by the keys of their jobs."""
    rows = transaction.read(_d.issued_for, {"keys": Rows([(ledger.issued_key(key).hex(),) for key in keys.values()])})
    return {row[0]: row[1].removeprefix("revenue:") for row in rows}


def _text(moment: date | None) -> str | None:
    return None if moment is None else str(moment)
