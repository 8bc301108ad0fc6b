"""A server of the benchmark's own, and the manifest of a shard set on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from hack.mysql import MySQLServer

_APPLICATION = {"username": "billing_app", "password": "bench-app"}


@contextmanager
def server(buffer_pool_mb: int = 2048) -> Iterator[tuple[MySQLServer, Path]]:
    """A durable server, and a folder for files; both are gone afterwards."""
    with TemporaryDirectory(prefix="billing-shards-bench-") as folder:
        options = {"innodb_redo_log_capacity": "2147483648"}
        with MySQLServer.start("bench", workdir=Path(folder), buffer_pool_mb=buffer_pool_mb, options=options) as started:
            yield started, Path(folder)


@contextmanager
def manifest(mysql: MySQLServer, folder: Path, *, shards: int, url: str, claimer: dict[str, Any]) -> Iterator[Path]:
    """A BillingShardSet of one new database on `mysql`, which is dropped afterwards."""
    database = f"bench_{shards}_{len(list(folder.iterdir()))}"
    secrets = {
        "app": _APPLICATION,
        "owner": {"username": "root", "password": mysql.root_password},
        "ca": {"ca.crt": mysql.ca_file.read_text()},
    }
    where = {"name": "a", "host": mysql.host, "port": mysql.port, "database": database}
    users = {"credentialsSecret": {"name": "app"}, "schemaSecret": {"name": "owner"}, "tls": {"caSecret": {"name": "ca"}}}
    spec = {"shardCount": shards, "databases": [{**where, **users}], "gateway": {"url": url}, "claimer": claimer}
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


def _execute(mysql: MySQLServer, statement: str) -> None:
    with mysql.client(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
