"""Who acts by hand."""

from __future__ import annotations

import getpass

from billing_shards import acts
from billing_shards.errors import InvalidInput


def actor(option: str | None) -> str:
    """The one named by `--actor`, or the system's user. Raises `InvalidInput`."""
    if option is not None:
        return acts.checked_actor(option)
    try:
        return acts.checked_actor(getpass.getuser())
    except (OSError, KeyError, ImportError):  # a pod's user need not have a name
        raise InvalidInput("--actor", "is needed: the system knows no name of this user") from None
