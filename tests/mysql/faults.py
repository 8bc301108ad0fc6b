"""Faults between us and a server, made at the edge of the driver."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest


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
