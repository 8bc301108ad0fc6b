"""The queue's SQL: each function is one transaction on one shard, or one read of one database."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection

from billing_shards import telemetry
from billing_shards.db import Ids, Rows, queries
from billing_shards.jobs.model import Job, Lane, Status, clock
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

_q = queries("jobs")

FIRST = datetime(1970, 1, 1)  # noqa: DTZ001 - UTC and naive, as the database has it
"""Before anything was due."""
_TOKEN_BITS = 63  # tokens are random: no two claims of any process share one


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The first ready job of a shard's lane."""

    shard: int
    lane: Lane
    in_seconds: float
    """Until it falls due, by the server's clock; negative where it is due."""
    at: datetime = FIRST
    """When it falls due."""


class Claimed(NamedTuple):
    """What a claim took."""

    jobs: list[Job]
    more: bool
    """The lane has more that is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits in a shard's lane."""

    shard: int
    lane: Lane
    ready: int
    """Jobs that are due and not claimed."""
    oldest_due_at: datetime | None
    processing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """A job taken back from a lost worker."""

    id: int
    subscription: str
    invoice: int
    to_review: bool


def next_due(connection: Connection, shards: Collection[int]) -> list[Due]:
    """When the next ready job of each of the shards' lanes falls due; lanes without one are left out."""
    rows = connection.exec_driver_sql(_q.next_due, {"shards": tuple(shards)}).all()
    return [Due(shard=r[0], lane=Lane(r[1]), in_seconds=(r[2] - r[3]).total_seconds(), at=r[2]) for r in rows]


def backlog(connection: Connection, shards: Collection[int]) -> list[Backlog]:
    """What waits in each of the shards' lanes; lanes with nothing due and nothing claimed are left out."""
    found: defaultdict[tuple[int, int], dict[str, Any]] = defaultdict(dict)
    lanes = lanes_in_use(connection, shards)
    if not lanes:
        return []
    for shard, lane, status, count, first in connection.exec_driver_sql(_q.backlog, {"shards": tuple(shards), "lanes": lanes}):
        ready = {"ready": count, "oldest_due_at": first}
        found[shard, lane] |= ready if status == Status.READY else {"processing": count}
    nothing: dict[str, Any] = {"ready": 0, "oldest_due_at": None, "processing": 0}
    return [Backlog(shard=shard, lane=Lane(lane), **(nothing | parts)) for (shard, lane), parts in found.items()]


def lanes_in_use(connection: Connection, shards: Collection[int]) -> tuple[int, ...]:
    """Every lane that any of the shards has jobs in, those of services that the spec has no more included."""
    return tuple(connection.exec_driver_sql(_q.lanes_in_use, {"shards": tuple(shards)}).scalars())


def claim(
    router: ShardRouter, shard: int, lane: Lane, *, limit: int, lease_seconds: int, provider: str, since: datetime = FIRST
) -> Claimed:
    """Take up to `limit` due jobs under a lease of `lease_seconds`, opening an attempt at `provider` for each that has none open.

    None that was due before `since`: where somebody's snapshot is open, what was claimed before still lies at the head of the
    index, and each claim would read over it anew.

    One short transaction: candidates FOR UPDATE SKIP LOCKED, mark, attempt rows. Raises what `ShardRouter.run` raises.
    """
    token, claimed_at = secrets.randbits(_TOKEN_BITS), clock()
    taken: list[Job] = []
    more = False

    def body(transaction: ShardTransaction) -> list[Job]:
        nonlocal more
        # One more than is taken: whether another claim is worth its transaction.
        found = transaction.read(_q.claim_candidates, {"lane": int(lane), "limit": limit + 1, "since": since})
        more = len(found) > limit
        rows = [row[0].split("\t") for row in found[:limit]]
        taken[:] = []
        if rows:
            ids = [int(row[0]) for row in rows]
            mark = {"ids": Ids(ids), "token": token, "lease_seconds": lease_seconds}
            transaction.write(_q.claim, mark, table="billing_job", keys=[(job,) for job in ids])
            resumed, new = _open_already(transaction, rows), (0.0, provider, False)
            taken[:] = [_job(shard, lane, token, claimed_at, row, resumed.get(row[0], new)) for row in rows]
            _open_attempts(transaction, provider, [job for job in taken if not job.resumed])
        return taken

    def committed(connection: Connection) -> list[Job] | None:
        if not taken:
            return taken
        params = {"shard": shard, "ids": Ids(job.id for job in taken), "token": token}
        found = connection.exec_driver_sql(_q.claimed, params).scalar_one()
        return taken if found else None

    with telemetry.BATCH_SECONDS.labels("claim").time():
        return Claimed(router.run(shard, body, committed=committed), more)


def _open_already(transaction: ShardTransaction, rows: Sequence[Sequence[str]]) -> dict[str, tuple[float, str, bool]]:
    """Age and provider of the attempts that earlier claims opened, and whether they are to be canceled, by the job's id as
    `claim_candidates` has it.
    """
    open_attempts = tuple((int(row[0]), int(row[7])) for row in rows if row[8] != "0")
    if not open_attempts:
        return {}
    found = transaction.read(_q.open_already, {"attempts": open_attempts})
    return {str(row[0]): (float(row[1]), row[2], bool(row[3])) for row in found}


