"""Values of the shards."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum


class OwnerState(IntEnum):
    """What a database says of a shard. Only `OWNER` lets a transaction write."""

    OWNER = 1
    FENCED = 2
    PREPARED = 3
    MOVED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The fence row of one shard on one database."""

    shard: int
    epoch: int
    state: OwnerState
    moved_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Whose database it is: written once, when the BillingShardSet is first set up."""

    shard_set: str
    shard_count: int
    database: str


def shard_of(key: str, shard_count: int) -> int:
    """The shard of a subscription or account: the same on every machine and for ever."""
    digest = hashlib.sha256(b"shard:" + key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % shard_count
