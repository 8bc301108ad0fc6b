"""`status`: where the shards are, and what waits on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection

from billing_shards.cli import output
from billing_shards.cli.codes import ExitCode, code_of
from billing_shards.cli.source import Source
from billing_shards.db import Database, queries, translated
from billing_shards.errors import BillingShardsError
from billing_shards.jobs.store import lanes_in_use
from billing_shards.shards import shardset
from billing_shards.shards.model import Owner, OwnerState
from billing_shards.shards.store import read_owners

_q = queries("inspect")

_COUNTS = ("due", "in_work", "later", "customer", "review", "not_invoiced", "unsent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A run of neighbouring shards in the same state on one database, and what waits on them."""

    first: int
    last: int
    database: str
    state: str
    oldest_due_seconds: float | None
    """By the database's clock."""
    due: int = 0
    in_work: int = 0
    later: int = 0
    """Ready jobs that are not due yet: renewals in the billing window, and retries."""
    customer: int = 0
    """Jobs that wait for the customer."""
    review: int = 0
    """Jobs that a person must look at."""
    not_invoiced: int = 0
    """Subscriptions of which a period has begun and is not invoiced."""
    unsent: int = 0
    """Events that are not published."""


def joined(shards: Iterable[Waiting]) -> list[Waiting]:
    """Neighbours of the same state and database as one."""
    numbered = enumerate(sorted(shards, key=lambda one: one.first))
    runs = groupby(numbered, key=lambda pair: (pair[1].first - pair[0], pair[1].database, pair[1].state))
    return [_sum([one for _, one in run]) for _, run in runs]


def _sum(run: Sequence[Waiting]) -> Waiting:
    ages = [one.oldest_due_seconds for one in run if one.oldest_due_seconds is not None]
    return Waiting(
        first=run[0].first,
        last=run[-1].last,
        database=run[0].database,
        state=run[0].state,
        oldest_due_seconds=max(ages, default=None),
        **{name: sum(getattr(one, name) for one in run) for name in _COUNTS},
    )


def show(source: Source, *, each: bool, as_json: bool) -> int:
    """Print what every database that is reached has; those that are not are errors, and the exit code says so."""
    found: list[Waiting] = []
    failed: dict[str, str] = {}
    code = ExitCode.OK
    for database in shardset.open_databases(source.spec, source.secrets, pool_size=1).values():
        try:
            found += _read(source, database)
        except BillingShardsError as error:
            failed[database.name] = str(error)
            code = code_of(error)
        database.close()
    owned = {one.first for one in found if one.state != OwnerState.MOVED.name.lower()}
    unowned = [shard for shard in range(source.spec.shard_count) if shard not in owned]
    if as_json:
        output.print_json({"shard_set": source.name, "shards": list(map(asdict, found)), "unowned": unowned, "errors": failed})
        return code
    _print(found if each else joined(found))
    for text in failed.values():
        output.print_error(text)
    if unowned and not failed:
        output.print_error(f"shards without an owner: {output.cell(unowned)}")
        code = ExitCode.DATABASE
    return code


def _read(source: Source, database: Database) -> list[Waiting]:
    shardset.check_database(source.name, source.spec, database)
    with translated(database.name), database.engine.connect() as connection:
        owners = read_owners(connection)
        if not owners:
            return []
        now: datetime = connection.exec_driver_sql(_q.now).scalar_one()
        counts = _counts(connection, tuple(owners))
        return [_waiting(database.name, owner, counts.get(owner.shard, {}), now) for owner in owners.values()]


def _counts(connection: Connection, shards: tuple[int, ...]) -> dict[int, dict[str, Any]]:
    counts: dict[int, dict[str, Any]] = {}
    params = {"shards": shards, "lanes": lanes_in_use(connection, shards) or (0,)}
    for query in (_q.jobs, _q.not_invoiced, _q.unsent):
        for row in connection.exec_driver_sql(query, params).mappings():
            counts.setdefault(row["shard_id"], {}).update(row)
    return counts


def _waiting(database: str, owner: Owner, counts: Mapping[str, Any], now: datetime) -> Waiting:
    oldest = counts.get("oldest_due")
    return Waiting(
        first=owner.shard,
        last=owner.shard,
        database=database,
        state=owner.state.name.lower(),
        oldest_due_seconds=None if oldest is None else (now - oldest).total_seconds(),
        **{name: int(counts.get(name, 0)) for name in _COUNTS},
    )


def _print(rows: Sequence[Waiting]) -> None:
    columns = ["shards", "database", "state", "due", "oldest due", *(name.replace("_", " ") for name in _COUNTS[1:])]
    lines = [
        (
            str(row.first) if row.first == row.last else f"{row.first}-{row.last}",
            row.database,
            row.state,
            row.due,
            None if row.oldest_due_seconds is None else output.age(row.oldest_due_seconds),
            *(getattr(row, name) for name in _COUNTS[1:]),
        )
        for row in rows
    ]
    output.print_table(columns, lines, right=["due", "oldest due", *(name.replace("_", " ") for name in _COUNTS[1:])])
