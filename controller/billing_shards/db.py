"""Engines over MySQL, the named queries, and MySQL's errors in our words.

A connection verifies the server's certificate by an `ssl.SSLContext` of ours: PyMySQL's own `ssl_*` keywords, given through a
URL, drop the CA or the name check without a word. Credentials are asked for at every new connection, so a rotated Secret is
taken without a restart.
"""

from __future__ import annotations

import json
import re
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pymysql
import pymysql.converters
from pymysql.constants import CLIENT, CR, ER, SERVER_STATUS
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import PoolResetState

from billing_shards.errors import AccessDenied, DatabaseError, DatabaseUnavailable, TlsRefused
from billing_shards.settings import Credentials, DatabaseSpec

SQL = Path(__file__).parent / "sql"

# Server-side waits are short: a transaction that meets a lock is better rolled back and run again than kept waiting.
# Strict: a value that does not fit is an error, never clipped. Naming the mode also keeps backslashes escapes (see `Rows`).
_SESSION = (
    "SET SESSION transaction_isolation = 'READ-COMMITTED', time_zone = '+00:00',"
    " sql_mode = 'STRICT_ALL_TABLES,ONLY_FULL_GROUP_BY,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO',"
    " innodb_lock_wait_timeout = 10, lock_wait_timeout = 30"
)
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 120

_DENIED = frozenset(
    {
        ER.ACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
        ER.BAD_DB_ERROR,
        1698,  # access denied without a password
        1820,  # password expired
        1862,  # password expired
        3118,  # account locked
    }
)
_NO_TLS = {
    CR.CR_SSL_CONNECTION_ERROR: "the server offers no TLS",
    3159: "the server demands TLS",
}
_GONE = frozenset(
    {
        CR.CR_CONN_HOST_ERROR,
        CR.CR_SERVER_GONE_ERROR,
        CR.CR_SERVER_LOST,
        ER.CON_COUNT_ERROR,
        ER.TOO_MANY_USER_CONNECTIONS,
        ER.USER_LIMIT_REACHED,
        ER.HOST_IS_BLOCKED,
        ER.SERVER_SHUTDOWN,
        1077,  # normal shutdown
        3168,  # server isn't available
        4031,  # disconnected for inactivity
    }
)


class Rows:
    """Rows (lists or tuples of JSON's values) as one parameter of a query, which reads them with JSON_TABLE.

    The query's text never changes, and 500 rows are one literal. PyMySQL escapes text character by character; JSON's text is
    plain ASCII, so only backslash and quote need it: a seventh of the claimer's time saved.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows

    def literal(self) -> str:
        """The rows as a SQL string literal."""
        text = json.dumps(self._rows, separators=(",", ":"))
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Ids:
    """Numbers for `IN %(ids)s`, at least one. PyMySQL would escape each by itself, which takes ten times as long."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Iterable[int]) -> None:
        self._ids = ids

    def literal(self) -> str:
        """The numbers in brackets."""
        return f"({','.join(map(str, map(int, self._ids)))})"


