"""The ledger: what each event that moves money books, and the one statement that books it. Payments, by far the most, are booked
where they are settled: sql/queries/settle.sql `book_payments`.

An account is named `kind:owner`. Receivables, revenue and clearing are never rows that every payment would update: their balance
is the sum of their entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from billing_shards.db import Rows, queries
from billing_shards.shards.transactions import ShardTransaction

_q = queries("ledger")


class Kind(IntEnum):
    """Why an entry was booked."""

    INVOICE_ISSUED = 1
    PAYMENT_SUCCEEDED = 2
    WRITTEN_OFF = 3
    PAYMENT_REVERSED = 4
    REFUNDED = 5
    REFUND_FAILED = 6
    """A refund that was booked, and failed later: the money came back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One debit and one credit of the same amount (minor units): the ledger sums to zero by its shape."""

    debit: str
    credit: str
    amount: int
    currency: str
    kind: Kind
    invoice: int
    key: bytes
    """32 bytes; the same fact has the same key, and is booked once."""


def invoice_issued(*, invoice: int, subscription: str, service: str, amount: int, currency: str, job_key: bytes) -> Entry:
    """What a subscription owes for a period."""
    return Entry(
        debit="receivable:" + subscription,
        credit="revenue:" + service,
        amount=amount,
        currency=currency,
        kind=Kind.INVOICE_ISSUED,
        invoice=invoice,
        key=issued_key(job_key),
    )


def payment_reversed(*, invoice: int, subscription: str, provider: str, amount: int, currency: str, attempt_key: bytes) -> Entry:
    """A payment that the customer's bank took back: it is owed again."""
    return Entry(
        debit="receivable:" + subscription,
        credit="clearing:" + provider,
        amount=amount,
        currency=currency,
        kind=Kind.PAYMENT_REVERSED,
        invoice=invoice,
        key=_entry_key(attempt_key, b"reversed"),
    )


def refunded(*, invoice: int, service: str, provider: str, amount: int, currency: str, refund_key: bytes) -> Entry:
    """What a provider gave back for us. The invoice stays paid."""
    return Entry(
        debit="refunds:" + service,
        credit="clearing:" + provider,
        amount=amount,
        currency=currency,
        kind=Kind.REFUNDED,
        invoice=invoice,
        key=_entry_key(refund_key, b"refunded"),
    )


def refund_failed(*, invoice: int, service: str, provider: str, amount: int, currency: str, refund_key: bytes) -> Entry:
    """A refund that had succeeded, and did not reach the customer after all."""
    return Entry(
        debit="clearing:" + provider,
        credit="refunds:" + service,
        amount=amount,
        currency=currency,
        kind=Kind.REFUND_FAILED,
        invoice=invoice,
        key=_entry_key(refund_key, b"refund failed"),
    )


def written_off(*, invoice: int, subscription: str, service: str, amount: int, currency: str, job_key: bytes) -> Entry:
    """What a subscription owed, and will not be asked for any more. `service` is the one that the invoice was issued for."""
    return Entry(
        debit="bad-debt:" + service,
        credit="receivable:" + subscription,
        amount=amount,
        currency=currency,
        kind=Kind.WRITTEN_OFF,
        invoice=invoice,
        key=_entry_key(job_key, b"written off"),
    )


def issued_key(job_key: bytes) -> bytes:
    """Of the entry of an invoice's issue: it tells which service the invoice was for, whatever the subscription's is by now."""
    return _entry_key(job_key, b"issued")


def _entry_key(key: bytes, fact: bytes) -> bytes:
    return hashlib.sha256(key + fact).digest()


def book(transaction: ShardTransaction, first: int, entries: Sequence[Entry]) -> None:
    """Insert the entries under the numbers from `first` on, which the transaction took from its 'ledger' counter."""
    if not entries:
        return
    rows = [
        (number, e.debit, e.credit, e.amount, e.currency, e.kind, e.invoice, e.key.hex())
        for number, e in enumerate(entries, first)
    ]
    keys = [(row[0],) for row in rows]
    transaction.write(_q.insert_entries, {"rows": Rows(rows)}, table="ledger_entry", keys=keys)
