"""Group commit: one thread writes, and takes into each transaction whatever has gathered while it wrote the last one.

A write is acknowledged after its transaction is committed. In WAL mode with synchronous=NORMAL a commit is in the
operating system's hands, so it survives SIGKILL of the process; only a crash of the host could lose the last ones,
which a stand-in may, and no fsync then limits how many charges a second can be made.
"""

import asyncio
import dataclasses
import queue
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Statement = tuple[str, Sequence[Any]]

_BATCH_MAX = 1000


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
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="group-writer", daemon=True)
        self._thread.start()

    async def write(self, *statements: Statement) -> None:
        """Returns after the commit. Raises sqlite3.Error where these statements failed; others are not affected."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(_Write(statements, done))
        await done

    def close(self) -> None:
        """Writes what is queued, then ends the thread."""
        self._queue.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, is_last = self._gather(first)
            results = self._commit(batch)
            self._loop.call_soon_threadsafe(_acknowledge, batch, results)
            if is_last:
                return

    def _gather(self, first: _Write) -> tuple[list[_Write], bool]:
        batch = [first]
        while len(batch) < _BATCH_MAX:
            try:
                write = self._queue.get_nowait()
            except queue.Empty:
                break
            if write is None:
                return batch, True
            batch.append(write)
        return batch, False

    def _commit(self, batch: Sequence[_Write]) -> list[sqlite3.Error | None]:
        """One transaction for all; where it fails, one for each, so that only the culprit fails."""
        error = self._transaction(statement for write in batch for statement in write.statements)
        if error is None:
            return [None] * len(batch)
        return [self._transaction(iter(write.statements)) for write in batch]

    def _transaction(self, statements: Iterator[Statement]) -> sqlite3.Error | None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for sql, values in statements:
                self._connection.execute(sql, values)
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
