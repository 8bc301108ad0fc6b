"""A database that holds years of finished jobs and a year of future ones beside those that are due.

Jobs alone: it is the queue's table whose size may slow a claim down. Filled fast: by the server itself, two shards at once,
with unique checks and binlog off and one flush a second; then its dirty pages are written, which would otherwise slow down what
is measured after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from billing_shards import bench
from billing_shards.db import queries
from billing_shards.settings import Manifest
from hack.bench import site
from hack.mysql import MySQLServer

_q = queries("bench")

_BATCH = 50_000
_CONNECTIONS = 2
_FIRST = 1_000_000_000
"""Ids below it are the due jobs'."""
_FINISHED, _READY = 2, 0
_SESSION = (
    "SET SESSION sql_log_bin = 0, SESSION unique_checks = 0, SESSION cte_max_recursion_depth = 1000000,"
    " SESSION transaction_isolation = 'READ-COMMITTED'"
)


def fill(mysql: MySQLServer, manifest_path: Path, *, finished: int, future: int) -> None:
    """Set up the manifest's one database and write that many jobs of the past and of the future."""
    manifest = Manifest.read(manifest_path)
    bench.set_up_new(manifest)
    shards = range(manifest.spec.shard_count)
    database = manifest.spec.databases[0].database
    kinds = [(_FINISHED, -1, finished // len(shards)), (_READY, 1, future // len(shards))]
    _set(mysql, "innodb_flush_log_at_trx_commit = 2")
    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        list(threads.map(lambda shard: _fill_shard(mysql, database, shard, kinds), shards))
    _set(mysql, "innodb_flush_log_at_trx_commit = 1")
    site.rest(mysql, database)


def _fill_shard(mysql: MySQLServer, database: str, shard: int, kinds: Iterable[tuple[int, int, int]]) -> None:
    with mysql.client(database=database, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(_SESSION)
        first = _FIRST
        for status, sign, count in kinds:
            for start in range(first, first + count, _BATCH):
                size = min(_BATCH, first + count - start)
                words = {"shard": shard, "start": start, "count": size, "status": status, "sign": sign}
                cursor.execute(_q.fill_past_and_future, words)
            first += count


def _set(mysql: MySQLServer, assignment: str) -> None:
    with mysql.client(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL {assignment}")
