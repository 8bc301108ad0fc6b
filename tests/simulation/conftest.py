"""The databases that simulated runs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mysql.shard_set import ShardSet
from tests.simulation import site


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardSet]:
    with site.started(tmp_path_factory.mktemp("simulation")) as shard_set:
        yield shard_set


@pytest.fixture
def simulated(started: ShardSet) -> Iterator[ShardSet]:
    """Silent for one test alone: others look at what is logged."""
    with site.silence():
        yield started
