"""The one transaction that every write goes through.

It runs on the shard's owner, reads the fence row FOR SHARE first, is READ COMMITTED, and is run again as a whole after a
deadlock, a lock wait or a lost connection: a lock wait rolls back the statement alone, and committing after it would keep half
a batch. When the answer to COMMIT is lost, nobody knows what happened until the database is asked: the caller's `committed`
looks for something that only this transaction would have written. It must look with a locking read, which waits for a
COMMIT that is still under way on the old connection.

The transaction knows which (table, key) it touched: a shard that is being copied needs that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import structlog
from pymysql.constants import ER
from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import DBAPIError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from billing_shards import telemetry
from billing_shards.db import Database, error_code, is_gone, queries, translated
from billing_shards.errors import (
    CommitUnknown,
    DatabaseUnavailable,
    NotOwner,
    ShardFenced,
    ShardUnknown,
    TransactionFailed,
)
from billing_shards.shards.model import OwnerState

T = TypeVar("T")
Params = Mapping[str, Any]
Key = tuple[Any, ...]
Body = Callable[["ShardTransaction"], T]
Committed = Callable[[Connection], T | None]

_q = queries("shards")
_log = structlog.get_logger(__name__)

RUNS_MAX = 8
_RERUN_CODES = {ER.LOCK_WAIT_TIMEOUT: "lock_wait", ER.LOCK_DEADLOCK: "deadlock"}


class _RunAgainError(Exception):
    """The transaction was rolled back and may be run again."""


class ShardTransaction:
    """What the body of a transaction is given: reads, writes that name the rows they touch, and the shard's counters."""

    __slots__ = ("_connection", "now", "shard", "touched")

    def __init__(self, connection: Connection, shard: int, now: datetime) -> None:
        self._connection = connection
        self.shard = shard
        self.now = now
        """The server's NOW(6), UTC, when the fence was read."""
        self.touched: list[tuple[str, Sequence[Key]]] = []

    def read(self, query: str, params: Params = {}) -> Sequence[Sequence[Any]]:  # noqa: B006 - never changed
        """Rows of a SELECT; `%(shard)s` is filled in."""
        return self._execute(query, params).all()

    def write(self, query: str, params: Params, *, table: str, keys: Sequence[Key]) -> int:
        """Run an INSERT, UPDATE or DELETE of the rows `keys` (primary keys without shard_id); the number of rows found."""
        self.touched.append((table, keys))
        return self._execute(query, params).rowcount

    def take(self, name: str, count: int) -> int:
        """The first of `count` numbers of one of the shard's counters. Take 'event' and 'ledger' last."""
        return self.take_many({name: count})[name]

    def take_many(self, counts: Mapping[str, int]) -> dict[str, int]:
        """`take` for several counters in one step. The counters' rows stay locked until the end of the transaction."""
        self.touched.append(("shard_sequence", [(name,) for name in counts]))
        steps = {"id": 0, "event": 0, "ledger": 0, **counts, "names": tuple(counts)}
        self._execute(_q.advance_sequences, steps)
        ends: dict[str, int] = {row[0]: row[1] for row in self.read(_q.sequences, {"names": tuple(counts)})}
        return {name: ends[name] - count for name, count in counts.items()}

    def _execute(self, query: str, params: Params) -> CursorResult[Any]:
        return self._connection.exec_driver_sql(query, {"shard": self.shard, **params})


