"""Group commit: one thread writes, and takes into each transaction whatever has gathered while it wrote the last one.

Rows for the same table go in by one INSERT … SELECT FROM json_each, however many charges they come from: SQLite then
works through all of them without handing the interpreter lock back and forth with the event loop for each one.

A write is acknowledged after its transaction is committed. In WAL mode with synchronous=NORMAL a commit is in the
operating system's hands, so it survives SIGKILL of the process; only a crash of the host could lose the last ones,
which a stand-in may, and no fsync then limits how many charges a second can be made.
"""

import asyncio
import concurrent.futures
import dataclasses
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Statement = tuple[str, Sequence[Any]]
"""SQL whose only parameter is a JSON array of rows, and the row for it."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Write:
    statements: Sequence[Statement]
    done: asyncio.Future[None]


def connect(path: Path, *, query_only: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any one thread at a time."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA temp_store = MEMORY")  # the root file system may be read-only
    connection.execute("PRAGMA cache_size = -32768")
    if query_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


class GroupWriter:
    """Owns the only connection that writes. Made inside the event loop that awaits its writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="group-writer")
        self._gathered: list[_Write] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, *statements: Statement) -> None:
        """Returns after the commit. Raises sqlite3.Error where these statements failed; others are not affected."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._gathered.append(_Write(statements, done))
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_gathered())
        await done

    async def close(self) -> None:
        """Writes what has gathered, then closes the connection."""
        if self._writing is not None:
            await self._writing
        self._thread.shutdown()
        self._connection.close()

    async def _write_gathered(self) -> None:
        while self._gathered:
            batch, self._gathered = self._gathered, []
            results = await self._loop.run_in_executor(self._thread, self._commit, batch)
            _acknowledge(batch, results)
            # One turn of the loop lets those who were answered bring their next write into the next transaction.
            await asyncio.sleep(0)
        self._writing = None

    def _commit(self, batch: Sequence[_Write]) -> list[sqlite3.Error | None]:
        """One transaction for all; where it fails, one for each, so that only the culprit fails."""
        error = self._transaction(batch)
        if error is None or len(batch) == 1:
            return [error] * len(batch)
        return [self._transaction([write]) for write in batch]

    def _transaction(self, batch: Sequence[_Write]) -> sqlite3.Error | None:
        rows: dict[str, list[Sequence[Any]]] = {}
        for write in batch:
            for sql, row in write.statements:
                rows.setdefault(sql, []).append(row)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for sql, rows_of_sql in rows.items():
                self._connection.execute(sql, (json.dumps(rows_of_sql),))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return error
        return None


def _acknowledge(batch: Sequence[_Write], results: Sequence[sqlite3.Error | None]) -> None:
    for write, error in zip(batch, results, strict=True):
        if write.done.cancelled():
            continue
        if error is None:
            write.done.set_result(None)
        else:
            write.done.set_exception(error)
