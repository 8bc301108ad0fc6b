"""`refund`: give back money of a paid invoice. `invoice close-refund`: say what became of one."""

from __future__ import annotations

import uuid

from billing_shards.accounts.money import format_amount, parse_amount
from billing_shards.cli import invoice, output
from billing_shards.cli.acting import actor as acting
from billing_shards.cli.codes import ExitCode
from billing_shards.cli.source import Source
from billing_shards.errors import InvalidInput, NotFound
from billing_shards.payments.refunds.close import close_in_review
from billing_shards.payments.refunds.model import Refund
from billing_shards.payments.refunds.request import RefundOrder, request
from billing_shards.payments.webhooks.model import RefundReference, parse_reference


def run(source: Source, text: str, *, amount: str | None, key: str | None, actor: str | None, reason: str, as_json: bool) -> int:
    """Write down the refund and show it; the housekeeper sends it. Raises what `request` raises, and `DatabaseError`s."""
    which = invoice.parse(text, source.spec.shard_count)
    who = acting(actor)
    chosen = key or str(uuid.uuid4())
    with source.router(pool_size=1) as router:
        facts = invoice.read(router, which)
        if facts is None:
            raise NotFound(f"invoice {text}: is not on shard {which.shard}")
        order = RefundOrder(
            shard=which.shard,
            invoice=facts.invoice["id"],
            amount=None if amount is None else parse_amount(amount, facts.invoice["currency"], field="--amount"),
            key=chosen,
            actor=who,
            reason=reason,
        )
        if key is None:  # told before: whoever gets no answer asks again with it
            output.print_note(f"key {chosen}")
        refund = request(router, order)
    _print(refund, as_json=as_json)
    return ExitCode.OK


def close(source: Source, text: str, *, made: str | None, not_made: bool, actor: str | None, reason: str, as_json: bool) -> int:
    """Close a refund in review by a person's word, and show it. Raises what `close_in_review` raises, and `DatabaseError`s."""
    reference = parse_reference(text, source.spec.shard_count)
    if not isinstance(reference, RefundReference):
        raise InvalidInput("REFUND", f"{text} names no refund: as invoice show has it, SHARD/INVOICE/rNUMBER")
    if not_made == (made is not None):
        raise InvalidInput("--made", "or --not-made: one of them says what became of it")
    who = acting(actor)
    with source.router(pool_size=1) as router:
        refund = close_in_review(router, reference, made, policy=source.spec.retry, actor=who, reason=reason)
    _print(refund, as_json=as_json)
    return ExitCode.OK


def _print(refund: Refund, *, as_json: bool) -> None:
    if as_json:
        output.print_json(document(refund))
    else:
        money = format_amount(refund.amount, refund.currency)
        output.print_line(f"refund {refund.reference}: {money} by {refund.provider}, {refund.status.name.lower()}", "bold")


def document(refund: Refund) -> dict[str, object]:
    """The refund as JSON; `amount` in minor units."""
    return {
        "refund": refund.reference,
        "invoice": f"{refund.shard}/{refund.invoice}",
        "key": refund.request_key.removeprefix("key:"),
        "amount": refund.amount,
        "currency": refund.currency,
        "provider": refund.provider,
        "status": refund.status.name.lower(),
        "code": refund.code,
    }