_CONVERSIONS: dict[Any, Any] = {
    **pymysql.converters.conversions,
    Rows: lambda rows, _: rows.literal(),
    Ids: lambda ids, _: ids.literal(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """One MySQL instance of a BillingShardSet, by its name there."""

    name: str
    engine: Engine

    def close(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()


def open_database(
    spec: DatabaseSpec,
    credentials: Callable[[], Credentials],
    *,
    ca: Callable[[], str | None] = lambda: None,
    pool_size: int = 5,
    answer_seconds: int = _ANSWER_SECONDS,
) -> Database:
    """A pool of connections that is filled as it is used; nothing is connected yet.

    `ca` gives PEM text, or None for the system's trust store. At most `pool_size` connections are open. One that gives no
    answer for `answer_seconds` is given up.
    """

    def connect() -> pymysql.Connection[Any]:
        who = credentials()
        tls = {"ssl_disabled": True} if spec.tls.mode == "disabled" else {"ssl": _tls_context(spec, ca())}
        with _greeting(spec.name):
            return pymysql.connect(
                host=spec.host,
                port=spec.port,
                user=who.username,
                password=who.password.encode(),  # of a str, PyMySQL would send Latin-1
                database=spec.database,
                charset="utf8mb4",
                conv=_CONVERSIONS,
                client_flag=CLIENT.FOUND_ROWS,  # a row set to the value it had counts as found
                init_command=_SESSION,
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=answer_seconds,
                write_timeout=answer_seconds,
                **tls,
            )

    engine = create_engine(
        "mysql+pymysql://",
        creator=connect,
        pool_size=pool_size,
        max_overflow=0,
        pool_recycle=1800,
        pool_use_lifo=True,
        hide_parameters=True,  # an error's text would carry amounts and payment methods
        skip_autocommit_rollback=True,
        pool_reset_on_return=None,
    )
    event.listen(engine, "reset", _roll_back)
    return Database(name=spec.name, engine=engine)


def _roll_back(connection: pymysql.Connection[Any], _record: object, state: PoolResetState) -> None:
    """What is left of a transaction when its connection goes back to the pool. After a COMMIT the server said that none is: then
    asking would only cost a round trip.
    """
    if not state.terminate_only and connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:  # type: ignore[attr-defined]
        connection.rollback()


class _NamedContext(ssl.SSLContext):
    """Checks the certificate for a name other than the host that was dialled (a tunnel, an address)."""

    server_name: str

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        options["server_hostname"] = self.server_name
        return super().wrap_socket(*args, **options)


def _tls_context(spec: DatabaseSpec, ca: str | None) -> ssl.SSLContext:
    try:
        context = _context(spec.tls.server_name)
        if ca is None:
            context.load_default_certs()
        else:  # never left out where it is empty: that would trust every authority of the system
            context.load_verify_locations(cadata=ca)
    except (ssl.SSLError, ValueError) as error:
        raise TlsRefused(spec.name, "ca.crt is no certificate in PEM") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _context(server_name: str | None) -> ssl.SSLContext:
    """A context that verifies chain and name, and trusts nobody yet."""
    if server_name is None:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    named = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    named.server_name = server_name
    return named


@contextmanager
def _greeting(database: str) -> Iterator[None]:
    """Another service on the port is no fault of ours: PyMySQL takes its first bytes for a greeting, and trips over them."""
    try:
        yield
    except (pymysql.InternalError, struct.error, IndexError) as error:
        if error_code(error) is not None:
            raise
        raise DatabaseUnavailable(database, "what answers at this address does not speak MySQL's protocol") from error


def error_code(error: BaseException) -> int | None:
    """MySQL's number of a SQLAlchemy or PyMySQL error, where it has one."""
    original = error.orig if isinstance(error, DBAPIError) else error
    args = getattr(original, "args", ())
    return args[0] if args and isinstance(args[0], int) else None


def is_gone(error: DBAPIError) -> bool:
    """Whether the connection is lost: what it did last may or may not have happened."""
    return error.connection_invalidated or error_code(error) in _GONE or error_code(error) == 0


@contextmanager
def translated(database: str) -> Iterator[None]:
    """Raise connection-level failures as `DatabaseError`s that name the database; let all others through."""
    try:
        yield
    except DBAPIError as error:
        known = _translate(database, error)
        if known is None:
            raise
        raise known from error
    except PoolTimeoutError as error:
        raise DatabaseUnavailable(database, "every connection of this process has been in use for too long") from error
    except pymysql.MySQLError as error:  # from the creator, before SQLAlchemy wraps it
        known = _translate(database, error)
        if known is None:
            raise
        raise known from error


def _translate(database: str, error: DBAPIError | pymysql.MySQLError) -> DatabaseError | None:
    code = error_code(error)
    original = error.orig if isinstance(error, DBAPIError) else error
    cause = getattr(original, "original_exception", None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return TlsRefused(database, f"the server's certificate was not accepted: {cause.verify_message}")
    refusal = cause if isinstance(cause, ssl.SSLError) else _NO_TLS.get(code or 0)
    if refusal is not None:
        return TlsRefused(database, f"no TLS connection: {refusal}")
    if code in _DENIED:
        return AccessDenied(database, f"access denied (MySQL error {code}): check user name, password and schema")
    if code in _GONE or (isinstance(error, DBAPIError) and is_gone(error)):
        return DatabaseUnavailable(database, f"not reachable (MySQL error {code})")
    return None


class Queries:
    """The named queries of one file of `sql/queries`, as attributes. Each is introduced by a line `-- name: …`; `{name}` in one
    stands for the text of another of the file.
    """

    def __init__(self, text: str) -> None:
        parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
        texts = {name: _without_comments(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}
        self._texts = {
            name: re.sub(r"\{(\w+)\}", lambda found: texts.get(found[1], found[0]), body) for name, body in texts.items()
        }

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)


def _without_comments(body: str) -> str:
    return "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--")).strip().rstrip(";")


@cache
def queries(noun: str) -> Queries:
    """The queries of `sql/queries/<noun>.sql`, read once."""
    return Queries((SQL / "queries" / f"{noun}.sql").read_text())
