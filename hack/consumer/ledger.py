"""What the example does with events: a running total for each subscription, in a database of its own (SQLite).

The event's id and its effect are one transaction. An event that comes again finds its id there and changes nothing: delivered at
least once, it has its effect exactly once. Only after the COMMIT is the broker told that the event is done.
"""

import json
import sqlite3
from pathlib import Path
from typing import Any

_TABLES = """
CREATE TABLE IF NOT EXISTS done (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owed (subscription TEXT PRIMARY KEY, invoices INTEGER NOT NULL, amount INTEGER NOT NULL) WITHOUT ROWID;
"""
_EFFECT = """
INSERT INTO owed (subscription, invoices, amount) VALUES (?, 1, ?)
ON CONFLICT (subscription) DO UPDATE SET invoices = invoices + 1, amount = amount + excluded.amount
"""


class Ledger:
    """The consumer's own database. Amounts are minor units."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {_TABLES}")

    def apply(self, body: bytes) -> bool:
        """Give one event its effect; False where it had it already."""
        event = json.loads(body)
        self._database.execute("BEGIN IMMEDIATE")
        try:
            new = self._database.execute("INSERT OR IGNORE INTO done (id) VALUES (?)", (event["id"],)).rowcount == 1
            if new:
                self._effect(event)
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        return new

    def _effect(self, event: dict[str, Any]) -> None:
        if event["type"] == "io.billingshards.invoice.issued.v1":
            self._database.execute(_EFFECT, (event["subject"], event["data"]["amount"]))

    def totals(self) -> dict[str, tuple[int, int]]:
        """Invoices and amount of each subscription."""
        rows = self._database.execute("SELECT subscription, invoices, amount FROM owed")
        return {name: (invoices, amount) for name, invoices, amount in rows}

    def events(self) -> int:
        """How many events had their effect."""
        count: int = self._database.execute("SELECT COUNT(*) FROM done").fetchone()[0]
        return count

    def close(self) -> None:
        """Close the database."""
        self._database.close()
