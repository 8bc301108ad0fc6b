"""How what a process holds is shared between lanes, and how long a claimer rests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing_shards.jobs.decide import backoff, rest, room, shares, worthwhile
from billing_shards.jobs.model import RENEWAL, RETRY, Lane

LIMITS = st.integers(10, 1000)
WEIGHTS = st.dictionaries(st.integers(2, 201).map(Lane), st.integers(1, 100), max_size=8).map(
    lambda services: {RENEWAL: 3, RETRY: 1, **services}
)


@given(st.integers(1, 1000), WEIGHTS)
def test_shares_are_at_least_one_and_together_never_more_than_there_is(limit: int, weights: dict[Lane, int]) -> None:
    sure = shares(limit, weights)
    assert sure.keys() == weights.keys()
    assert sum(sure.values()) <= limit
    assert min(sure.values()) >= (1 if limit >= len(weights) else 0)
    heavier = [(a, b) for a in weights for b in weights if weights[a] > weights[b]]
    assert all(sure[a] >= sure[b] for a, b in heavier)


def test_shares_follow_the_weights() -> None:
    assert shares(1004, {RENEWAL: 3, RETRY: 1, Lane(2): 6, Lane(3): 10}) == {RENEWAL: 151, RETRY: 51, Lane(2): 301, Lane(3): 501}


@given(LIMITS, WEIGHTS, st.data())
def test_however_lanes_take_and_give_back_no_process_holds_more_than_its_limit_and_each_lane_finds_half_its_share(
    limit: int, weights: dict[Lane, int], data: st.DataObject
) -> None:
    sure = shares(limit, weights)
    held = dict.fromkeys(weights, 0)
    some = st.sampled_from(sorted(weights))
    for lane, due, gives_back in data.draw(st.lists(st.tuples(some, st.sets(some), st.booleans()), max_size=30)):
        if gives_back:
            held[lane] -= data.draw(st.integers(0, held[lane]))
        else:
            held[lane] += room(lane, held, due, limit, sure)
        assert sum(held.values()) <= limit
        for other, share in sure.items():
            assert held[other] + room(other, held, weights, limit, sure) >= share / 2


@given(LIMITS, WEIGHTS, st.data())
def test_a_flood_in_one_lane_leaves_each_other_its_share(limit: int, weights: dict[Lane, int], data: st.DataObject) -> None:
    sure = shares(limit, weights)
    flooding, other = data.draw(st.permutations(sorted(weights)))[:2]
    held = {flooding: room(flooding, {}, weights, limit, sure)}
    assert room(other, held, weights, limit, sure) >= sure[other] >= 1


@given(LIMITS, WEIGHTS, st.data())
def test_lanes_that_never_give_back_leave_a_busy_one_its_share_for_ever(
    limit: int, weights: dict[Lane, int], data: st.DataObject
) -> None:
    """Every other lane hangs and takes whatever it may have, in any order, while this one has something in use."""
    sure = shares(limit, weights)
    lane, *others = data.draw(st.permutations(sorted(weights)))
    held = {lane: data.draw(st.integers(1, sure[lane]))}
    for other in others:
        held[other] = room(other, held, others, limit, sure)
    assert held[lane] + room(lane, held, weights, limit, sure) >= sure[lane]


@given(LIMITS, WEIGHTS, st.data())
def test_a_lane_alone_borrows_half_of_the_others_shares(limit: int, weights: dict[Lane, int], data: st.DataObject) -> None:
    sure = shares(limit, weights)
    lane, other = data.draw(st.permutations(sorted(weights)))[:2]
    alone = room(lane, {}, {lane}, limit, sure)
    assert alone >= sure[lane] + (limit - sure[lane] - len(weights)) // 2
    assert room(other, {lane: alone}, {lane, other}, limit, sure) >= sure[other] / 2


@given(LIMITS, WEIGHTS, st.integers(1, 2000))
def test_a_claim_waits_for_no_more_room_than_its_lane_is_sure_of(limit: int, weights: dict[Lane, int], batch: int) -> None:
    """Even where another lane's jobs hang, and have the half of its share that it lent while it was idle."""
    for share in shares(limit, weights).values():
        least = worthwhile(batch, limit, share)
        assert 1 <= least <= min(batch, limit)
        assert least <= (share + 1) // 2 or least == 1


@given(st.one_of(st.none(), st.floats(-10, 1e6)), st.floats(0, 1, exclude_max=True))
def test_rest_is_bounded_and_never_sleeps_past_a_known_due_job(due: float | None, draw: float) -> None:
    seconds = rest(due, 0.8, draw)
    assert 0 < seconds <= 0.8
    assert due is None or seconds <= max(due, 0.01)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_waits_after_failures_grow_up_to_a_bound(failures: int, draw: float) -> None:
    assert 0.1 < backoff(failures, draw) <= backoff(failures, 0.0) <= backoff(failures + 1, 0.0) <= 10
