"""A server of the benchmark's own, and the manifest of a shard set on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from billing_shards.settings import Manifest
from hack.mysql import MySQLServer

_APPLICATION = {"username": "billing_app", "password": "bench-app"}


@contextmanager
def server(buffer_pool_mb: int = 2048) -> Iterator[tuple[MySQLServer, Path]]:
    """A durable server, and a folder for files; both are gone afterwards."""
    with TemporaryDirectory(prefix="billing-shards-bench-") as folder:
        # The redo log's own threads are for servers with many cores: with two, they take turns from those who wait for them.
        options = {"innodb_redo_log_capacity": "2147483648", "innodb_log_writer_threads": "OFF"}
        with MySQLServer.start("bench", workdir=Path(folder), buffer_pool_mb=buffer_pool_mb, options=options) as started:
            yield started, Path(folder)


@contextmanager
def manifest(
    mysql: MySQLServer, folder: Path, *, shards: int, url: str, claimer: dict[str, Any], **others: Any
) -> Iterator[Path]:
    """A BillingShardSet of one new database on `mysql`, which is dropped afterwards; `others` are further fields of the spec."""
    database = f"bench_{shards}_{len(list(folder.iterdir()))}"
    secrets = {
        "app": _APPLICATION,
        "owner": {"username": "root", "password": mysql.root_password},
        "ca": {"ca.crt": mysql.ca_file.read_text()},
    }
    where = {"name": "a", "host": mysql.host, "port": mysql.port, "database": database}
    users = {"credentialsSecret": {"name": "app"}, "schemaSecret": {"name": "owner"}, "tls": {"caSecret": {"name": "ca"}}}
    spec = {"shardCount": shards, "databases": [{**where, **users}], "gateway": {"url": url}, "claimer": claimer, **others}
    documents = [{"kind": "BillingShardSet", "metadata": {"name": "bench"}, "spec": spec}] + [
        {"kind": "Secret", "metadata": {"name": name}, "stringData": data} for name, data in secrets.items()
    ]
    path = folder / f"{database}.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    _execute(mysql, f"CREATE DATABASE {database}")
    try:
        yield path
    finally:
        _execute(mysql, f"DROP DATABASE {database}")


def now(mysql: MySQLServer) -> datetime:
    """The server's clock, UTC as the database has it."""
    found: datetime = _value(mysql, "SELECT UTC_TIMESTAMP(6)")
    return found


def rest(mysql: MySQLServer, database: str) -> None:
    """Have statistics made, and all dirty pages written, as if what was filled in had been there for long."""
    with mysql.client(database=database, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("ANALYZE NO_WRITE_TO_BINLOG TABLE billing_job")
        cursor.fetchall()
        cursor.execute("SELECT @@GLOBAL.innodb_max_dirty_pages_pct, @@GLOBAL.innodb_io_capacity")
        dirty, capacity = cursor.fetchone() or (90, 10_000)
        cursor.execute("SET GLOBAL innodb_max_dirty_pages_pct = 0, GLOBAL innodb_io_capacity = 20000")
        while True:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")
            row = cursor.fetchone()
            if row is None or int(row[1]) < 100:
                break
            time.sleep(0.5)
        cursor.execute("SET GLOBAL innodb_io_capacity = %s, GLOBAL innodb_max_dirty_pages_pct = %s", (capacity, dirty))


def binlog_bytes(mysql: MySQLServer) -> int:
    """What all binary logs that are there hold."""
    with mysql.client() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        return sum(int(row[1]) for row in cursor.fetchall())


def table_bytes(mysql: MySQLServer, of: Manifest) -> dict[str, int]:
    """Bytes on disk of each table of the manifest's first database, indexes and half-full pages included."""
    pattern = of.spec.databases[0].database + "/%"
    with mysql.client() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT name, file_size FROM information_schema.innodb_tablespaces WHERE name LIKE %s", (pattern,))
        return {str(row[0]).partition("/")[2]: int(row[1]) for row in cursor.fetchall()}


def _value(mysql: MySQLServer, query: str) -> Any:
    with mysql.client() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return (cursor.fetchone() or (None,))[0]


def _execute(mysql: MySQLServer, statement: str) -> None:
    with mysql.client(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
