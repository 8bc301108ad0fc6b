"""Manual acts: what a person did by hand, and why. Written by the transaction that does it, never changed or deleted.

Whatever is changed on somebody's word (a job made due, a refund, a cancelled subscription, a skipped event) leaves one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from billing_shards.db import Rows, queries
from billing_shards.errors import InvalidInput
from billing_shards.shards.transactions import ShardTransaction

_q = queries("acts")

ACTOR_LENGTH_MAX = 128
REASON_LENGTH_MAX = 500
_ID_BITS = 63
_ACT = re.compile(r"[a-z_]{1,15}\.[a-z_]{1,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act. `before` and `after` hold what it changed, as JSON's values; amounts are minor units."""

    actor: str
    """Who: see `checked_actor`."""
    act: str
    """What was done, `noun.verb`: `job.retry`, `invoice.refund`, `subscription.cancel`, `event.skip`."""
    subscription: str
    """Whose story it belongs to: `invoice show` tells it there."""
    subject: str
    """What it was done to, `noun:id`: `job:17`."""
    reason: str
    """Why: see `checked_reason`."""
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    id: int = field(default_factory=lambda: secrets.randbits(_ID_BITS))
    """Random, so that only this act has it: after a lost answer to COMMIT it tells whether the transaction took place."""

    def __post_init__(self) -> None:
        """Refuse what the table would not hold. Raises `InvalidInput` that names the option."""
        checked_actor(self.actor)
        checked_reason(self.reason)
        if not _ACT.fullmatch(self.act):
            raise AssertionError(f"{self.act!r} does not name an act")


def checked_actor(text: str) -> str:
    """Who acts, without spaces around it. Raises `InvalidInput`."""
    return _checked("--actor", text, ACTOR_LENGTH_MAX)


def checked_reason(text: str) -> str:
    """Why, without spaces around it. Raises `InvalidInput`."""
    return _checked("--reason", text, REASON_LENGTH_MAX)


def _checked(field: str, text: str, length_max: int) -> str:
    stripped = text.strip()
    if not stripped:
        raise InvalidInput(field, "is empty")
    if len(stripped) > length_max:
        raise InvalidInput(field, f"has {len(stripped)} characters, at most {length_max} are kept")
    if not stripped.isprintable():
        raise InvalidInput(field, "has characters that cannot be printed")
    return stripped


def write(transaction: ShardTransaction, act: Act) -> None:
    """Insert the act, in the transaction that does what it tells of."""
    row = (act.id, act.actor.strip(), act.act, act.subscription, act.subject, act.reason.strip(), act.before, act.after)
    transaction.write(_q.insert_act, {"rows": Rows([row])}, table="manual_act", keys=[(act.id,)])


def written(connection: Connection, shard: int, act: Act) -> bool:
    """Whether the transaction that wrote this act took place: what `committed` of `ShardRouter.run` asks. A locking read."""
    return bool(connection.exec_driver_sql(_q.written, {"shard": shard, "id": act.id}).scalar_one())


def of_subscription(connection: Connection, shard: int, subscription: str) -> list[Mapping[str, Any]]:
    """All acts upon a subscription and what belongs to it, oldest first; `before` and `after` are JSON's text."""
    rows = connection.exec_driver_sql(_q.of_subscription, {"shard": shard, "subscription": subscription})
    return [dict(row) for row in rows.mappings()]
