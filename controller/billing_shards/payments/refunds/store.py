"""The SQL of refunds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from sqlalchemy import Connection

from billing_shards.db import queries
from billing_shards.jobs.model import attempt_key, clock, job_key
from billing_shards.payments.model import RefundOutcome, Unknown
from billing_shards.payments.refunds.decide import Step
from billing_shards.payments.refunds.model import Refund, RefundStatus, Source, Taken
from billing_shards.shards.transactions import ShardTransaction

_q = queries("refunds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """Whose invoice it is, and what its job's key follows from."""

    subscription: str
    period_start: date
    charge_type: int
    service: str

    @property
    def key(self) -> bytes:
        """Of its job."""
        return job_key(self.subscription, self.period_start, self.charge_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """The attempt that took the money."""

    attempt_no: int
    provider: str
    charge_ref: str
    amount: int
    currency: str


def invoice(transaction: ShardTransaction, number: int) -> Invoice | None:
    """The invoice of this number, not locked."""
    rows = transaction.read(_q.invoice, {"invoice": number})
    return (
        None
        if not rows
        else Invoice(subscription=rows[0][0], period_start=rows[0][1], charge_type=rows[0][2], service=rows[0][3])
    )


def lock_job(transaction: ShardTransaction, key: bytes) -> None:
    """Lock the job of this key, where it is not deleted yet."""
    transaction.read(_q.lock_job, {"key": key})


def lock_invoice(transaction: ShardTransaction, number: int) -> tuple[int, str, int]:
    """Amount, currency and status of an invoice that is there, locked."""
    amount, currency, status = transaction.read(_q.lock_invoice, {"invoice": number})[0]
    return amount, currency, status


def payment(transaction: ShardTransaction, key: bytes) -> Payment | None:
    """The attempt at the job of this key that succeeded, and was not reversed."""
    rows = transaction.read(_q.payment, {"first_key": attempt_key(key, 1)})
    if not rows:
        return None
    return Payment(attempt_no=rows[0][0], provider=rows[0][1], charge_ref=rows[0][2], amount=rows[0][3], currency=rows[0][4])


def refunded(transaction: ShardTransaction, invoice_: int) -> int:
    """Minor units that are given back of an invoice, or may be: all but what failed."""
    total: int = transaction.read(_q.refunded, {"invoice": invoice_})[0][0]
    return total


def by_key(transaction: ShardTransaction, invoice_: int, request_key: str) -> Refund | None:
    """The invoice's refund that was asked for under this key."""
    rows = transaction.read(_q.by_key, {"invoice": invoice_, "request_key": request_key})
    return _refund(transaction.shard, rows[0]) if rows else None


def insert(transaction: ShardTransaction, refund: Refund) -> None:
    """Write a new refund: due at once where it is requested, finished where it succeeded already."""
    params = {
        "id": refund.id,
        "invoice": refund.invoice,
        "request_key": refund.request_key,
        "subscription": refund.subscription,
        "service": refund.service,
        "attempt_no": refund.attempt_no,
        "provider": refund.provider,
        "charge_ref": refund.charge_ref,
        "amount": refund.amount,
        "currency": refund.currency,
        "key": refund.key,
        "source": int(refund.source),
        "status": int(refund.status),
        "provider_ref": refund.provider_ref,
        "code": refund.code,
    }
    transaction.write(_q.insert_refund, params, table="refund", keys=[(refund.id,)])


def is_written(connection: Connection, shard: int, refund: int) -> bool:
    """Whether a refund is there, waiting for a COMMIT that is under way."""
    return bool(connection.exec_driver_sql(_q.written, {"shard": shard, "id": refund}).scalar_one())


def due_shards(connection: Connection, shards: Collection[int]) -> list[int]:
    """Those of `shards`, all of one database, with a refund that the provider is to be asked about."""
    return list(connection.exec_driver_sql(_q.due_shards, {"shards": tuple(shards)}).scalars())


def take_due(transaction: ShardTransaction, *, token: int, limit: int, lease_seconds: int) -> list[Taken]:
    """Take due refunds under a lease, longest due first; what another process holds is left out."""
    taken_at = clock()
    rows = transaction.read(_q.due, {"limit": limit})
    if rows:
        ids = tuple(row[0] for row in rows)
        params = {"ids": ids, "token": token, "lease_seconds": lease_seconds}
        transaction.write(_q.take, params, table="refund", keys=[(number,) for number in ids])
    return [
        Taken(
            refund=_refund(transaction.shard, row),
            token=token,
            taken_at=taken_at,
            sent_age=None if row[16] is None else float(row[16]),
        )
        for row in rows
    ]


def are_taken(connection: Connection, shard: int, taken: Sequence[Taken]) -> bool:
    """Whether the transaction that took these took place."""
    if not taken:
        return True
    params = {"shard": shard, "ids": tuple(one.refund.id for one in taken), "token": taken[0].token}
    return bool(connection.exec_driver_sql(_q.taken, params).scalar_one())


def finish(transaction: ShardTransaction, taken: Taken, step: Step, outcome: RefundOutcome) -> bool:
    """Write what became of a refund; False where its lease was lost, and nothing was written."""
    params = {
        "id": taken.refund.id,
        "token": taken.token,
        "status": int(step.status),
        "checks": step.checks,
        "check_seconds": step.check_seconds,
        "received": step.received,
        "booked": step.booked,
        "provider_ref": getattr(outcome, "provider_ref", None),
        "code": None if isinstance(outcome, Unknown) else getattr(outcome, "code", None),
    }
    return transaction.write(_q.finish, params, table="refund", keys=[(taken.refund.id,)]) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A refund that a webhook tells of, locked."""

    id: int
    invoice: int
    provider: str
    status: RefundStatus
    in_work: bool
    subscription: str
    amount: int
    currency: str


def lock_told(transaction: ShardTransaction, ids: Collection[int]) -> dict[int, Told]:
    """The refunds of these ids, by id; unknown ones are left out."""
    if not ids:
        return {}
    rows = transaction.read(_q.lock_told, {"ids": tuple(ids)})
    return {
        row[0]: Told(
            id=row[0],
            invoice=row[1],
            status=RefundStatus(row[2]),
            in_work=bool(row[3]),
            subscription=row[4],
            amount=row[5],
            currency=row[6],
            provider=row[7],
        )
        for row in rows
    }


def lock(transaction: ShardTransaction, number: int) -> tuple[Taken, bool] | None:
    """A refund, locked, under the token of whoever took it last, and whether that one is asking the provider about it still."""
    rows = transaction.read(_q.lock, {"id": number})
    if not rows:
        return None
    refund = _refund(transaction.shard, rows[0])
    return Taken(refund=refund, token=rows[0][16], taken_at=clock(), sent_age=None), bool(rows[0][17])


def ask_now(transaction: ShardTransaction, ids: Collection[int]) -> None:
    """Let the provider be asked about these refunds at once. They are locked, and nobody asks about them now."""
    if ids:
        transaction.write(_q.ask_now, {"ids": tuple(ids)}, table="refund", keys=[(number,) for number in ids])


def _refund(shard: int, row: Sequence[Any]) -> Refund:
    return Refund(
        shard=shard,
        id=row[0],
        invoice=row[1],
        request_key=row[2],
        subscription=row[3],
        service=row[4],
        attempt_no=row[5],
        provider=row[6],
        charge_ref=row[7],
        amount=row[8],
        currency=row[9],
        key=bytes(row[10]),
        source=Source(row[11]),
        status=RefundStatus(row[12]),
        provider_ref=row[13],
        code=row[14],
        checks=row[15],
    )
