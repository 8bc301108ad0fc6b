"""Has the customer acted? Looks at charges that wait for the customer: a provider may send no webhooks, and any may get lost.

A look settles nothing. Where the provider says that a charge waits no more, its job is made due with its attempt open, as the
webhook would have it, and whoever claims it asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from billing_shards.db import Rows, queries
from billing_shards.jobs.model import Lane, Status
from billing_shards.payments.decide import look_seconds
from billing_shards.payments.gateway import not_listed
from billing_shards.payments.model import AttemptOutcome, Declined, Found, Pending, Succeeded
from billing_shards.payments.providers import Providers
from billing_shards.payments.refunds.work import InLoop
from billing_shards.payments.webhooks import store
from billing_shards.payments.webhooks.model import AttemptReference
from billing_shards.settings import RetrySpec
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_q = queries("customers")
_log = structlog.get_logger(__name__)

_BATCH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An attempt whose charge waits for the customer."""

    attempt: AttemptReference
    provider: str


def look(
    router: ShardRouter, providers: Providers, in_loop: InLoop, database: str, shards: Collection[int], *, policy: RetrySpec
) -> bool:
    """Look at a batch of each of the database's lanes where that is due; whether there were any.

    Raises what `ShardRouter.run` raises; what was taken is looked at again at its next time.
    """
    with router.connect(database) as connection:
        due = due_lanes(connection, shards)
    found = False
    for shard, lane in due:
        taken = take(router, shard, lane, policy=policy)
        if taken is None:
            continue
        found = True
        answers = in_loop(ask(providers, taken))
        hurry(router, shard, [one.attempt for one, answer in zip(taken, answers, strict=True) if waits_no_more(answer)])
    return found


def due_lanes(connection: Connection, shards: Collection[int]) -> list[tuple[int, Lane]]:
    """The shards, and their lanes, with jobs of customers that are to be looked at."""
    rows = connection.exec_driver_sql(_q.due_lanes, {"shards": tuple(shards)})
    return [(shard, Lane(lane)) for shard, lane in rows]


def take(router: ShardRouter, shard: int, lane: Lane, *, policy: RetrySpec) -> list[Waiting] | None:
    """The charges of a lane whose look is due, each put off to its next one; None where no job was due.

    A job that waits for something else (another payment method) is put off for good.
    """

    def body(transaction: ShardTransaction) -> list[Waiting] | None:
        rows = transaction.read(_q.due, {"lane": int(lane), "limit": _BATCH})
        if not rows:
            return None
        put_off = [(row[0], look_seconds(row[3] + 1, policy) if row[5] else None, row[3] + 1) for row in rows]
        transaction.write(_q.put_off, {"rows": Rows(put_off)}, table="billing_job", keys=[(row[0],) for row in rows])
        return [
            Waiting(attempt=AttemptReference(shard=shard, invoice=row[1], attempt=row[2]), provider=row[4])
            for row in rows
            if row[5]
        ]

    # Run again after it took place it finds nothing due: one look is left out, and the next one follows.
    return router.run(shard, body, committed=lambda _: None)


async def ask(providers: Providers, waiting: Sequence[Waiting]) -> list[Found]:
    """What the providers say of each, all at once."""
    return await asyncio.gather(*(_find(providers, one) for one in waiting))


async def _find(providers: Providers, one: Waiting) -> Found:
    gateway = providers.named(one.provider)
    return not_listed(one.provider) if gateway is None else await gateway.find(str(one.attempt))


def waits_no_more(answer: Found) -> bool:
    """Whether the provider says that the customer has acted, or that the charge has ended otherwise."""
    return isinstance(answer, Succeeded | Declined | Pending)


def hurry(router: ShardRouter, shard: int, acted: Sequence[AttemptReference]) -> int:
    """Have the jobs of these attempts looked at by whoever claims them, now; how many still waited for the customer."""
    if not acted:
        return 0

    def body(transaction: ShardTransaction) -> int:
        cases = [case for case in store.lock_cases(transaction, acted).values() if _waits(case)]
        store.ask_jobs(transaction, (), cases)
        return len(cases)

    # Run again after it took place, it finds that they wait no more.
    count = router.run(shard, body, committed=lambda _: None)
    _log.info("customers_acted", shard=shard, jobs=count)
    return count


def _waits(case: store.Case) -> bool:
    state = case.state
    return state.is_last and state.job_status is Status.AWAITING_CUSTOMER and state.outcome is AttemptOutcome.ACTION_REQUIRED
