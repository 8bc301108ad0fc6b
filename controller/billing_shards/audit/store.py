"""The audit's reads: of one shard in one snapshot, and of a database's fences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from billing_shards.audit.model import Attempt, Offender, Schedule
from billing_shards.billing.periods import Interval, Unit
from billing_shards.db import Database, queries, translated

_q = queries("audit")
_ROWS = 1000
_ACTIVE = (1, 2)  # active, past due


@contextmanager
def snapshot(database: Database) -> Iterator[Connection]:
    """A connection on which all reads see one moment; rows are fetched as they are read, never all at once."""
    with translated(database.name), database.engine.connect() as connection:
        streaming = connection.execution_options(isolation_level="REPEATABLE READ", yield_per=_ROWS)
        streaming.exec_driver_sql(_q.snapshot)
        yield streaming


def offenders(connection: Connection, rule: str, params: Mapping[str, Any]) -> Iterator[Offender]:
    """The rows of `params["shard"]` that break the rule of this name."""
    for row in connection.exec_driver_sql(getattr(_q, rule), dict(params)).mappings():
        yield Offender(rule=rule, where={"shard": params["shard"], **row})


def sizes(connection: Connection, shard: int) -> dict[str, int]:
    """How many rows each table has of a shard."""
    return dict(connection.exec_driver_sql(_q.sizes, {"shard": shard}).mappings().one())


def balances(connection: Connection, shard: int) -> dict[tuple[str, str], int]:
    """Debits less credits in minor units, by (currency, sort of account)."""
    rows = connection.exec_driver_sql(_q.balances, {"shard": shard})
    return {(currency, sort): int(balance) for sort, currency, balance in rows}


def schedules(connection: Connection, shard: int) -> Iterator[Schedule]:
    """When each subscription of the shard is to be invoiced next."""
    for row in connection.exec_driver_sql(_q.schedules, {"shard": shard}):
        yield Schedule(
            subscription=row[0],
            interval=Interval(unit=Unit(row[1]), count=row[2]),
            start=row[3],
            time_zone=row[4],
            active=row[5] in _ACTIVE and not row[9],
            anchor_day=row[8],
            next_period=row[6],
            next_invoice_at=row[7],
        )


def attempts(connection: Connection, shard: int, provider: str) -> Iterator[Attempt]:
    """The attempts made with a provider, in the order of (invoice, number)."""
    for row in connection.exec_driver_sql(_q.attempts, {"shard": shard, "provider": provider}):
        yield Attempt(
            invoice=row[0],
            number=row[1],
            provider_ref=row[2],
            amount=row[3],
            currency=row[4],
            outcome=row[5],
            finished_at=row[6],
        )


def server_time(database: Database) -> datetime:
    """The database's NOW(6), UTC."""
    with translated(database.name), database.engine.connect() as connection:
        now: datetime = connection.exec_driver_sql(_q.server_time).scalar_one()
        return now


def shards_with_rows(database: Database) -> list[tuple[str, int]]:
    """(table, shard) of every table of the database that has rows of the shard."""
    with translated(database.name), database.engine.connect() as connection:
        return [(row[0], row[1]) for row in connection.exec_driver_sql(_q.shards_with_rows)]
