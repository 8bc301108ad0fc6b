"""The provider's state in SQLite: charges, idempotency keys, faults met, counters and settings.

Small reads by key run on the event loop (tens of microseconds); whole-table reads open a connection of their own in a
thread; writes go through the group writer.
"""

import asyncio
import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hack.fake_gateway import decide
from hack.fake_gateway.model import Event, Fault, KeyRecord
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
_SAVE_REFUND = """
INSERT INTO refunds (id, document, settles_at, settled)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?)
"""
_SAVE_EVENT = """
INSERT OR IGNORE INTO events (id, kind, subject, created)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?)
"""
# Only what still is as it was read is changed, and told: of two changes of one thing at once exactly one happens.
_CHANGE = """
UPDATE {table} SET document = entry.value ->> 2, settled = NULL, settles_at = NULL
FROM json_each(?) AS entry WHERE {table}.id = entry.value ->> 0 AND {table}.document = entry.value ->> 1
"""
_TELL_CHANGE = """
INSERT OR IGNORE INTO events (id, kind, subject, created)
SELECT value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?) AS entry
WHERE EXISTS (SELECT * FROM {table} WHERE {table}.id = entry.value ->> 0 AND {table}.document = entry.value ->> 3)
"""
_DELIVERED = """
UPDATE events SET delivered = entry.value ->> 1 FROM json_each(?) AS entry WHERE events.id = entry.value ->> 0
"""
_TABLES = ("charges", "refunds", "events", "idempotency_keys", "faults", "counters")
_CLEAR = tuple(f"DELETE FROM {table} WHERE json_valid(?)" for table in _TABLES)
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
class NewRefund:
    """A refund to be kept; `settles_at` and `settled` as for a charge."""

    refund_id: str
    document: str
    settles_at: float | None = None
    settled: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What one request made."""

    charge: NewCharge | None = None
    refund: NewRefund | None = None
    event: Event | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All charges of one reference group, oldest first."""

    name: str
    charges: list[dict[str, Any]]

    @property
    def succeeded(self) -> int:
        return sum(charge["status"] == "succeeded" for charge in self.charges)


def event_of(subject_id: str, kind: str, document: str, created: float) -> Event:
    """What is told of a charge or a refund (`kind`) as it now is."""
    status = json.loads(document)["status"]
    return Event(event_id=decide.event_id(subject_id, status), kind=f"{kind}.{status}", subject=document, created=created)


def _saved(event: Event) -> Statement:
    return _SAVE_EVENT, (event.event_id, event.kind, event.subject, event.created)


