"""What all tests share. Examples of property tests are not timed: the machine's speed is not what they are about."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("billing-shards", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("billing-shards")

_LONGEST_FIRST = ("cluster", "simulation")


@pytest.hookimpl(tryfirst=True)  # after the shuffle, which wraps all hooks, and before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two processes share the tests, a file at a time, so that its servers are started once. The cluster is one for all of them;
    what takes longest begins first.
    """
    folders = {item: item.path.relative_to(Path(__file__).parent).parts[0] for item in items}
    for item, folder in folders.items():
        item.add_marker(pytest.mark.xdist_group(folder if folder == "cluster" else str(item.path)))
    items.sort(key=lambda item: _LONGEST_FIRST.index(folders[item]) if folders[item] in _LONGEST_FIRST else len(_LONGEST_FIRST))