def _job(shard: int, lane: Lane, token: int, claimed_at: float, row: Sequence[str], attempt: tuple[float, str, bool]) -> Job:
    id_, subscription, invoice, amount, currency, payment_method, key, attempt_no, attempt_open, checks, grace_seconds = row
    resumed = attempt_open != "0"
    return Job(
        shard=shard,
        id=int(id_),
        lane=lane,
        subscription=subscription,
        invoice=int(invoice),
        amount=int(amount),
        currency=currency,
        payment_method=payment_method,
        provider=attempt[1],
        key=bytes.fromhex(key),
        attempt_no=int(attempt_no) if resumed else int(attempt_no) + 1,
        checks=int(checks),
        resumed=resumed,
        canceling=attempt[2],
        attempt_age=attempt[0],
        claimed_at=claimed_at,
        grace_seconds=int(grace_seconds),
        token=token,
    )


def _open_attempts(transaction: ShardTransaction, provider: str, jobs: Sequence[Job]) -> None:
    if not jobs:
        return
    params = {"provider": provider, "ids": Rows([job.id for job in jobs])}
    keys = [(job.id, job.attempt_no) for job in jobs]
    transaction.write(_q.open_attempts, params, table="payment_attempt", keys=keys)


def renew(router: ShardRouter, jobs: Iterable[Job], *, lease_seconds: int) -> int:
    """Lengthen the leases of `jobs` to `lease_seconds` from now, a transaction a shard; how many were still held."""
    return _for_held(router, jobs, _q.renew, {"lease_seconds": lease_seconds})


def release(router: ShardRouter, jobs: Iterable[Job]) -> int:
    """Give jobs back at once. Their attempts stay open: whoever claims them next resolves those first."""
    return _for_held(router, jobs, _q.release, {})


def _for_held(router: ShardRouter, jobs: Iterable[Job], query: str, params: dict[str, Any]) -> int:
    by_shard: defaultdict[int, list[Job]] = defaultdict(list)
    for job in jobs:
        by_shard[job.shard].append(job)
    found = 0
    for shard, held in by_shard.items():
        values = {**params, "held": held_rows(held)}
        keys = [(job.id,) for job in held]
        write = _writer(query, values, keys)
        # Run twice it does the same, so a lost answer to COMMIT needs no proof: it is simply run again.
        found += router.run(shard, write, committed=lambda _: None)
    return found


def _writer(query: str, values: dict[str, Any], keys: list[tuple[int]]) -> Callable[[ShardTransaction], int]:
    return lambda transaction: transaction.write(query, values, table="billing_job", keys=keys)


def cancel_waiting(transaction: ShardTransaction, jobs: Collection[int]) -> frozenset[int]:
    """Jobs that the transaction has made ready for a new attempt: those of them whose last one waited for the customer.

    Their attempt is open again, for its charge could still be completed beside the new one: whoever claims them has it canceled.
    """
    attempts = [(row[0], row[1]) for row in transaction.read(_q.waiting_charges, {"ids": tuple(jobs)})] if jobs else []
    waiting = frozenset(job for job, _ in attempts)
    if attempts:
        transaction.write(_q.open_again, {"ids": tuple(waiting)}, table="billing_job", keys=[(job,) for job in waiting])
        transaction.write(_q.to_cancel, {"attempts": tuple(attempts)}, table="payment_attempt", keys=attempts)
    return waiting


def held_rows(jobs: Iterable[Job]) -> Rows:
    """(id, token) of jobs, as the queries take them."""
    return Rows([(job.id, job.token) for job in jobs])


def expired_lanes(connection: Connection, shards: Collection[int]) -> list[tuple[int, Lane]]:
    """The shards, and their lanes, on which a worker was lost."""
    rows = connection.exec_driver_sql(_q.expired_lanes, {"shards": tuple(shards)})
    return [(shard, Lane(lane)) for shard, lane in rows]


def reap_in(
    transaction: ShardTransaction, lane: Lane, *, limit: int, jitter_seconds: float, lost_leases_max: int
) -> list[Reaped]:
    """Make jobs whose lease has ended ready again, after a jittered delay; those that lose too many workers go to review."""
    rows = transaction.read(_q.expired_leases, {"lane": int(lane), "limit": limit})
    reaped = [Reaped(id=row[0], subscription=row[2], invoice=row[3], to_review=row[1] + 1 >= lost_leases_max) for row in rows]
    for status in (Status.READY, Status.REVIEW):
        ids = tuple(job.id for job in reaped if job.to_review == (status is Status.REVIEW))
        if ids:
            params = {"ids": ids, "status": int(status), "jitter_seconds": jitter_seconds}
            transaction.write(_q.reap, params, table="billing_job", keys=[(job,) for job in ids])
    return reaped
