"""The provider's state in SQLite: charges, idempotency keys, faults met, counters and settings.

Small reads by key run on the event loop (tens of microseconds); whole-table reads open a connection of their own in a
thread; writes go through the group writer.
"""

import asyncio
import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any

from hack.fake_gateway.model import Fault, KeyRecord
from hack.fake_gateway.writer import GroupWriter, Statement, connect

SCHEMA = Path(__file__).with_name("schema.sql")

_SAVE_CHARGE = """
INSERT INTO charges (id, ref_group, document, settles_at, settled)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?)
"""
_SAVE_KEY = """
REPLACE INTO idempotency_keys (key, fingerprint, http_status, body, created, generation)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?)
"""
_SAVE_FAULT = """
INSERT INTO faults (key, generation, kind, times)
SELECT value ->> 0, value ->> 1, value ->> 2, 1 FROM json_each(?) WHERE true
ON CONFLICT (key, generation, kind) DO UPDATE SET times = times + 1
"""
_SAVE_COUNTER = "REPLACE INTO counters (name, value) SELECT value ->> 0, value ->> 1 FROM json_each(?)"
_SAVE_SETTING = "REPLACE INTO settings (name, value) SELECT value ->> 0, value ->> 1 FROM json_each(?)"
_SETTLE = """
UPDATE charges SET document = settled, settled = NULL, settles_at = NULL
WHERE settles_at <= (SELECT MAX(value ->> 0) FROM json_each(?))
"""
_CLEAR = tuple(f"DELETE FROM {table} WHERE json_valid(?)" for table in ("charges", "idempotency_keys", "faults", "counters"))
_FIND_KEY = """
SELECT fingerprint, http_status, body, created, generation FROM idempotency_keys WHERE key = ?
"""
_DECLINES_OF_GROUP = """
SELECT COUNT(*) FROM charges WHERE ref_group = ? AND status = 'failed' AND payment_method = ?
"""
_DOUBLE_GROUPS = """
SELECT ref_group FROM charges WHERE status = 'succeeded' GROUP BY ref_group HAVING COUNT(*) > 1 ORDER BY ref_group
"""
_PAGE_OF_GROUPS = """
SELECT ref_group FROM charges
WHERE (:text = '' OR instr(reference, :text) OR instr(payment_method, :text) OR id = :text)
GROUP BY ref_group
HAVING (:status = '' OR SUM(status = :status)) AND (NOT :only_double OR SUM(status = 'succeeded') > 1)
ORDER BY SUM(status = 'succeeded') > 1 DESC, MAX(seq) DESC
LIMIT :limit OFFSET :offset
"""
_CHARGES_OF_GROUPS = """
SELECT ref_group, document FROM charges WHERE ref_group IN (SELECT value FROM json_each(?)) ORDER BY seq
"""
_EXPORT_ROWS = 2000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewCharge:
    """A charge to be kept; `settles_at` (seconds since 1970) and `settled` are for pending ones."""

    charge_id: str
    group: str
    document: str
    settles_at: float | None = None
    settled: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All charges of one reference group, oldest first."""

    name: str
    charges: list[dict[str, Any]]

    @property
    def succeeded(self) -> int:
        return sum(charge["status"] == "succeeded" for charge in self.charges)


class Store:
    """Opens or creates the state in one file (and SQLite's two beside it). Made inside the event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        connection = connect(path)
        connection.executescript(SCHEMA.read_text())
        self._writer = GroupWriter(connection)
        self._reader = connect(path, query_only=True)
        self._next_settlement = self._read_next_settlement()

    async def close(self) -> None:
        await self._writer.close()
        self._reader.close()

    def find_key(self, key: str) -> KeyRecord | None:
        row = self._reader.execute(_FIND_KEY, (key,)).fetchone()
        if row is None:
            return None
        fingerprint, http_status, body, created, generation = row
        return KeyRecord(fingerprint=fingerprint, http_status=http_status, body=body, created=created, generation=generation)

    def faults_seen(self, key: str, generation: int) -> dict[Fault, int]:
        rows = self._reader.execute("SELECT kind, times FROM faults WHERE key = ? AND generation = ?", (key, generation))
        return {Fault(kind): times for kind, times in rows}

    def declines_of_group(self, group: str, payment_method: str) -> int:
        return int(self._reader.execute(_DECLINES_OF_GROUP, (group, payment_method)).fetchone()[0])

    async def record_fault(self, key: str, generation: int, fault: Fault) -> None:
        await self._writer.write((_SAVE_FAULT, (key, generation, fault)))

    async def save(self, key: str, record: KeyRecord, charge: NewCharge | None, fault: Fault | None) -> None:
        """A key's answer, the charge behind it and the fault on the way, in one transaction."""
        statements: list[Statement] = []
        if charge is not None:
            row = (charge.charge_id, charge.group, charge.document, charge.settles_at, charge.settled)
            statements.append((_SAVE_CHARGE, row))
        answer = (record.fingerprint, record.http_status, record.body, record.created, record.generation)
        statements.append((_SAVE_KEY, (key, *answer)))
        if fault is not None:
            statements.append((_SAVE_FAULT, (key, record.generation, fault)))
        await self._writer.write(*statements)
        if charge is not None and charge.settles_at is not None:
            self._next_settlement = min(charge.settles_at, self._next_settlement)

    async def settle(self, now: float) -> None:
        """Settles the pending charges whose time has come; free where there are none."""
        if self._next_settlement <= now:
            await self._writer.write((_SETTLE, (now,)))
            self._next_settlement = self._read_next_settlement()

    def charge(self, charge_id: str) -> str | None:
        row = self._reader.execute("SELECT document FROM charges WHERE id = ?", (charge_id,)).fetchone()
        return row[0] if row else None

    def charges_of_reference(self, reference: str, limit: int) -> list[str]:
        """Newest first."""
        sql = "SELECT document FROM charges WHERE reference = ? ORDER BY seq DESC LIMIT ?"
        return [row[0] for row in self._reader.execute(sql, (reference, limit))]

    def charges_after(self, charge_id: str | None, limit: int) -> list[str] | None:
        """In the order of creation; None where there is no such charge to start after."""
        seq = 0
        if charge_id is not None:
            row = self._reader.execute("SELECT seq FROM charges WHERE id = ?", (charge_id,)).fetchone()
            if row is None:
                return None
            seq = row[0]
        sql = "SELECT document FROM charges WHERE seq > ? ORDER BY seq LIMIT ?"
        return [row[0] for row in self._reader.execute(sql, (seq, limit))]

    async def export(self) -> AsyncGenerator[bytes]:
        """All charges as lines of JSON, in the order of creation, as of one moment."""
        with self._reading() as connection:
            rows = connection.execute("SELECT document FROM charges ORDER BY seq")
            while chunk := await asyncio.to_thread(rows.fetchmany, _EXPORT_ROWS):
                yield "".join(f"{document}\n" for (document,) in chunk).encode()

    async def totals(self) -> dict[str, Any]:
        return await asyncio.to_thread(self._totals)

    async def page_of_groups(self, *, text: str, status: str, only_double: bool, limit: int, offset: int) -> list[Group]:
        """Groups with a double charge first, then the latest first; the filters hold for any charge of a group."""
        values = {"text": text, "status": status, "only_double": only_double, "limit": limit, "offset": offset}
        return await asyncio.to_thread(self._page_of_groups, values)

    def setting(self, name: str) -> str | None:
        row = self._reader.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    async def save_setting(self, name: str, value: str) -> None:
        await self._writer.write((_SAVE_SETTING, (name, value)))

    def counters(self) -> dict[str, int]:
        return dict(self._reader.execute("SELECT name, value FROM counters"))

    async def save_counters(self, counters: Mapping[str, int]) -> None:
        await self._writer.write(*[(_SAVE_COUNTER, item) for item in counters.items()])

    async def clear(self) -> None:
        """Forgets everything but the settings."""
        await self._writer.write(*[(sql, ()) for sql in _CLEAR])
        self._next_settlement = self._read_next_settlement()

    def _read_next_settlement(self) -> float:
        row = self._reader.execute("SELECT MIN(settles_at) FROM charges WHERE settles_at IS NOT NULL").fetchone()
        return float("inf") if row[0] is None else float(row[0])

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(connect(self._path, query_only=True)) as connection:
            yield connection

    def _totals(self) -> dict[str, Any]:
        with self._reading() as connection:
            connection.execute("BEGIN")  # all counts as of one moment
            by_status = connection.execute("SELECT status, COUNT(*) FROM charges GROUP BY status").fetchall()
            by_currency = connection.execute(
                "SELECT currency, COUNT(*), SUM(amount) FROM charges WHERE status = 'succeeded' GROUP BY currency"
            ).fetchall()
            faults = connection.execute("SELECT kind, SUM(times) FROM faults GROUP BY kind").fetchall()
            doubles = [row[0] for row in connection.execute(_DOUBLE_GROUPS)]
        return {
            "charges": dict(by_status),
            "succeeded_by_currency": {name: {"count": count, "amount": total} for name, count, total in by_currency},
            "faults": dict(faults),
            "double_charges": doubles,
        }

    def _page_of_groups(self, values: Mapping[str, Any]) -> list[Group]:
        with self._reading() as connection:
            names = [row[0] for row in connection.execute(_PAGE_OF_GROUPS, values)]
            rows = connection.execute(_CHARGES_OF_GROUPS, (json.dumps(names),)).fetchall()
        groups = {name: Group(name=name, charges=[]) for name in names}
        for name, document in rows:
            groups[name].charges.append(json.loads(document))
        return list(groups.values())
