"""Jobs as a person looks for them. Every query is bounded by its limit, however many jobs there are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from billing_shards.db import queries
from billing_shards.jobs.model import Lane, Status, job_key

_q = queries("jobs")

Row = Mapping[str, Any]
_NOTHING = -1  # stands for none of a list that may be empty: MySQL knows no empty IN ()


def find(
    connection: Connection, shards: Collection[int], *, lanes: Collection[Lane], statuses: Collection[Status], limit: int
) -> list[Row]:
    """Up to `limit` jobs of a database's shards that are in one of the lanes and of one of the statuses, by when they are due."""
    params = {"shards": tuple(shards), "lanes": _numbers(lanes), "statuses": _numbers(statuses), "limit": limit}
    return _rows(connection, _q.list_jobs, params)


def of_subscription(
    connection: Connection,
    shard: int,
    subscription: str,
    *,
    lanes: Collection[Lane],
    statuses: Collection[Status],
    limit: int,
) -> list[Row]:
    """`find` among the jobs of one subscription, by the keys of its invoices' periods."""
    params = {"shard": shard, "subscription": subscription}
    periods = connection.exec_driver_sql(_q.periods_of_subscription, params).all()
    if not periods:
        return []
    keys = tuple(job_key(subscription, row[0], row[1]) for row in periods)
    rest = {"lanes": _numbers(lanes), "statuses": _numbers(statuses), "limit": limit}
    return _rows(connection, _q.jobs_by_key, {"shard": shard, "keys": keys, **rest})


def one(connection: Connection, shard: int, job: int) -> Row | None:
    """The job of this number; None where there is none (any more)."""
    return next(iter(_rows(connection, _q.job_by_id, {"shard": shard, "job": job})), None)


def _numbers(values: Collection[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values) or (_NOTHING,)


def _rows(connection: Connection, query: str, params: Row) -> list[Row]:
    found: Sequence[Row] = [dict(row) for row in connection.exec_driver_sql(query, dict(params)).mappings()]
    return [{**row, "lane": Lane(row["lane"]), "status": Status(row["status"])} for row in found]
