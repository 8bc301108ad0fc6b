"""Faults between us and a server, made at the edge of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
from sqlalchemy import event

from tests.mysql.shard_set import ShardSet


def lose_next_commit(monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    """The next COMMIT gets no answer: its connection breaks, after the COMMIT took place or before it was sent."""
    commit = pymysql.connections.Connection.commit

    def lose(connection: Any) -> None:
        monkeypatch.setattr(pymysql.connections.Connection, "commit", commit)
        if after:
            commit(connection)
        connection._force_close()
        raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")

    monkeypatch.setattr(pymysql.connections.Connection, "commit", lose)


class KilledError(Exception):
    """Stands for the end of the process: nothing of the transaction is done after it."""


@contextmanager
def killed_after(shard_set: ShardSet, statements: int) -> Iterator[None]:
    """End the transaction after so many of its statements."""
    seen = [0]

    def after(*_: Any) -> None:
        seen[0] += 1
        if seen[0] == statements:
            raise KilledError

    engines = [database.engine for database in shard_set.router.databases.values()]
    for engine in engines:
        event.listen(engine, "after_cursor_execute", after)
    try:
        yield
    finally:
        for engine in engines:
            event.remove(engine, "after_cursor_execute", after)
