"""The rules of publishing: by table, and a model of two publishers whose steps fall in any order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.outbox import decide
from billing_shards.outbox.model import Answer, Batch, Blockage, Problem, Record, Refused, Sent, StoredEvent


def event(number: int, subscription: str = "s") -> StoredEvent:
    return StoredEvent(
        shard=0, number=number, type="invoice.issued", subscription=subscription, payload={}, created_at=datetime(2026, 1, 1)
    )


def refused(one: StoredEvent) -> Refused:
    return Refused(event=one, problem=Problem.UNROUTABLE, details="no queue")


def record(
    batch: Batch, answers: list[Answer], *, blocked: list[Blockage] | None = None, unsent: set[int] | None = None
) -> Record:
    known = {one.event.number for one in answers} if unsent is None else unsent
    return decide.record(batch, answers, blocked=blocked or [], unsent=known, draw=0.0)


def batch_of(*events: StoredEvent, behind: tuple[StoredEvent, ...] = ()) -> Batch:
    return Batch(events=events, behind=behind, full=False)


def test_chains_are_ordered_by_number_and_hold_one_subscription_each() -> None:
    found = decide.chains([event(3, "b"), event(2, "a"), event(1, "b"), event(5, "a")])
    assert [[(one.subscription, one.number) for one in chain] for chain in found] == [
        [("b", 1), ("b", 3)],
        [("a", 2), ("a", 5)],
    ]


def test_a_refused_event_blocks_its_own_subscription_and_holds_what_is_behind_it() -> None:
    one, two, other = event(1), event(2), event(3, "other")
    found = record(batch_of(one, two, other), [refused(one), Sent(event=other)])
    assert found.sent == [3]
    assert [(block.subscription, block.number, block.failures) for block in found.blocks] == [("s", 1, 1)]
    assert found.hold == [1, 2]
    assert found.release == []


def test_a_retried_event_that_is_taken_lets_its_subscription_go() -> None:
    one = event(1)
    blocked = [Blockage(subscription="s", number=1, failures=4)]
    found = record(batch_of(one, behind=(event(2),)), [Sent(event=one)], blocked=blocked)
    assert (found.sent, found.release, found.hold, found.blocks) == ([1], ["s"], [], [])


def test_a_retried_event_that_is_refused_again_waits_longer() -> None:
    one = event(1)
    found = record(batch_of(one), [refused(one)], blocked=[Blockage(subscription="s", number=1, failures=2)])
    (block,) = found.blocks
    assert block.failures == 3
    assert block.seconds == decide.retry_seconds(3, 0.0) == 40


def test_events_of_a_blocked_subscription_are_set_aside() -> None:
    behind = (event(7), event(9))
    found = record(batch_of(behind=behind), [], blocked=[Blockage(subscription="s", number=1, failures=1)])
    assert found.hold == [7, 9]


def test_events_read_as_blocked_are_left_alone_where_the_subscription_is_free_again() -> None:
    assert record(batch_of(behind=(event(7),)), []).hold == []


def test_an_event_that_was_skipped_or_sent_meanwhile_blocks_nobody() -> None:
    one, two = event(1), event(2)
    found = record(batch_of(one, two), [refused(one)], unsent=set())
    assert (found.blocks, found.hold) == ([], [])


def test_a_block_by_an_earlier_event_is_kept() -> None:
    """Another publisher was quicker: what it noted about the earlier event is not overwritten."""
    found = record(batch_of(event(5)), [refused(event(5))], blocked=[Blockage(subscription="s", number=1, failures=1)])
    assert (found.blocks, found.hold) == ([], [5])


def test_details_fit_their_column() -> None:
    long = Refused(event=event(1), problem=Problem.SCHEMA, details="x" * 10_000)
    (block,) = record(batch_of(event(1)), [long]).blocks
    assert len(block.details) == decide.DETAILS_LENGTH_MAX


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([], False),
        ([refused(event(1))], False),
        ([refused(event(1)), refused(event(2, "b"))], True),
        ([refused(event(1)), Sent(event=event(2, "b"))], False),
        ([Sent(event=event(1)), Sent(event=event(2))], False),
    ],
)
def test_a_round_that_was_refused_as_a_whole_is_followed_by_a_rest(answers: list[Answer], expected: bool) -> None:
    assert decide.troubled(answers) is expected


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_waits_grow_to_their_limit_and_never_beyond(failures: int, draw: float) -> None:
    assert decide.RETRY_SECONDS_MIN <= decide.retry_seconds(failures, draw) <= decide.RETRY_SECONDS_MAX * 1.1
    assert decide.REST_SECONDS_MIN / 2 <= decide.rest_seconds(failures, draw) <= decide.REST_SECONDS_MAX
    assert decide.retry_seconds(failures, draw) <= decide.retry_seconds(failures + 1, draw)


@given(st.integers(1, 5000), st.lists(st.booleans(), max_size=40))
def test_the_pace_stays_between_one_and_its_limit(limit: int, failures: list[bool]) -> None:
    pace = decide.Pace(limit=limit, limit_max=limit)
    for failed in failures:
        before, pace = pace, pace.after(failed=failed)
        assert 1 <= pace.limit <= limit
        assert pace.limit <= before.limit if failed else pace.limit >= before.limit
        assert pace.failures == (before.failures + 1 if failed else 0)


@dataclass(slots=True)
class Row:
    """An event as the outbox has it."""

    event: StoredEvent
    sent: bool = False
    held: bool = False


@dataclass(slots=True)
class Model:
    """An outbox, a broker that takes or refuses, and publishers that know nothing of each other: no lease keeps them apart."""

    rows: dict[int, Row]
    poison: set[int]
    delivered: list[StoredEvent] = field(default_factory=list)
    blocked: dict[str, Blockage] = field(default_factory=dict)

    def read(self, limit: int) -> Batch:
        free = [row.event for row in self.rows.values() if not row.sent and not row.held][:limit]
        again = [self.rows[one.number].event for one in self.blocked.values()]
        return Batch(
            events=[*again, *(one for one in free if one.subscription not in self.blocked)],
            behind=[one for one in free if one.subscription in self.blocked],
            full=len(free) == limit,
        )

    def send(self, one: StoredEvent) -> Answer:
        if one.number in self.poison:
            return refused(one)
        self.delivered.append(one)
        return Sent(event=one)

    def record(self, batch: Batch, answers: list[Answer]) -> None:
        names = {one.subscription for one in (*batch.events, *batch.behind)}
        found = decide.record(
            batch,
            answers,
            blocked=[one for name, one in self.blocked.items() if name in names],
            unsent={one.event.number for one in answers if not self.rows[one.event.number].sent},
            draw=0.0,
        )
        for number in found.sent:
            self.rows[number].sent, self.rows[number].held = True, False
        for name in found.release:
            del self.blocked[name]
            for row in self.rows.values():
                row.held = row.held and row.event.subscription != name
        for block in found.blocks:
            self.blocked[block.subscription] = Blockage(
                subscription=block.subscription, number=block.number, failures=block.failures
            )
        for number in found.hold:
            self.rows[number].held = not self.rows[number].sent


@dataclass(slots=True)
class Publisher:
    """Its next step: read, send the next event of one of its chains, or record; it may also die, and forget all."""

    model: Model
    batch: Batch | None = None
    chains: list[list[StoredEvent]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def step(self, choice: int, limit: int) -> None:
        if self.batch is None:
            self.batch = self.model.read(limit)
            self.chains = [list(chain) for chain in decide.chains(self.batch.events)]
        elif choice == 0:
            self.batch, self.chains, self.answers = None, [], []
        elif self.chains and choice > 1:
            chain = self.chains[choice % len(self.chains)]
            answer = self.model.send(chain.pop(0))
            self.answers.append(answer)
            if isinstance(answer, Refused) or not chain:
                self.chains.remove(chain)
        else:
            self.model.record(self.batch, self.answers)
            self.batch, self.chains, self.answers = None, [], []


STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(1, 6)), max_size=80)


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=14),
    st.sets(st.integers(1, 14), max_size=3),
    STEPS,
    st.integers(0, 80),
)
def test_whatever_two_publishers_do_the_first_deliveries_are_in_order_and_nothing_is_lost(
    subscriptions: list[str], poison: set[int], steps: list[tuple[int, int, int]], cured_at: int
) -> None:
    rows = {number: Row(event(number, name)) for number, name in enumerate(subscriptions, 1)}
    model = Model(rows=rows, poison=set(poison))
    publishers = [Publisher(model), Publisher(model)]
    for at, (which, choice, limit) in enumerate(steps):
        if at == cured_at:
            model.poison.clear()
        publishers[which].step(choice, limit)
    model.poison.clear()
    last = Publisher(model)
    for _ in range(8 * len(rows) + 8):
        last.step(2, 3)
    assert {one.number for one in model.delivered} == set(rows)
    assert all(row.sent for row in rows.values())
    first: defaultdict[str, list[int]] = defaultdict(list)
    for one in model.delivered:
        if one.number not in first[one.subscription]:
            first[one.subscription].append(one.number)
    assert all(numbers == sorted(numbers) for numbers in first.values())
