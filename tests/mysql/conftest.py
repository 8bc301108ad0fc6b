"""Two real MySQL servers a session, and a fresh shard set over them for each test that asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from hack.fake_gateway import FakeGateway
from hack.mysql import MySQLServer
from tests.mysql import contract, faults
from tests.mysql.money import Money
from tests.mysql.shard_set import NAMES, ShardSet, Site


@pytest.fixture(scope="session")
def mysql_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[MySQLServer]]:
    """Two servers, reached over TLS alone. Tests that kill or restart one start their own."""
    workdir = tmp_path_factory.mktemp("mysql")
    with ExitStack() as stack:
        yield [stack.enter_context(MySQLServer.start(name, workdir=workdir, buffer_pool_mb=64)) for name in NAMES]


@pytest.fixture(scope="session")
def upgraded_site(mysql_servers: Sequence[MySQLServer]) -> Site:
    site = Site.create(mysql_servers, f"billing_{uuid4().hex[:8]}")
    site.upgrade()
    return site


@pytest.fixture
def empty_site(mysql_servers: Sequence[MySQLServer]) -> Iterator[Site]:
    """Schemas that were never upgraded, for this test alone."""
    site = Site.create(mysql_servers, f"billing_{uuid4().hex[:8]}")
    yield site
    site.drop()


@pytest.fixture
def make_shard_set(upgraded_site: Site) -> Iterator[Callable[..., ShardSet]]:
    """Make one shard set with fields of its spec changed, by their outside names: `make_shard_set(shardCount=16)`."""
    with ExitStack() as stack:
        stack.callback(upgraded_site.empty)
        stack.callback(_check_events, upgraded_site)

        def make(**changes: Any) -> ShardSet:
            made = ShardSet(upgraded_site, upgraded_site.spec(**changes))
            stack.callback(made.close)
            return made

        yield make


def _check_events(site: Site) -> None:
    """Whatever a test was about, the events it caused must be what consumers were promised."""
    assert not contract.broken(site.servers, site.database)


@pytest.fixture
def shard_set(make_shard_set: Callable[..., ShardSet]) -> ShardSet:
    """Eight shards: 0-3 on database a, 4-7 on b."""
    return make_shard_set()


@pytest.fixture
def lose_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """`lose_commit(after)`: the answer to the next COMMIT is lost, after it took place or before."""
    return lambda after: faults.lose_next_commit(monkeypatch, after=after)


@pytest.fixture(scope="session")
def fake_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGateway]:
    with FakeGateway.start(tmp_path_factory.mktemp("provider"), seed=7) as fake:
        yield fake


@pytest.fixture
def money(make_shard_set: Callable[..., ShardSet], fake_provider: FakeGateway) -> Money:
    """A shard set whose provider is the fake one, which knows nothing yet."""
    fake_provider.reset()
    fake_provider.configure(pending_decline_rate=0.0, cancel_lost_answer_rate=0.0)
    shard_set = make_shard_set(shardCount=4, gateway={"url": fake_provider.url, "timeoutSeconds": 60})
    return Money(shard_set=shard_set, fake=fake_provider)
