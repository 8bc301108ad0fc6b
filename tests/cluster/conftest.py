"""The cluster, two MySQL servers that its pods can reach, and the operator as a process beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from hack.cluster import Cluster
from hack.mysql import MySQLServer
from tests.cluster.operator_site import Namespace, OperatorProcess
from tests.mysql.shard_set import NAMES, Site

ROOT = Path(__file__).parents[2]
_NAMESPACES = 24
_NUMBER = 2


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of the tests' own, beside the one of `make up` and `make demo`, which they neither use nor disturb."""
    cluster = Cluster(_NUMBER)
    cluster.up()
    yield cluster
    cluster.down()


@pytest.fixture(scope="session")
def definitions(cluster: Cluster) -> None:
    """The custom resource definitions as they are in this checkout."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    cluster.kubectl("wait", "--for=condition=Established", "crd/billingshardsets.billingshards.io", "--timeout=30s")


@pytest.fixture(scope="session")
def servers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[MySQLServer]]:
    """Two servers that listen where pods can reach them. Tests that stop one start it again."""
    workdir = tmp_path_factory.mktemp("mysql")
    with ExitStack() as stack:
        yield [
            stack.enter_context(MySQLServer.start(name, workdir=workdir, bind=cluster.host_address, buffer_pool_mb=64))
            for name in NAMES
        ]


@pytest.fixture
def empty_site(servers: Sequence[MySQLServer]) -> Iterator[Site]:
    """A schema on each server, never upgraded: the operator's Jobs have to do it."""
    site = Site.create(servers, f"billing_{uuid4().hex[:8]}")
    yield site
    site.drop()


@pytest.fixture(scope="session")
def upgraded_site(servers: Sequence[MySQLServer]) -> Site:
    site = Site.create(servers, f"billing_{uuid4().hex[:8]}")
    site.upgrade()
    return site


@pytest.fixture
def site(upgraded_site: Site) -> Iterator[Site]:
    """A schema on each server, upgraded, with the application's user, and never set up."""
    yield upgraded_site
    upgraded_site.empty()


@pytest.fixture(scope="session")
def operator(cluster: Cluster, definitions: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:  # noqa: ARG001
    """One operator for all tests, each of which works in a namespace of its own of those it watches."""
    run = uuid4().hex[:6]
    process = OperatorProcess(
        kubeconfig=cluster.kubeconfig,
        namespaces=[f"op-{run}-{number}" for number in range(_NAMESPACES)],
        log=tmp_path_factory.mktemp("operator") / "log",
    )
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def unused_namespaces(operator: OperatorProcess) -> list[str]:
    return list(operator.namespaces)


@pytest.fixture
def make_namespace(cluster: Cluster, unused_namespaces: list[str], site: Site) -> Iterator[Callable[[], Namespace]]:  # noqa: ARG001
    """Make a namespace that the operator watches. Its resources go before the rows of `site` do."""
    with ExitStack() as stack:

        def make() -> Namespace:
            namespace = Namespace(cluster, unused_namespaces.pop())
            namespace.create()
            stack.callback(namespace.delete)
            return namespace

        yield make


@pytest.fixture
def namespace(make_namespace: Callable[[], Namespace]) -> Namespace:
    return make_namespace()
