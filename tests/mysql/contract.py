"""Every event that any test caused is what its schema says, and has no field that the schema does not describe."""

from __future__ import annotations

import json
from collections.abc import Sequence

from billing_shards.outbox import envelope
from hack.mysql import MySQLServer

WRONG_ON_PURPOSE = "wrong-"
"""Subscriptions of this name have events that a test made wrong."""


def broken(servers: Sequence[MySQLServer], database: str) -> list[str]:
    """What is wrong with the events of these servers, a line each."""
    query = f"SELECT DISTINCT type, payload FROM outbox WHERE subscription_id NOT LIKE '{WRONG_ON_PURPOSE}%'"
    found = []
    for server in servers:
        with server.client(database=database) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            found += [wrong for kind, payload in cursor.fetchall() if (wrong := _wrong(kind, payload)) is not None]
    return sorted(set(found))


def _wrong(kind: str, payload: str) -> str | None:
    schema = envelope.schema_of(kind)
    if schema is None:
        return f"{kind}: has no schema"
    facts = json.loads(payload)
    problem = schema.problem(facts)
    if problem is not None:
        return f"{kind}: {problem}"
    unknown = sorted(facts.keys() - schema.document["properties"].keys())
    return f"{kind}: its schema does not describe {', '.join(unknown)}" if unknown else None
