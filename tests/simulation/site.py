"""The databases of a simulation: two servers for all seeds, emptied of rows between them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog
from sqlalchemy import Connection

from hack.mysql import MySQLServer
from tests.mysql.shard_set import NAMES, ShardSet, Site
from tests.simulation.world import SHARDS

# What a crash of the server would lose is no matter here: the servers live as long as the run.
_FAST = {"innodb_flush_log_at_trx_commit": "0", "sync_binlog": "0", "innodb_doublewrite": "OFF", "performance_schema": "OFF"}
_KEPT = {"alembic_version", "installation", "shard_owner", "shard_sequence"}


@contextmanager
def started(workdir: Path) -> Iterator[ShardSet]:
    """Two servers and a shard set on them. Everything goes at the end."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(MySQLServer.start(name, workdir=workdir, buffer_pool_mb=64, options=_FAST)) for name in NAMES
        ]
        yield stack.enter_context(placed(servers))


@contextmanager
def placed(servers: Sequence[MySQLServer]) -> Iterator[ShardSet]:
    """A shard set on servers that run."""
    site = Site.create(servers, "billing")
    site.upgrade()
    shard_set = ShardSet(site, site.spec(shardCount=SHARDS))
    try:
        yield shard_set
    finally:
        shard_set.close()


def empty(shard_set: ShardSet) -> None:
    """Delete the rows of the seed before, and set the counters back: each seed's ids are its own."""
    for database in shard_set.owners.values():
        with database.engine.begin() as connection:
            for table in _tables(connection):
                connection.exec_driver_sql(f"DELETE FROM `{table}`")
            connection.exec_driver_sql("UPDATE shard_sequence SET next_value = 1")


def _tables(connection: Connection) -> list[str]:
    return [row[0] for row in connection.exec_driver_sql("SHOW TABLES") if row[0] not in _KEPT]


@contextmanager
def silence() -> Iterator[None]:
    """The product's log says what the trace says, at a price; the pool's says of each lost connection that it is lost."""
    pool = logging.getLogger("sqlalchemy.pool")
    level, kept = pool.level, structlog.get_config()
    pool.setLevel(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False)
    try:
        yield
    finally:
        pool.setLevel(level)
        structlog.configure(**kept)
