"""Placing shards on databases without a cluster, and opening what was placed."""

from __future__ import annotations

import pytest

from billing_shards import process
from billing_shards.errors import SchemaBehind, WrongDatabase
from billing_shards.shards import shardset
from tests.mysql.shard_set import NAME, ShardSet, Site


def owned(site: Site) -> dict[int, str]:
    databases = site.owned()
    try:
        return shardset.read_owners(NAME, site.spec(), databases)
    finally:
        for database in databases.values():
            database.close()


def set_up(site: Site, *names: str, **changes: object) -> None:
    databases = {name: database for name, database in site.owned().items() if name in names}
    shardset.set_up(NAME, site.spec(**changes), databases)
    for database in databases.values():
        database.close()


def test_shards_are_placed_as_the_map_says_once(empty_site: Site) -> None:
    empty_site.upgrade()
    set_up(empty_site, "a", "b")
    expected = dict.fromkeys(range(4), "a") | dict.fromkeys(range(4, 8), "b")
    assert owned(empty_site) == expected
    everything_on_b = [{"from": 0, "to": 7, "database": "b"}]
    set_up(empty_site, "a", "b", shardMap=everything_on_b)
    assert owned(empty_site) == expected


def test_a_set_up_that_ended_half_way_gives_no_shard_a_second_owner(empty_site: Site) -> None:
    empty_site.upgrade()
    set_up(empty_site, "a", shardMap=[{"from": 0, "to": 5, "database": "a"}, {"from": 6, "to": 7, "database": "b"}])
    set_up(empty_site, "a", "b")
    assert owned(empty_site) == dict.fromkeys(range(6), "a") | dict.fromkeys((6, 7), "b")


def test_a_database_that_was_never_set_up_is_said_so(empty_site: Site) -> None:
    empty_site.upgrade()
    set_up(empty_site, "a")
    with pytest.raises(SchemaBehind, match="database b: is not set up yet"):
        owned(empty_site)


def test_a_database_of_another_set_is_refused(shard_set: ShardSet) -> None:
    for name, changes in (("other", {}), (NAME, {"shardCount": 16})):
        spec = shard_set.site.spec(**changes)
        with pytest.raises(WrongDatabase, match=r"database a: was set up as database a of main with 8 shards"):
            shardset.open_router(name, spec, shard_set.secrets)


def test_a_host_that_leads_to_another_sets_database_later_is_not_used(shard_set: ShardSet) -> None:
    mine = process.ShardSet(name=NAME, spec=shard_set.spec, secrets=shard_set.secrets)
    router = process.router(mine, pool_size=2)
    assert router.run(1, lambda transaction: transaction.take("id", 1)) == 1
    shard_set.change(1, "UPDATE installation SET shard_set = 'theirs'")
    router.close()  # the pool connects anew, as after a failover
    with pytest.raises(WrongDatabase, match="was set up as database a of theirs"):
        router.run(1, lambda transaction: transaction.take("id", 1))
    shard_set.change(1, "UPDATE installation SET shard_set = 'main'")
    assert router.run(1, lambda transaction: transaction.take("id", 1)) == 2
    router.close()
