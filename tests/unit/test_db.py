"""The query files, MySQL's errors in our words, and connections that fail before a server has said anything."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
import pytest
from sqlalchemy.exc import OperationalError

from billing_shards.db import SQL, Database, Queries, error_code, is_gone, open_database, queries, translated
from billing_shards.errors import AccessDenied, BillingShardsError, DatabaseError, DatabaseUnavailable, InvalidInput, TlsRefused
from billing_shards.settings import Credentials, DatabaseSpec, SecretRef, TlsSpec

SENTINEL = "sentinel-7f3a"

# Queries


def test_a_file_of_queries_is_read_by_name_without_comments_and_semicolons() -> None:
    found = Queries(
        "-- what the file is about\n-- name: one\n-- why\nSELECT 1;\n\n-- name: two\nSELECT 2\n  -- why here\nFROM t\n"
    )
    assert list(found) == ["one", "two"]
    assert (found.one, found.two) == ("SELECT 1", "SELECT 2\nFROM t")


def test_a_query_that_is_not_there_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="three"):
        _ = Queries("-- name: one\nSELECT 1\n").three


@pytest.mark.parametrize("path", sorted((SQL / "queries").glob("*.sql")), ids=lambda path: path.stem)
def test_each_query_of_the_files_is_found_under_a_name_of_its_own(path: Path) -> None:
    """A heading that the loader overlooks would be taken for a comment, and its query for the end of the one above."""
    found = queries(path.stem)
    meant = re.findall(r"^\s*--\s*name\b\W*(\w+)", path.read_text(), flags=re.MULTILINE | re.IGNORECASE)
    assert list(found) == meant
    assert len(set(meant)) == len(meant)
    for name in found:
        assert getattr(found, name)
        assert ";" not in getattr(found, name)


@pytest.mark.parametrize("path", sorted((SQL / "queries").glob("*.sql")), ids=lambda path: path.stem)
def test_each_percent_sign_of_a_query_is_a_placeholder_or_doubled(path: Path) -> None:
    """Anything else fails at the moment when the query is run with parameters."""
    for name in queries(path.stem):
        rest = re.sub(r"%%|%\(\w+\)s", "", getattr(queries(path.stem), name))
        assert "%" not in rest, name


def test_a_query_may_stand_in_others_and_other_braces_stay() -> None:
    found = Queries("-- name: jobs\nWITH job AS (SELECT 1)\n-- name: all\n{jobs}\nSELECT * FROM {table}\n")
    assert found.all == "WITH job AS (SELECT 1)\nSELECT * FROM {table}"


# MySQL's errors


def wrapped(code: int | str, text: str = "x") -> OperationalError:
    return OperationalError(
        "SELECT %(password)s", {"password": SENTINEL}, pymysql.OperationalError(code, text), hide_parameters=True
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2003, DatabaseUnavailable),
        (2006, DatabaseUnavailable),
        (2013, DatabaseUnavailable),
        (0, DatabaseUnavailable),
        (1040, DatabaseUnavailable),
        (1053, DatabaseUnavailable),
        (1129, DatabaseUnavailable),
        (1203, DatabaseUnavailable),
        (3168, DatabaseUnavailable),
        (4031, DatabaseUnavailable),
        (1044, AccessDenied),
        (1045, AccessDenied),
        (1049, AccessDenied),
        (1142, AccessDenied),
        (1143, AccessDenied),
        (1227, AccessDenied),
        (1820, AccessDenied),
        (3118, AccessDenied),
        (2026, TlsRefused),
        (3159, TlsRefused),
    ],
)
def test_failures_of_the_connection_become_database_errors(code: int, kind: type[DatabaseError]) -> None:
    with pytest.raises(DatabaseError) as caught, translated("eu-1"):
        raise wrapped(code, f"with {SENTINEL}")
    assert type(caught.value) is kind
    assert str(caught.value).startswith("database eu-1: ")
    assert caught.value.database == "eu-1"
    assert SENTINEL not in str(caught.value)


def test_an_error_that_the_driver_raised_itself_is_translated_as_well() -> None:
    with pytest.raises(AccessDenied), translated("eu-1"):
        raise pymysql.OperationalError(1045, "Access denied")


@pytest.mark.parametrize("code", [1205, 1213, 1062, 1146, 1064, 3819])
def test_all_other_errors_pass_as_they_are(code: int) -> None:
    error = wrapped(code)
    with pytest.raises(OperationalError) as caught, translated("eu-1"):
        raise error
    assert caught.value is error


def test_the_number_of_an_error_is_mysqls() -> None:
    assert error_code(wrapped(1213)) == 1213
    assert error_code(pymysql.OperationalError(2013, "x")) == 2013
    assert error_code(wrapped("no number")) is None
    assert error_code(ValueError()) is None


@pytest.mark.parametrize(("code", "gone"), [(2006, True), (2013, True), (0, True), (1053, True), (1205, False), (1213, False)])
def test_whether_a_connection_is_lost_is_told_by_its_error(code: int, gone: bool) -> None:
    assert is_gone(wrapped(code)) is gone


# Connections


def opened(
    port: int, *, tls: TlsSpec | None = None, ca: str | None = None, password: Callable[[], str] = lambda: SENTINEL
) -> Database:
    secret = SecretRef(name="app")
    spec = DatabaseSpec(
        name="eu-1", host="127.0.0.1", port=port, credentials_secret=secret, schema_secret=secret, tls=tls or TlsSpec()
    )
    return open_database(spec, lambda: Credentials(username="app", password=password()), ca=lambda: ca)


def refusal(database: Database) -> BillingShardsError:
    with pytest.raises((DatabaseError, InvalidInput)) as caught, translated(database.name), database.engine.connect():
        pass
    database.close()
    assert SENTINEL not in str(caught.value)
    return caught.value


@contextmanager
def listener(*, greeting: bytes) -> Iterator[int]:
    """Something that takes a connection, says `greeting` and leaves; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(greeting)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_nothing_is_connected_until_it_is_used() -> None:
    opened(1).close()


def test_a_port_where_nobody_listens_is_an_unavailable_database() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    error = refusal(opened(port))
    assert type(error) is DatabaseUnavailable
    assert str(error) == "database eu-1: not reachable (MySQL error 2003)"


def test_a_server_that_hangs_up_is_an_unavailable_database() -> None:
    with listener(greeting=b"") as port:
        assert type(refusal(opened(port))) is DatabaseUnavailable


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 100,
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\x00\x00\x00\x00",
        b"\x05\x00\x00\x00\x09abcd",
    ],
)
def test_another_service_on_the_port_is_told_from_mysql(greeting: bytes) -> None:
    with listener(greeting=greeting) as port:
        error = refusal(opened(port))
    assert type(error) is DatabaseUnavailable
    assert "does not speak MySQL" in str(error)


@pytest.mark.parametrize("server_name", [None, "db.example"])
@pytest.mark.parametrize("ca", ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_ca_that_is_none_is_refused_and_never_replaced_by_the_systems(ca: str, server_name: str | None) -> None:
    error = refusal(opened(1, tls=TlsSpec(server_name=server_name), ca=ca))
    assert type(error) is TlsRefused
    assert "ca.crt" in str(error)


def test_a_secret_that_is_missing_is_named() -> None:
    def missing() -> str:
        raise InvalidInput("secret app", "key password cannot be read")

    assert str(refusal(opened(1, password=missing))) == "secret app: key password cannot be read"
