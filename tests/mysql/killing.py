"""Processes that SIGKILL themselves at one named point of their work.

Product code knows nothing of it: functions are wrapped here, in a process of the test's own, before the real `main` runs.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pymysql
from pymysql.constants import COMMAND

from billing_shards import claimer, housekeeper
from billing_shards.billing import scheduler
from billing_shards.jobs import store
from billing_shards.payments.http import HttpGateway
from billing_shards.settings import ProcessSettings
from tests.mysql import command

TRANSACTIONS: dict[str, tuple[Any, str]] = {
    "schedule": (scheduler, "schedule_shard"),
    "claim": (store, "claim"),
    "settle": (claimer, "settle"),
    "renew": (store, "renew"),
    "reap": (claimer, "reap"),
}
"""The function that makes each transaction, where it is looked up."""

MIDDLE = {"schedule": 4, "claim": 4, "settle": 4, "renew": 2, "reap": 4}
"""Which statement of it `in the middle` is before: the fence is read by then, and something is written or locked."""

_doing = threading.local()
_context = command.context


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where a process dies."""

    step: str
    """A key of `TRANSACTIONS`, or `charge`, `find` or `cancel`: a request to the provider."""
    moment: str
    """Of a transaction: in the middle, before COMMIT, COMMIT sent, after COMMIT. Of a request: before send, sent, answered."""

    def __str__(self) -> str:
        return f"{self.step}: {self.moment}"


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    while True:  # the signal is on its way
        time.sleep(1)


class Doomed:
    """A claimer, or a housekeeper where the point is the scheduler's, that will kill itself there."""

    def __init__(self, point: Point, settings: ProcessSettings, log: Path) -> None:
        self.point = point
        self._log = log
        self._process = _context.Process(target=_run, args=(point, settings, str(log)))

    def start(self) -> None:
        self._process.start()

    def ended(self) -> bool:
        """Whether it has ended; fails the test where it did so otherwise than by SIGKILL."""
        if self._process.exitcode is None:
            return False
        assert self._process.exitcode == -signal.SIGKILL, f"{self.point}: {self._log.read_text()}"
        return True

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def kill(self) -> None:
        """End it, however it is."""
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()


def _run(point: Point, settings: ProcessSettings, log: str) -> NoReturn:
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if point.step == "schedule":
        _schedule_only(settings.first_shard)
    if point.step in TRANSACTIONS:
        _arm_transaction(point)
    else:
        _arm_request(point)
    sys.exit((housekeeper if point.step == "schedule" else claimer).main(settings))


def _schedule_only(shard: int) -> None:
    """A housekeeper works on all shards; this one shall die at its own."""
    due_shards = scheduler.due_shards

    def due(*arguments: Any) -> list[int]:
        return [one for one in due_shards(*arguments) if one == shard]

    setattr(scheduler, "due_shards", due)  # noqa: B010 - for mypy, a function is not assigned


def _arm_transaction(point: Point) -> None:
    module, name = TRANSACTIONS[point.step]
    function = getattr(module, name)

    @functools.wraps(function)
    def marked(*arguments: Any, **options: Any) -> Any:
        _doing.statements = 0
        try:
            return function(*arguments, **options)
        finally:
            _doing.statements = None

    setattr(module, name, marked)
    if point.moment == "in the middle":
        _arm_statements(MIDDLE[point.step])
    else:
        _arm_commit(point.moment)


def _arm_statements(last: int) -> None:
    execute = pymysql.cursors.Cursor.execute

    def counted(cursor: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(_doing, "statements", None) is not None:
            _doing.statements += 1
            if _doing.statements == last:
                die()
        return execute(cursor, *arguments, **options)

    setattr(pymysql.cursors.Cursor, "execute", counted)  # noqa: B010 - as above


def _arm_commit(moment: str) -> None:
    commit: Callable[[Any], None] = pymysql.connections.Connection.commit

    def deadly(connection: Any) -> None:
        if getattr(_doing, "statements", None) is None:
            commit(connection)
            return
        if moment == "COMMIT sent":
            connection._execute_command(COMMAND.COM_QUERY, "COMMIT")
            time.sleep(0.3)  # it takes place; nobody reads the answer
        elif moment == "after COMMIT":
            commit(connection)
        die()

    setattr(pymysql.connections.Connection, "commit", deadly)  # noqa: B010 - as above


def _arm_request(point: Point) -> None:
    request = getattr(HttpGateway, point.step)

    async def deadly(gateway: HttpGateway, *arguments: Any) -> Any:
        if point.moment != "before send":
            sent = asyncio.create_task(request(gateway, *arguments))
            await asyncio.wait([sent], timeout=0.5 if point.moment == "sent" else None)
            assert sent.done() == (point.moment == "answered"), f"{point}: wrong payment method"
        die()

    setattr(HttpGateway, point.step, deadly)
