"""The shard map: which database each shard should live on. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Self

from billing_shards.errors import InvalidSpec
from billing_shards.settings import DatabaseSpec, ShardRange, ShardSetSpec


class ShardMap:
    """A whole assignment of shards to databases: each shard has exactly one."""

    def __init__(self, databases: Sequence[str]) -> None:
        self._databases = tuple(databases)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardMap) and self._databases == other._databases

    def __hash__(self) -> int:
        return hash(self._databases)

    def __len__(self) -> int:
        return len(self._databases)

    @classmethod
    def from_spec(cls, spec: ShardSetSpec) -> Self:
        """The map that a spec asks for; by weight where it gives none.

        Raises `InvalidSpec` on a gap, an overlap or a database that is not listed: the rules of the API server, for
        manifests that never met one.
        """
        if spec.shard_map is None:
            return cls(_placed(spec.shard_count, spec.databases, {}))
        owners: list[str | None] = [None] * spec.shard_count
        for position, part in enumerate(spec.shard_map):
            _fill(owners, part, position, spec)
        missing = [shard for shard, owner in enumerate(owners) if owner is None]
        if missing:
            raise InvalidSpec("spec.shardMap", f"leaves a gap: shards {_text(missing)} have no database")
        return cls([owner for owner in owners if owner is not None])

    def database_of(self, shard: int) -> str:
        """The name of the database that shard `shard` should live on."""
        return self._databases[shard]

    def shards_of(self, database: str) -> tuple[int, ...]:
        """The shards that should live on a database, ascending."""
        return tuple(shard for shard, owner in enumerate(self._databases) if owner == database)

    def ranges(self) -> tuple[ShardRange, ...]:
        """The map as the fewest ranges, ascending."""
        runs = groupby(range(len(self)), key=self.database_of)
        spans = [(database, list(shards)) for database, shards in runs]
        return tuple(ShardRange(first=span[0], last=span[-1], database=database) for database, span in spans)


def place(shard_count: int, databases: Sequence[DatabaseSpec], current: Mapping[int, str]) -> ShardMap:
    """A map by the databases' weights that moves as few shards as it can from where they are now (`current`)."""
    return ShardMap(_placed(shard_count, databases, current))


def _placed(shard_count: int, databases: Sequence[DatabaseSpec], current: Mapping[int, str]) -> list[str]:
    quota = _quotas(shard_count, databases)
    owners: dict[int, str] = {}
    room = Counter(quota)
    for shard in range(shard_count):
        name = current.get(shard)
        if name is not None and room[name] > 0:
            owners[shard] = name
            room[name] -= 1
    free = [name for database in databases for name in [database.name] * room[database.name]]
    for shard in range(shard_count):
        if shard not in owners:
            owners[shard] = free.pop(0)
    return [owners[shard] for shard in range(shard_count)]


def _quotas(shard_count: int, databases: Sequence[DatabaseSpec]) -> dict[str, int]:
    """Largest remainder: whole shards in proportion to weight, summing to `shard_count`."""
    total = sum(database.weight for database in databases)
    if total == 0:
        raise InvalidSpec("spec.databases", "at least one database needs a weight above 0 to place shards by weight")
    quota = {database.name: shard_count * database.weight // total for database in databases}
    remainders = sorted(databases, key=lambda database: -(shard_count * database.weight % total))
    for database in remainders[: shard_count - sum(quota.values())]:
        quota[database.name] += 1
    return quota


def _fill(owners: list[str | None], part: ShardRange, position: int, spec: ShardSetSpec) -> None:
    field = f"spec.shardMap[{position}]"
    if part.first > part.last:
        raise InvalidSpec(field, f"from {part.first} is after to {part.last}")
    if part.last >= len(owners):
        raise InvalidSpec(f"{field}.to", f"{part.last} is not below shardCount {len(owners)}")
    if part.database not in {database.name for database in spec.databases}:
        raise InvalidSpec(f"{field}.database", f"{part.database!r} is not in spec.databases")
    for shard in range(part.first, part.last + 1):
        taken = owners[shard]
        if taken is not None:
            raise InvalidSpec(field, f"overlaps: shard {shard} is already on database {taken}")
        owners[shard] = part.database


def _text(shards: Sequence[int]) -> str:
    shown = ", ".join(str(shard) for shard in shards[:8])
    return shown if len(shards) <= 8 else f"{shown} … ({len(shards)} in all)"  # noqa: PLR2004
