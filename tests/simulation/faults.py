"""Faults between a simulated host and MySQL, made at the edge of the driver: every statement and every COMMIT is a place for one.

What a fault does to the session is real (rolled back, committed, or left with a COMMIT under way); only the news of it is made up
here. A session that is lost is rolled back before its socket closes, so that the next statement of another session meets the same
locks whenever a seed is run.
"""

from __future__ import annotations

import copy
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn

import pymysql
from pymysql.constants import ER

_Connection: Any = pymysql.connections.Connection
_LOCKS = re.compile(r"^\s*(UPDATE|INSERT|DELETE)|FOR (UPDATE|SHARE)", re.IGNORECASE)
_UNDER_WAY_SECONDS = 0.004


class Fault(Enum):
    """What happens at a statement, or at the COMMIT."""

    DIE_BEFORE = "host dies before it"
    DIE_AFTER = "host dies after it"
    LOSE_BEFORE = "connection lost before it"
    LOSE_AFTER = "connection lost after it"
    DEADLOCK = "deadlock"
    LOCK_WAIT = "lock wait"
    UNDER_WAY = "connection lost, COMMIT still under way"
    OTHERS = "another host acts first"


AT_STATEMENT = (
    *(fault for fault in Fault if fault is not Fault.UNDER_WAY),
    *(Fault.DEADLOCK, Fault.DEADLOCK, Fault.LOCK_WAIT),  # only some statements can meet one
)
AT_COMMIT = (Fault.DIE_BEFORE, Fault.DIE_AFTER, Fault.LOSE_BEFORE, Fault.LOSE_AFTER, Fault.UNDER_WAY, Fault.DEADLOCK)


class HostDied(BaseException):
    """The process is gone; nothing of it runs any more. No product code may catch it."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One step of one host, and the faults it will meet: by the number of the statement, or at a COMMIT."""

    statements: dict[int, Fault]
    commit: Fault | None
    others: Callable[[], None]
    """Lets other hosts act, where that cannot block."""
    count: int = 0
    dead: bool = False
    met: list[Fault] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def join(self) -> None:
        """Wait for COMMITs that are under way."""
        for thread in self.threads:
            thread.join()
        self.threads.clear()


class Driver:
    """PyMySQL with faults, for the statements of the step that is set. Statements of nobody's step pass."""

    def __init__(self) -> None:
        self.step: Step | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put it between PyMySQL's users and its connections."""
        query, commit = _Connection.query, _Connection.commit
        driver = self

        def faulty_query(connection: Any, sql: Any, unbuffered: bool = False) -> Any:
            if driver.step is None or sql.startswith("SET "):  # a session's set-up
                return query(connection, sql, unbuffered)
            return driver._run(connection, sql, lambda: query(connection, sql, unbuffered))

        def faulty_commit(connection: Any) -> None:
            if driver.step is None:
                commit(connection)
            else:
                driver._commit(connection, commit)

        _Connection.query, _Connection.commit = faulty_query, faulty_commit
        try:
            yield
        finally:
            _Connection.query, _Connection.commit = query, commit

    def _run(self, connection: Any, sql: str, execute: Callable[[], Any]) -> Any:
        step = self._alive(connection)
        fault = step.statements.get(step.count)
        step.count += 1
        if fault in (Fault.DEADLOCK, Fault.LOCK_WAIT) and not _LOCKS.search(sql):
            fault = None
        if fault is None:
            return execute()
        step.met.append(fault)
        match fault:
            case Fault.OTHERS:
                self._without_step(step.others)
                return execute()
            case Fault.LOCK_WAIT:
                raise pymysql.err.OperationalError(ER.LOCK_WAIT_TIMEOUT, "Lock wait timeout exceeded; try restarting transaction")
            case Fault.DEADLOCK:
                connection.rollback()
                raise pymysql.err.OperationalError(ER.LOCK_DEADLOCK, "Deadlock found when trying to get lock")
            case Fault.DIE_AFTER | Fault.LOSE_AFTER:
                execute()
        return self._cut(connection, step, die=fault in (Fault.DIE_BEFORE, Fault.DIE_AFTER))

    def _commit(self, connection: Any, commit: Callable[[Any], None]) -> None:
        step = self._alive(connection)
        fault, step.commit = step.commit, None
        if fault is None:
            commit(connection)
            return
        step.met.append(fault)
        match fault:
            case Fault.DEADLOCK:
                connection.rollback()
                raise pymysql.err.OperationalError(ER.LOCK_DEADLOCK, "Deadlock found when trying to get lock")
            case Fault.UNDER_WAY:
                _leave(connection, commit, step)
                raise _lost()
            case Fault.DIE_AFTER | Fault.LOSE_AFTER:
                commit(connection)
        self._cut(connection, step, die=fault in (Fault.DIE_BEFORE, Fault.DIE_AFTER))

    def _alive(self, connection: Any) -> Step:
        assert self.step is not None
        if self.step.dead:
            self._cut(connection, self.step, die=True)
        return self.step

    def _cut(self, connection: Any, step: Step, *, die: bool) -> NoReturn:
        with suppress(pymysql.MySQLError):
            connection.rollback()
        connection._force_close()
        if die:
            step.dead = True
            raise HostDied
        raise _lost()

    def _without_step(self, work: Callable[[], None]) -> None:
        kept, self.step = self.step, None
        try:
            work()
        finally:
            self.step = kept


def _lost() -> pymysql.err.OperationalError:
    return pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


def _leave(connection: Any, commit: Callable[[Any], None], step: Step) -> None:
    """The client sees its connection break; the server gets the COMMIT a moment later."""
    left = copy.copy(connection)
    connection._sock = connection._rfile = None

    def finish() -> None:
        time.sleep(_UNDER_WAY_SECONDS)
        commit(left)
        left._force_close()

    thread = threading.Thread(target=finish)
    step.threads.append(thread)
    thread.start()
