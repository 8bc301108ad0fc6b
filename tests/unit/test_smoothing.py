"""Each subscription has a stable place in the window, and a shard's subscriptions are spread over all of it."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from billing_shards.billing.smoothing import offset_seconds
from billing_shards.shards.model import shard_of


def test_an_offset_never_changes() -> None:
    """Fixed for ever: another value would move every customer's charge."""
    assert [offset_seconds(f"sub-{n}", 3600) for n in range(4)] == [737, 1691, 1449, 2110]


@given(st.text(max_size=64), st.integers(1, 86_400))
def test_an_offset_is_inside_the_window(subscription: str, window: int) -> None:
    assert 0 <= offset_seconds(subscription, window) < window


def test_without_a_window_nothing_waits() -> None:
    assert offset_seconds("sub-1", 0) == 0


def test_subscriptions_are_spread_evenly() -> None:
    minutes = Counter(offset_seconds(f"sub-{n}", 3600) // 60 for n in range(60_000))
    assert len(minutes) == 60
    assert max(minutes.values()) < 1200  # 1000 on average: six standard deviations


def test_one_shard_is_spread_over_the_whole_window() -> None:
    """With the shard's own hash, 256 shards and 3600 s, each shard would have 225 of the 3600 seconds."""
    seconds = {offset_seconds(key, 3600) for key in (f"sub-{n}" for n in range(200_000)) if shard_of(key, 256) == 7}
    assert len(seconds) > 600  # of about 780 subscriptions
