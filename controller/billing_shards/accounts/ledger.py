"""The ledger: what each event that moves money books, and the one statement that books it.

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
        key=_entry_key(job_key, b"issued"),
    )


def payment_succeeded(*, invoice: int, subscription: str, provider: str, amount: int, currency: str, job_key: bytes) -> Entry:
    """What a provider took for us. Keyed by the job, not the attempt: an invoice is paid once."""
    return Entry(
        debit="clearing:" + provider,
        credit="receivable:" + subscription,
        amount=amount,
        currency=currency,
        kind=Kind.PAYMENT_SUCCEEDED,
        invoice=invoice,
        key=_entry_key(job_key, b"paid"),
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


def _entry_key(job_key: bytes, fact: bytes) -> bytes:
    return hashlib.sha256(job_key + fact).digest()


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
