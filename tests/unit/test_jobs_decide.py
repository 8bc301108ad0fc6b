"""How workers are shared between lanes, and how long a claimer rests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing_shards.jobs.decide import rest, room, share_of
from billing_shards.jobs.model import Lane

WORKERS = st.integers(2, 1000)


@given(WORKERS, st.data())
def test_no_process_ever_holds_more_than_its_workers(workers: int, data: st.DataObject) -> None:
    held = {lane: data.draw(st.integers(0, workers)) for lane in Lane}
    for lane in Lane:
        more = room(lane, held, set(Lane), workers)
        assert more >= 0
        assert more == 0 or sum(held.values()) + more <= workers


@given(WORKERS, st.sampled_from(Lane))
def test_a_flood_in_one_lane_leaves_the_other_its_share(workers: int, flooding: Lane) -> None:
    other = next(lane for lane in Lane if lane is not flooding)
    held = {flooding: room(flooding, {}, {other}, workers)}
    assert room(other, held, {flooding}, workers) >= share_of(other, workers) >= 1


@given(WORKERS, st.sampled_from(Lane))
def test_a_lane_alone_uses_all_workers(workers: int, lane: Lane) -> None:
    assert room(lane, {}, {lane}, workers) == workers


@given(st.one_of(st.none(), st.floats(-10, 1e6)), st.floats(0, 1, exclude_max=True))
def test_rest_is_bounded_and_never_sleeps_past_a_known_due_job(due: float | None, draw: float) -> None:
    seconds = rest(due, 0.8, draw)
    assert 0 < seconds <= 0.8
    assert due is None or seconds <= max(due, 0.01)
