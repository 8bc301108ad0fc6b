"""`schema upgrade` and `schema status`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from billing_shards import schema
from billing_shards.cli import output
from billing_shards.cli.codes import ExitCode, code_of
from billing_shards.cli.source import Source
from billing_shards.db import Database, translated
from billing_shards.errors import BillingShardsError, InvalidInput
from billing_shards.shards import shardset
from billing_shards.shards.model import Installation
from billing_shards.shards.store import read_installation


def upgrade(source: Source, only: Sequence[str] | None, *, place: bool, as_json: bool) -> int:
    """Upgrade the databases one after the other; one that fails does not keep the others back."""
    databases = _chosen(source, only)
    rows: list[dict[str, Any]] = []
    code = ExitCode.OK
    try:
        for database in databases.values():
            try:
                rows.append(_upgrade(source, database))
            except BillingShardsError as error:
                code = code_of(error)
                output.print_error(str(error))
        if place and not only and code is ExitCode.OK:
            shardset.set_up(source.name, source.spec, databases)
    finally:
        for database in databases.values():
            database.close()
    _print(rows, ("database", "was", "revision"), as_json=as_json)
    return code


def _chosen(source: Source, only: Sequence[str] | None) -> dict[str, Database]:
    known = [database.name for database in source.spec.databases]
    for name in only or ():
        if name not in known:
            raise InvalidInput("--database", f"{name!r} is not in spec.databases ({', '.join(known)})")
    databases = shardset.open_databases(source.spec, source.secrets, role="schema", pool_size=2)
    return {name: database for name, database in databases.items() if not only or name in only}


def _upgrade(source: Source, database: Database) -> dict[str, Any]:
    was = schema.current_revision(database)
    revision = schema.upgrade(database)
    application = shardset.credentials(source.spec.database(database.name), source.secrets)
    schema.grant_application(database, application)
    return {"database": database.name, "was": was or "empty", "revision": revision}


def _installation(database: Database) -> Installation | None:
    with translated(database.name), database.engine.connect() as connection:
        return read_installation(connection)


def status(source: Source, *, as_json: bool) -> int:
    """One row a database; 3 where one of them cannot be used."""
    databases = shardset.open_databases(source.spec, source.secrets, pool_size=1)
    rows: list[dict[str, Any]] = []
    code = ExitCode.OK
    for database in databases.values():
        row, outcome = _state(source, database)
        rows.append(row)
        code = max(code, outcome)
        database.close()
    _print(rows, ("database", "revision", "shard_set", "shards", "state"), as_json=as_json)
    return code


def _state(source: Source, database: Database) -> tuple[dict[str, Any], ExitCode]:
    row: dict[str, Any] = {"database": database.name, "revision": None, "shard_set": None, "shards": None, "state": "usable"}
    try:
        row["revision"] = schema.current_revision(database)
        schema.check(database)
        installation = _installation(database)
        if installation is not None:
            row.update(shard_set=installation.shard_set, shards=installation.shard_count)
        shardset.check_database(source.name, source.spec, database)
    except BillingShardsError as error:
        row["state"] = str(error).removeprefix(f"database {database.name}: ")
        return row, code_of(error)
    return row, ExitCode.OK


def _print(rows: Collection[dict[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        output.print_json({"databases": list(rows)})
    else:
        output.print_table([name.replace("_", " ") for name in columns], [[row[name] for name in columns] for row in rows])
