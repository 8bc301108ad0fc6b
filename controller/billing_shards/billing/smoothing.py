"""Peak smoothing: charges that fall due at one instant are spread over a window, each subscription at a stable place. Pure."""

from __future__ import annotations

import hashlib


def offset_seconds(subscription: str, window_seconds: int) -> int:
    """How long after the start of its periods a subscription is charged: 0 <= offset < window, the same for ever.

    The hash is not the one that chose the shard: with that one, all of a shard would sit on a few seconds of the window.
    """
    if window_seconds == 0:
        return 0
    digest = hashlib.sha256(b"offset:" + subscription.encode()).digest()
    return int.from_bytes(digest[:8], "big") % window_seconds
