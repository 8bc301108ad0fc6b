"""Asking for a refund: written first, sent later by the housekeeper. Their sum never exceeds what was paid."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sqlalchemy import Connection

from billing_shards import acts
from billing_shards.accounts.money import format_amount
from billing_shards.acts import Act
from billing_shards.errors import InvalidInput, NotFound
from billing_shards.payments.refunds import store
from billing_shards.payments.refunds.model import Refund, RefundStatus, Source, refund_key
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

KEY_LENGTH_MAX = 128
_ID_BITS = 63
_PAID = 2  # invoice.status


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundOrder:
    """What somebody wants to give back."""

    shard: int
    invoice: int
    amount: int | None
    """Minor units of the invoice's currency; None: all that is left."""
    key: str
    """Printable ASCII. The same key is the same refund, however often it is asked for."""
    actor: str
    reason: str


def request(router: ShardRouter, order: RefundOrder) -> Refund:
    """Write down a refund, and return it; of a key that was used before, the refund that it made, as it is now.

    The check against what was paid and the refund are one transaction under the invoice's lock. Raises `NotFound`, `InvalidInput`
    that names what is wrong (the invoice is not paid, more than is left, the key stands for another amount), and what
    `ShardRouter.run` raises.
    """
    key = _checked_key(order.key)
    number = secrets.randbits(_ID_BITS)
    written: list[Refund] = []

    def body(transaction: ShardTransaction) -> Refund:
        written[:] = [_write(transaction, order, key, number)]
        return written[0]

    def committed(connection: Connection) -> Refund | None:
        refund = written[0]
        return refund if store.is_written(connection, order.shard, refund.id) else None

    return router.run(order.shard, body, committed=committed)


def _checked_key(key: str) -> str:
    if not (key.isascii() and key.isprintable() and key.strip() == key and 0 < len(key) <= KEY_LENGTH_MAX):
        raise InvalidInput("--key", f"must be 1 to {KEY_LENGTH_MAX} printable ASCII characters without spaces around them")
    return "key:" + key  # apart from those of refunds that a bank made


def _write(transaction: ShardTransaction, order: RefundOrder, key: str, number: int) -> Refund:
    invoice = store.invoice(transaction, order.invoice)
    if invoice is None:
        raise NotFound(f"invoice {order.shard}/{order.invoice}: is not there")
    store.lock_job(transaction, invoice.key)
    amount, currency, status = store.lock_invoice(transaction, order.invoice)
    before = store.by_key(transaction, order.invoice, key)
    if before is not None:
        return _same(before, order)
    payment = store.payment(transaction, invoice.key)
    if status != _PAID or payment is None:
        raise InvalidInput("INVOICE", "is not paid: only what was paid, and not taken back, can be refunded")
    left = amount - store.refunded(transaction, order.invoice)
    wanted = left if order.amount is None else order.amount
    if not 0 < wanted <= left:
        raise InvalidInput("--amount", f"is not within the {format_amount(left, currency)} that are left of it")
    refund = Refund(
        shard=order.shard,
        id=number,
        invoice=order.invoice,
        request_key=key,
        subscription=invoice.subscription,
        service=invoice.service,
        attempt_no=payment.attempt_no,
        provider=payment.provider,
        charge_ref=payment.charge_ref,
        amount=wanted,
        currency=currency,
        key=refund_key(order.shard, order.invoice, key),
        source=Source.OURS,
        status=RefundStatus.REQUESTED,
        provider_ref=None,
        code=None,
        checks=0,
    )
    store.insert(transaction, refund)
    acts.write(transaction, _act(order, refund, left))
    return refund


def _same(before: Refund, order: RefundOrder) -> Refund:
    if order.amount is not None and order.amount != before.amount:
        raise InvalidInput("--key", f"stands for a refund of {format_amount(before.amount, before.currency)}")
    return before


def _act(order: RefundOrder, refund: Refund, left: int) -> Act:
    return Act(
        actor=order.actor,
        act="invoice.refund",
        subscription=refund.subscription,
        subject=f"invoice:{order.invoice}",
        reason=order.reason,
        before={"left": left},
        after={"left": left - refund.amount, "refund": refund.reference, "amount": refund.amount, "currency": refund.currency},
    )
