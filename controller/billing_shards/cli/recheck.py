"""`invoice recheck`: ask the provider whether the charge that paid an invoice still stands."""

from __future__ import annotations

import asyncio
import random

from billing_shards import process
from billing_shards.cli import invoice, output
from billing_shards.cli.codes import ExitCode
from billing_shards.cli.source import Source
from billing_shards.errors import InvalidInput, NotFound
from billing_shards.payments.model import Found
from billing_shards.payments.recheck import Charged, charged, take_back
from billing_shards.process import ShardSet


def run(source: Source, text: str, *, as_json: bool) -> int:
    """Ask, and reverse the payment where it was taken back. Raises `InvalidInput`, `NotFound`, `DatabaseError`s."""
    which = invoice.parse(text, source.spec.shard_count)
    with source.router(pool_size=1) as router:
        facts = invoice.read(router, which)
        if facts is None:
            raise NotFound(f"invoice {text}: is not on shard {which.shard}")
        paid_by = charged(router, which.shard, facts.invoice["id"])
        if paid_by is None:
            raise InvalidInput("INVOICE", "is not paid: there is no charge to ask about")
        found = asyncio.run(_ask(source, paid_by))
        reversed_ = take_back(router, source.spec, paid_by.attempt, found, draw=random.random())  # noqa: S311
    answer = type(found).__name__.lower()
    if as_json:
        output.print_json({"charge": str(paid_by.attempt), "provider": paid_by.provider, "answer": answer, "reversed": reversed_})
    else:
        output.print_line(f"charge {paid_by.attempt} at {paid_by.provider}: {answer}" + (", reversed" if reversed_ else ""))
    return ExitCode.OK


async def _ask(source: Source, paid_by: Charged) -> Found:
    providers = process.providers(ShardSet(name=source.name, spec=source.spec, secrets=source.secrets))
    try:
        gateway = providers.named(paid_by.provider)
        if gateway is None:
            raise InvalidInput("INVOICE", f"was paid through {paid_by.provider}, which the spec lists no more")
        return await gateway.find(str(paid_by.attempt))
    finally:
        await providers.close()
