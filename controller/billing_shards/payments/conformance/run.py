"""Runs the rules against a provider, one after the other, so that what one finds is not another's doing."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import aiohttp

from billing_shards.payments.conformance import cancels, charges, refunds, webhooks
from billing_shards.payments.conformance.client import Client, session
from billing_shards.payments.conformance.model import Broken, Result, Rule, Trial, Verdict


async def check(url: str, api_key: str | None, trial: Trial) -> AsyncGenerator[Result, None]:
    """Try every rule; a result each, as it is known. It makes some dozens of charges of `trial.amount` each."""
    async with session() as opened:
        client = Client(url.rstrip("/"), api_key, opened)
        for rule in rules(api_key=api_key is not None):
            yield await _result(rule, client, trial)


def rules(*, api_key: bool) -> list[Rule]:
    """Every rule, in the order in which they are tried. `api_key`: whether the provider asks for one."""
    return [*charges.rules(api_key=api_key), *cancels.rules(), *refunds.rules(), *webhooks.rules()]


async def _result(rule: Rule, client: Client, trial: Trial) -> Result:
    if not rule.needs(trial):
        return Result(rule=rule.name, says=rule.says, verdict=Verdict.SKIPPED, detail=f"needs {rule.wants}")
    try:
        await rule.check(client, trial)
    except Broken as broken:
        return Result(rule=rule.name, says=rule.says, verdict=Verdict.BROKEN, detail=str(broken))
    except (aiohttp.ClientError, OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        # What came was so unlike the protocol that reading it failed.
        return Result(rule=rule.name, says=rule.says, verdict=Verdict.BROKEN, detail=f"{type(error).__name__}: {error}")
    return Result(rule=rule.name, says=rule.says, verdict=Verdict.KEPT)