class ShardRouter:
    """Finds the owner of a shard and runs transactions there. Safe to use from several threads."""

    def __init__(self, databases: Mapping[str, Database], owners: Mapping[int, str]) -> None:
        self._databases = dict(databases)
        self._owners = dict(owners)

    @property
    def databases(self) -> Mapping[str, Database]:
        """The databases by name."""
        return self._databases

    def owner(self, shard: int) -> Database:
        """The database believed to own the shard; its fence has the last word. Raises `ShardUnknown`."""
        try:
            return self._databases[self._owners[shard]]
        except KeyError:
            raise ShardUnknown(shard, "no database of the shard map owns it") from None

    def by_database(self, shards: Sequence[int]) -> dict[str, list[int]]:
        """The shards grouped by the database believed to own them."""
        groups: dict[str, list[int]] = {}
        for shard in shards:
            groups.setdefault(self.owner(shard).name, []).append(shard)
        return groups

    def close(self) -> None:
        """Close the pooled connections of all databases."""
        for database in self._databases.values():
            database.close()

    @contextmanager
    def read(self, shard: int) -> Iterator[Connection]:
        """A connection for plain reads of one shard."""
        with self.connect(self.owner(shard).name) as connection:
            yield connection

    @contextmanager
    def connect(self, database: str) -> Iterator[Connection]:
        """A connection for plain reads of a whole database."""
        with translated(database), self._databases[database].engine.connect() as connection:
            yield connection

    def run(self, shard: int, body: Body[T], *, committed: Committed[T] | None = None) -> T:
        """Run `body` in a transaction on the shard's owner and return what it returns, after the COMMIT.

        `body` may be run several times and must have no effect outside the transaction. `committed` is asked after a lost
        answer to COMMIT: the result where the transaction took place, None where it did not (it is then run again).
        Raises `TransactionFailed`, `CommitUnknown`, `ShardFenced`, `ShardUnknown`, `NotOwner`, `DatabaseError`s.
        """
        again = Retrying(
            retry=retry_if_exception_type((_RunAgainError, ShardFenced, DatabaseUnavailable)),
            stop=stop_after_attempt(RUNS_MAX),
            wait=wait_random_exponential(multiplier=0.02, max=2),
            before_sleep=_count_rerun,
            reraise=True,
        )
        try:
            result: T = again(self._follow, shard, body, committed)
        except _RunAgainError as error:
            raise TransactionFailed(f"shard {shard}: rolled back {RUNS_MAX} times") from error.__cause__
        return result

    def _follow(self, shard: int, body: Body[T], committed: Committed[T] | None) -> T:
        """Run on the believed owner; where the shard has moved, once more on the database that the fence names."""
        try:
            return self._once(self.owner(shard), shard, body, committed)
        except NotOwner as error:
            if error.moved_to is None or error.moved_to not in self._databases:
                raise
            _log.info("shard_moved", shard=shard, database=error.moved_to)
            self._owners[shard] = error.moved_to
            return self._once(self.owner(shard), shard, body, committed)

    def _once(self, database: Database, shard: int, body: Body[T], committed: Committed[T] | None) -> T:
        with translated(database.name), database.engine.connect() as connection:
            try:
                now = read_fence(connection, shard, database.name)
                result = body(ShardTransaction(connection, shard, now))
            except DBAPIError as error:
                _raise_run_again(error)
                raise
            if self._commit(connection, database, shard):
                return result
        return self._ask(database, shard, committed)

    def _commit(self, connection: Connection, database: Database, shard: int) -> bool:
        """True where COMMIT was answered, False where the answer was lost."""
        try:
            connection.commit()
        except DBAPIError as error:
            if not is_gone(error):
                _raise_run_again(error)
                raise
            _log.warning("commit_answer_lost", shard=shard, database=database.name)
            return False
        return True

    def _ask(self, database: Database, shard: int, committed: Committed[T] | None) -> T:
        if committed is None:
            raise CommitUnknown(f"shard {shard}: the answer to COMMIT was lost")
        found: T | None = Retrying(
            retry=retry_if_exception_type(DatabaseUnavailable),
            stop=stop_after_attempt(RUNS_MAX),
            wait=wait_random_exponential(multiplier=0.5, max=10),
            reraise=True,
        )(self._look, database, committed)
        if found is None:
            raise _RunAgainError
        return found

    def _look(self, database: Database, committed: Committed[T]) -> T | None:
        with translated(database.name), database.engine.connect() as connection:
            return committed(connection)


def read_fence(connection: Connection, shard: int, database: str) -> datetime:
    """Lock the shard's fence row FOR SHARE; the server's time. Raises `NotOwner`, `ShardFenced` where it may not be written."""
    row = connection.exec_driver_sql(_q.fence, {"shard": shard}).one_or_none()
    if row is None:
        raise NotOwner(shard, database, None)
    state, moved_to = OwnerState(row[0]), row[1]
    if state is OwnerState.OWNER:
        now: datetime = row[2]
        return now
    if state is OwnerState.MOVED:
        raise NotOwner(shard, database, moved_to)
    raise ShardFenced(shard, f"is {state.name.lower()} on database {database}")


def _raise_run_again(error: DBAPIError) -> None:
    """Where the whole transaction was, or will be, rolled back by the server: say so."""
    code = error_code(error)
    if code in _RERUN_CODES:
        telemetry.TRANSACTION_RERUNS.labels(_RERUN_CODES[code]).inc()
        raise _RunAgainError from error
    if is_gone(error):
        telemetry.TRANSACTION_RERUNS.labels("connection_lost").inc()
        raise _RunAgainError from error


def _count_rerun(state: RetryCallState) -> None:
    _log.debug("transaction_rerun", run=state.attempt_number)
