"""The servers that the other tests rely on: durable over a crash, and reachable only by who verifies them."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from hack.mysql import MySQLServer, client_context, wrong_ca


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySQLServer]:
    with MySQLServer.start("itself", workdir=tmp_path_factory.mktemp("mysql"), buffer_pool_mb=64) as started:
        yield started


def _one_row(server: MySQLServer, query: str) -> tuple[object, ...]:
    with server.client() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        row = cursor.fetchone()
    assert row is not None
    return tuple(row)


def test_it_is_durable_strict_and_in_utc(server: MySQLServer) -> None:
    query = (
        "SELECT @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@log_bin, @@binlog_format, @@time_zone, "
        "@@performance_schema, @@max_connections, @@require_secure_transport"
    )
    assert _one_row(server, query) == (1, 1, 1, "ROW", "+00:00", 1, 500, 1)
    (sql_mode,) = _one_row(server, "SELECT @@sql_mode")
    assert "STRICT_TRANS_TABLES" in str(sql_mode)


def test_the_session_is_encrypted(server: MySQLServer) -> None:
    name, cipher = _one_row(server, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    assert name == "Ssl_cipher"
    assert cipher


def test_a_plain_connection_is_refused(server: MySQLServer) -> None:
    with pytest.raises(pymysql.err.OperationalError, match="insecure transport"):
        server.client(ssl=None, ssl_disabled=True)


def test_a_client_that_trusts_another_authority_refuses_the_server(server: MySQLServer, tmp_path: Path) -> None:
    with pytest.raises(pymysql.err.OperationalError, match=r"self-signed certificate in certificate chain|unable to get"):
        server.client(ssl=client_context(wrong_ca(tmp_path / "wrong.pem")))


def test_a_client_refuses_a_certificate_for_another_name(tmp_path: Path) -> None:
    names = ["elsewhere.example"]
    with (
        MySQLServer.start("misnamed", workdir=tmp_path, buffer_pool_mb=64, certificate_names=names) as misnamed,
        pytest.raises(pymysql.err.OperationalError, match=r"certificate is not valid for|mismatch"),
    ):
        misnamed.client()


def test_a_wrong_password_is_refused(server: MySQLServer) -> None:
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        server.client(password="guessed")


def test_committed_rows_survive_a_crash(server: MySQLServer) -> None:
    with server.client() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE crash")
        cursor.execute("CREATE TABLE crash.kept (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO crash.kept VALUES (7)")
        connection.commit()
    port = server.port
    server.kill()
    assert not server.running
    with pytest.raises(pymysql.err.OperationalError):
        server.client()
    server.restart()
    assert server.port == port
    assert _one_row(server, "SELECT id FROM crash.kept") == (7,)


def test_attach_finds_the_same_server(server: MySQLServer) -> None:
    again = MySQLServer.attach(server.ca_file.parent.parent)
    assert again.running
    assert (again.port, again.root_password) == (server.port, server.root_password)


def _start_and_wait(workdir: Path) -> None:
    MySQLServer.start("orphan", workdir=workdir, buffer_pool_mb=64)
    (workdir / "started").touch()
    signal.pause()


def test_a_server_dies_with_its_starter(tmp_path: Path) -> None:
    starter = multiprocessing.get_context("spawn").Process(target=_start_and_wait, args=(tmp_path,))
    starter.start()
    try:
        while not (tmp_path / "started").exists():
            assert starter.is_alive()
            starter.join(0.1)
        orphan = MySQLServer.attach(tmp_path / "orphan")
        assert orphan.running
    finally:
        if starter.pid is not None:
            os.kill(starter.pid, signal.SIGKILL)
        starter.join()
    deadline = time.monotonic() + 30
    while orphan.running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not orphan.running
