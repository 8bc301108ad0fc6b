"""Events and the one statement that writes them. Publishing them to a broker is another matter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from billing_shards.db import Rows, queries
from billing_shards.shards.transactions import ShardTransaction

_q = queries("outbox")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a subscription, e.g. `payment.succeeded`. Amounts in `payload` are minor units."""

    type: str
    subscription: str
    payload: Mapping[str, Any]


def write(transaction: ShardTransaction, first: int, events: Sequence[Event]) -> None:
    """Insert the events under the numbers from `first` on, which the transaction took from its 'event' counter."""
    if not events:
        return
    rows = [(number, event.type, event.subscription, event.payload) for number, event in enumerate(events, first)]
    keys = [(row[0],) for row in rows]
    transaction.write(_q.insert_events, {"rows": Rows(rows)}, table="outbox", keys=keys)


def count_unsent(connection: Connection, shards: Collection[int]) -> dict[int, int]:
    """Events not published yet, by shard; shards with none are left out."""
    return {row[0]: row[1] for row in connection.exec_driver_sql(_q.count_unsent, {"shards": tuple(shards)})}
