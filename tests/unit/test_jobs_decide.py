"""How what a process holds is shared between lanes, and how long a claimer rests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing_shards.jobs.decide import rest, room, share_of
from billing_shards.jobs.model import RENEWAL, RETRY, Lane

LIMITS = st.integers(10, 1000)
WEIGHTS = st.dictionaries(st.integers(2, 201).map(Lane), st.integers(1, 100), max_size=8).map(
    lambda services: {RENEWAL: 3, RETRY: 1, **services}
)


@given(LIMITS, WEIGHTS, st.data())
def test_no_process_ever_holds_more_than_its_limit(limit: int, weights: dict[Lane, int], data: st.DataObject) -> None:
    held = {lane: data.draw(st.integers(0, limit)) for lane in weights}
    due = data.draw(st.sets(st.sampled_from(sorted(weights))))
    for lane in weights:
        more = room(lane, held, due, limit, weights)
        assert more >= 0
        assert more == 0 or sum(held.values()) + more <= limit


@given(LIMITS, WEIGHTS, st.data())
def test_a_flood_in_one_lane_leaves_each_other_its_share(limit: int, weights: dict[Lane, int], data: st.DataObject) -> None:
    flooding, other = data.draw(st.permutations(sorted(weights)))[:2]
    held = {flooding: room(flooding, {}, weights, limit, weights)}
    assert room(other, held, weights, limit, weights) >= share_of(other, limit, weights) >= 1


@given(LIMITS, WEIGHTS, st.data())
def test_a_lane_alone_borrows_most_of_the_others_shares(limit: int, weights: dict[Lane, int], data: st.DataObject) -> None:
    lane, other = data.draw(st.permutations(sorted(weights)))[:2]
    alone = room(lane, {}, {lane}, limit, weights)
    assert alone >= share_of(lane, limit, weights) + (limit - share_of(lane, limit, weights)) // 2 - len(weights)
    assert room(other, {lane: alone}, {lane, other}, limit, weights) >= share_of(other, limit, weights) // 4


@given(st.one_of(st.none(), st.floats(-10, 1e6)), st.floats(0, 1, exclude_max=True))
def test_rest_is_bounded_and_never_sleeps_past_a_known_due_job(due: float | None, draw: float) -> None:
    seconds = rest(due, 0.8, draw)
    assert 0 < seconds <= 0.8
    assert due is None or seconds <= max(due, 0.01)
