"""Which shard a key is on, and which database a shard is on: for ever the same, whole, and with the fewest moves."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.errors import InvalidSpec
from billing_shards.settings import DatabaseSpec, ShardSetSpec, parse_spec
from billing_shards.shards.map import ShardMap, place
from billing_shards.shards.model import shard_of


def database(name: str, weight: int = 1) -> dict[str, Any]:
    secret = {"name": "secret"}
    return {"name": name, "host": "db", "weight": weight, "credentialsSecret": secret, "schemaSecret": secret}


def spec(shard_map: list[tuple[int, int, str]] | None, *, shard_count: int = 8) -> ShardSetSpec:
    document: dict[str, Any] = {
        "shardCount": shard_count,
        "databases": [database("a"), database("b")],
        "gateway": {"url": "http://gateway"},
    }
    if shard_map is not None:
        document["shardMap"] = [{"from": first, "to": last, "database": name} for first, last, name in shard_map]
    return parse_spec(document)


def test_a_keys_shard_never_changes() -> None:
    """Another value would look for every customer in the wrong place."""
    assert [shard_of(key, 256) for key in ("sub-1", "sub-2", "a", "ü")] == [207, 185, 65, 43]


def test_keys_are_spread_evenly() -> None:
    shards = Counter(shard_of(f"sub-{n}", 256) for n in range(25_600))
    assert len(shards) == 256
    assert max(shards.values()) < 160  # 100 on average: six standard deviations


def test_a_map_is_read_by_shard_and_by_database() -> None:
    found = ShardMap.from_spec(spec([(6, 7, "a"), (0, 3, "a"), (4, 5, "b")]))
    assert [found.database_of(shard) for shard in range(8)] == list("aaaabbaa")
    assert found.shards_of("a") == (0, 1, 2, 3, 6, 7)
    assert [(part.first, part.last, part.database) for part in found.ranges()] == [(0, 3, "a"), (4, 5, "b"), (6, 7, "a")]


def test_without_a_map_shards_are_placed_by_weight() -> None:
    assert [ShardMap.from_spec(spec(None)).database_of(shard) for shard in range(8)] == list("aaaabbbb")


@pytest.mark.parametrize(
    ("shard_map", "field", "reason"),
    [
        ([(0, 3, "a")], "spec.shardMap", "leaves a gap: shards 4, 5, 6, 7 have no database"),
        ([(0, 3, "a"), (5, 7, "b")], "spec.shardMap", "leaves a gap: shards 4 have no database"),
        ([(0, 4, "a"), (4, 7, "b")], "spec.shardMap[1]", "overlaps: shard 4 is already on database a"),
        ([(0, 7, "a"), (0, 7, "a")], "spec.shardMap[1]", "overlaps: shard 0 is already on database a"),
        ([(0, 3, "a"), (4, 7, "c")], "spec.shardMap[1].database", "'c' is not in spec.databases"),
        ([(0, 3, "a"), (7, 4, "b")], "spec.shardMap[1]", "from 7 is after to 4"),
        ([(0, 3, "a"), (4, 8, "b")], "spec.shardMap[1].to", "8 is not below shardCount 8"),
    ],
)
def test_a_map_that_is_no_partition_is_refused(shard_map: list[tuple[int, int, str]], field: str, reason: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        ShardMap.from_spec(spec(shard_map))
    assert (refused.value.field, refused.value.reason) == (field, reason)


def databases(weights: list[int]) -> list[DatabaseSpec]:
    return [DatabaseSpec.model_validate(database(f"d{n}", weight)) for n, weight in enumerate(weights)]


weight_lists = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)


@given(st.integers(1, 256), weight_lists)
def test_placing_gives_each_database_its_share(shard_count: int, weights: list[int]) -> None:
    placed = place(shard_count, databases(weights), {})
    assert len(placed) == shard_count
    for number, weight in enumerate(weights):
        share = shard_count * weight / sum(weights)
        assert abs(len(placed.shards_of(f"d{number}")) - share) < 1


@given(st.integers(1, 256), weight_lists, weight_lists)
def test_placing_again_moves_no_more_than_it_must(shard_count: int, before: list[int], after: list[int]) -> None:
    old = place(shard_count, databases(before), {})
    current = {shard: old.database_of(shard) for shard in range(shard_count)}
    new = place(shard_count, databases(after), current)
    moved = sum(new.database_of(shard) != current[shard] for shard in range(shard_count))
    names = {f"d{number}" for number in range(max(len(before), len(after)))}
    surplus = sum(max(0, len(old.shards_of(name)) - len(new.shards_of(name))) for name in names)
    assert moved == surplus


def test_weights_that_are_all_zero_place_nothing() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.databases: at least one database needs a weight above 0"):
        place(8, databases([0, 0]), {})
