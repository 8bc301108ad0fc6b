"""The fence rows and counters of a database, as read and first written. See `transactions` for how writers meet them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from billing_shards.db import queries
from billing_shards.shards.model import Installation, Owner, OwnerState

_q = queries("shards")

INSTALLATION = _q.installation
SEQUENCES = ("id", "event", "ledger")


def read_installation(connection: Connection) -> Installation | None:
    """Whose database it is; None where no BillingShardSet was ever set up on it."""
    row = connection.exec_driver_sql(INSTALLATION).one_or_none()
    return None if row is None else installation_of(row)


def installation_of(row: Sequence[Any]) -> Installation:
    """The value of a row of `INSTALLATION`."""
    return Installation(shard_set=row[0], shard_count=row[1], database=row[2])


def read_owners(connection: Connection) -> dict[int, Owner]:
    """Every fence row of the database, by shard."""
    rows = connection.exec_driver_sql(_q.owners).all()
    return {row[0]: Owner(shard=row[0], epoch=row[1], state=OwnerState(row[2]), moved_to=row[3]) for row in rows}


def initialise(connection: Connection, *, shard_set: str, shard_count: int, database: str, shards: Sequence[int]) -> None:
    """Make the database the first owner of `shards`, in one transaction that this commits.

    Once in the life of a database: a second call is an IntegrityError, and changes nothing.
    """
    who = {"shard_set": shard_set, "shard_count": shard_count, "database": database}
    connection.exec_driver_sql(_q.insert_installation, who)
    if shards:
        connection.exec_driver_sql(_q.insert_owner, [{"shard": shard} for shard in shards])
        counters = [{"shard": shard, "name": name} for shard in shards for name in SEQUENCES]
        connection.exec_driver_sql(_q.insert_sequence, counters)
    connection.commit()