def _changed(kind: str, subject_id: str, before: str, after: str, told: float | None) -> list[Statement]:
    """A charge or refund (`kind`) becomes `after`; `told`: when it did, for its event."""
    table = f"{kind}s"
    change = (_CHANGE.format(table=table), (subject_id, before, after))
    if told is None:
        return [change]
    event = event_of(subject_id, kind, after, told)
    row = (subject_id, event.event_id, event.kind, event.subject, event.created)
    return [change, (_TELL_CHANGE.format(table=table), row)]


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

    async def save(self, key: str, record: KeyRecord, made: Made, fault: Fault | None, *, tell: bool) -> None:
        """A key's answer, what is behind it and the fault on the way, in one transaction; `tell`: its event as well."""
        statements: list[Statement] = []
        if (charge := made.charge) is not None:
            row = (charge.charge_id, charge.group, charge.document, charge.settles_at, charge.settled)
            statements.append((_SAVE_CHARGE, row))
        if (refund := made.refund) is not None:
            statements.append((_SAVE_REFUND, (refund.refund_id, refund.document, refund.settles_at, refund.settled)))
        if made.event is not None and tell:
            statements.append(_saved(made.event))
        answer = (record.fingerprint, record.http_status, record.body, record.created, record.generation)
        statements.append((_SAVE_KEY, (key, *answer)))
        if fault is not None:
            statements.append((_SAVE_FAULT, (key, record.generation, fault)))
        await self._writer.write(*statements)
        for unsettled in (made.charge, made.refund):
            if unsettled is not None and unsettled.settles_at is not None:
                self._next_settlement = min(unsettled.settles_at, self._next_settlement)

    async def settle(self, now: float, *, tell: bool) -> None:
        """Settles the charges and refunds whose time has come; free where there are none. `tell`: with an event for each."""
        if self._next_settlement > now:
            return
        statements: list[Statement] = []
        for kind in ("charge", "refund"):
            due = f"SELECT id, document, settled, settles_at FROM {kind}s WHERE settles_at <= ? ORDER BY settles_at"
            for subject_id, before, settled, settles_at in self._reader.execute(due, (now,)):
                statements += _changed(kind, subject_id, before, settled, settles_at if tell else None)
        await self._writer.write(*statements)
        self._next_settlement = self._read_next_settlement()

    async def change_charge(
        self, charge_id: str, before: str, after: str, *, told: float | None, fault: Fault | None = None
    ) -> str | None:
        """Make `after` of it, if it still is as `before`, in one transaction with its event (`told`: when) and the fault met.

        Returns what it then is; None where it is gone.
        """
        statements = [] if after == before else _changed("charge", charge_id, before, after, told)
        if fault is not None:
            statements.append((_SAVE_FAULT, (charge_id, 0, fault)))
        await self._writer.write(*statements)
        self._next_settlement = self._read_next_settlement()
        return self.charge(charge_id)

    def refunded(self, charge_id: str, *, besides: Collection[str]) -> int:
        """Minor units that were given back of a charge, or are on their way, by other refunds than these."""
        sql = (
            "SELECT COALESCE(SUM(amount), 0) FROM refunds"
            " WHERE charge = ? AND status <> 'failed' AND id NOT IN (SELECT value FROM json_each(?))"
        )
        return int(self._reader.execute(sql, (charge_id, json.dumps(list(besides)))).fetchone()[0])

    def refund(self, refund_id: str) -> str | None:
        row = self._reader.execute("SELECT document FROM refunds WHERE id = ?", (refund_id,)).fetchone()
        return row[0] if row else None

    def refunds_of(self, column: str, value: str) -> list[str]:
        """By `charge` or `reference`, newest first."""
        sql = f"SELECT document FROM refunds WHERE {column} = ? ORDER BY seq DESC"
        return [row[0] for row in self._reader.execute(sql, (value,))]

    def refunds_after(self, refund_id: str | None, limit: int) -> list[str] | None:
        """As `charges_after`."""
        return self._after("refunds", refund_id, limit)

    def events_after(self, seq: int) -> list[tuple[int, Event]]:
        """The events that nobody has accepted yet, in the order in which they happened."""
        sql = "SELECT seq, id, kind, subject, created FROM events WHERE seq > ? AND delivered IS NULL ORDER BY seq"
        return [
            (number, Event(event_id=event_id, kind=kind, subject=subject, created=created))
            for number, event_id, kind, subject, created in self._reader.execute(sql, (seq,))
        ]

    def event_counts(self) -> dict[str, int]:
        total, delivered = self._reader.execute("SELECT COUNT(*), COUNT(delivered) FROM events").fetchone()
        return {"told": total, "waiting": total - delivered}

    async def mark_delivered(self, event_id: str, now: float) -> None:
        await self._writer.write((_DELIVERED, (event_id, now)))

    def charge(self, charge_id: str) -> str | None:
        row = self._reader.execute("SELECT document FROM charges WHERE id = ?", (charge_id,)).fetchone()
        return row[0] if row else None

    def charges_of_reference(self, reference: str, limit: int) -> list[str]:
        """Newest first."""
        sql = "SELECT document FROM charges WHERE reference = ? ORDER BY seq DESC LIMIT ?"
        return [row[0] for row in self._reader.execute(sql, (reference, limit))]

    def newest_charges(self, prefix: str, customer: str | None, before: str | None, limit: int) -> list[str]:
        """Newest first, of one kind (`prefix` of their ids) and customer; from the one older than `before`."""
        sql = """
SELECT document FROM charges
WHERE substr(id, 1, length(:prefix)) = :prefix AND (:customer IS NULL OR json_extract(document, '$.customer') = :customer)
AND (:before IS NULL OR seq < (SELECT seq FROM charges WHERE id = :before))
ORDER BY seq DESC LIMIT :limit
"""
        values = {"prefix": prefix, "customer": customer, "before": before, "limit": limit}
        return [row[0] for row in self._reader.execute(sql, values)]

    def charges_after(self, charge_id: str | None, limit: int) -> list[str] | None:
        """In the order of creation; None where there is no such charge to start after."""
        return self._after("charges", charge_id, limit)

    def _after(self, table: str, item_id: str | None, limit: int) -> list[str] | None:
        seq = 0
        if item_id is not None:
            row = self._reader.execute(f"SELECT seq FROM {table} WHERE id = ?", (item_id,)).fetchone()
            if row is None:
                return None
            seq = row[0]
        sql = f"SELECT document FROM {table} WHERE seq > ? ORDER BY seq LIMIT ?"
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
        tables = ("charges", "refunds")
        sql = " UNION ALL ".join(f"SELECT MIN(settles_at) FROM {table} WHERE settles_at IS NOT NULL" for table in tables)
        return min((float(row[0]) for row in self._reader.execute(sql) if row[0] is not None), default=float("inf"))

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
            refunds = connection.execute("SELECT status, COUNT(*) FROM refunds GROUP BY status").fetchall()
            faults = connection.execute("SELECT kind, SUM(times) FROM faults GROUP BY kind").fetchall()
            doubles = [row[0] for row in connection.execute(_DOUBLE_GROUPS)]
        return {
            "charges": dict(by_status),
            "refunds": dict(refunds),
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
