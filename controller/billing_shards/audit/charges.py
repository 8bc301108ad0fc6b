"""The provider's list of charges: read from lines of JSON, and kept aside on disk so that its length does not matter.

The list comes in the provider's order and is compared shard by shard, in the order of our references; a file of SQLite sorts it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from billing_shards.audit.model import ProviderCharge
from billing_shards.errors import InvalidInput

Row = tuple[Any, ...]

SUCCEEDED = "succeeded"
_REFERENCE = re.compile(r"(0|[1-9][0-9]{0,4})/([1-9][0-9]{0,17})/([1-9][0-9]{0,4})")
_BATCH = 5000

_TABLE = """
CREATE TABLE charge (
  id TEXT, shard INTEGER, invoice INTEGER, attempt INTEGER, reference TEXT, status TEXT, amount INTEGER, currency TEXT
)
"""
_INSERT = "INSERT INTO charge VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_LISTED_TWICE = "SELECT id FROM charge GROUP BY id HAVING COUNT(*) > 1 LIMIT 1"
_COUNT = "SELECT COUNT(*) FROM charge WHERE status = ?"
_OF_SHARD = """
SELECT id, reference, status, amount, currency FROM charge WHERE shard IS ? AND status = ? ORDER BY invoice, attempt, id
"""


def read_charges(lines: Iterable[str | bytes]) -> Iterator[ProviderCharge]:
    """Parse one JSON object a line. Raises `InvalidInput` that names line, field and reason; other fields are ignored."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _charge(f"provider's charges, line {number}", line)


def _charge(place: str, line: str | bytes) -> ProviderCharge:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(place, "is not JSON") from error
    if not isinstance(document, dict):
        raise InvalidInput(place, "is not a JSON object")
    amount = document.get("amount")
    if type(amount) is not int or not 0 < amount < 2**63:
        raise InvalidInput(f"{place}: amount", "must be a whole number of minor units above 0")
    texts = {field: _text(place, document, field) for field in ("id", "reference", "status", "currency")}
    return ProviderCharge(amount=amount, **texts)


def _text(place: str, document: dict[str, Any], field: str) -> str:
    value = document.get(field)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{place}: {field}", "must be text that is not empty")
    return value


class ChargeList:
    """The list, sorted on disk. Safe to read from several threads."""

    def __init__(self, path: Path, charges: Iterable[ProviderCharge], shard_count: int) -> None:
        """Write the list to a new file. Raises `InvalidInput` where a charge is listed twice, or where there is no room."""
        self._path = path
        rows = (_row(charge, shard_count) for charge in charges)
        try:
            with closing(sqlite3.connect(path)) as connection:
                self.succeeded = _fill(connection, rows)
        except sqlite3.OperationalError as error:
            raise InvalidInput("provider's charges", f"cannot be kept in {path.parent} ({error}): set TMPDIR") from error

    def of_shard(self, shard: int | None) -> Iterator[ProviderCharge]:
        """Succeeded charges in the order of (invoice, attempt); of None: those whose reference is none of ours."""
        with closing(sqlite3.connect(self._path)) as connection:
            for row in connection.execute(_OF_SHARD, (shard, SUCCEEDED)):
                yield ProviderCharge(id=row[0], reference=row[1], status=row[2], amount=row[3], currency=row[4])


def _fill(connection: sqlite3.Connection, rows: Iterator[Row]) -> int:
    """The number of succeeded charges."""
    connection.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {_TABLE}")
    while batch := list(islice(rows, _BATCH)):
        connection.executemany(_INSERT, batch)
    connection.execute("CREATE INDEX by_reference ON charge (shard, status, invoice, attempt)")
    connection.commit()
    twice = connection.execute(_LISTED_TWICE).fetchone()
    if twice is not None:
        raise InvalidInput("provider's charges: id", f"{twice[0]!r} is listed twice")
    succeeded: int = connection.execute(_COUNT, (SUCCEEDED,)).fetchone()[0]
    return succeeded


def _row(charge: ProviderCharge, shard_count: int) -> Row:
    match = _REFERENCE.fullmatch(charge.reference)
    place: tuple[int | None, ...] = (None, None, None)
    if match is not None and int(match[1]) < shard_count:
        place = tuple(map(int, match.groups()))
    return (charge.id, *place, charge.reference, charge.status, charge.amount, charge.currency)
