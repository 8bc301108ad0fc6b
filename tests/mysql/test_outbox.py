"""The outbox's SQL on a real server: leases, order, what is set aside, what is purged."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from billing_shards.cli.codes import ExitCode
from billing_shards.db import Rows, queries
from billing_shards.errors import NotFound, NotPossible
from billing_shards.outbox import events, keeping, manual, rounds, store
from billing_shards.outbox.events import Event
from billing_shards.outbox.model import Answer, Batch, Leased, Problem, Refused, Sent
from billing_shards.settings import OutboxSpec
from tests.mysql.command import cli
from tests.mysql.shard_set import ShardSet, pretty

SHARD = 3
ISSUED = {"invoice": 1, "amount": 990, "currency": "USD", "period_start": "2024-01-31", "period_end": "2024-02-29"}


def write(shard_set: ShardSet, *subscriptions: str, shard: int = SHARD) -> list[int]:
    """One event for each name, in their order; their numbers."""

    def body(transaction: Any) -> list[int]:
        first = transaction.take("event", len(subscriptions))
        told = [Event(type="invoice.issued", subscription=name, payload=ISSUED) for name in subscriptions]
        events.write(transaction, first, told)
        return list(range(first, first + len(told)))

    return shard_set.router.run(shard, body)


def take(shard_set: ShardSet, *, token: int = 1, limit: int = 100, seconds: float = 30) -> Batch:
    batch = rounds.take(shard_set.router, SHARD, token=token, lease_seconds=seconds, limit=limit)
    assert isinstance(batch, Batch)
    return batch


def numbers(batch: Batch) -> list[int]:
    return [event.number for event in batch.events]


def publish(shard_set: ShardSet, refuse: Sequence[int] = ()) -> list[int]:
    """A round against a broker that takes all but `refuse`; the numbers it was sent."""
    batch = take(shard_set)
    answers: list[Answer] = []
    blocked = set()
    for event in batch.events:
        if event.number in refuse:
            answers.append(Refused(event=event, problem=Problem.UNROUTABLE, details="no queue"))
            blocked.add(event.subscription)
        elif event.subscription not in blocked:
            answers.append(Sent(event=event))
    rounds.record(shard_set.router, SHARD, batch, answers)
    return [answer.event.number for answer in answers]


def ready(shard_set: ShardSet) -> list[int]:
    with shard_set.router.read(SHARD) as connection:
        return store.shards_to_publish(connection, [0, 1, 2, SHARD])


def rows(shard_set: ShardSet) -> dict[int, tuple[bool, int]]:
    """(sent, held) of each event."""
    found = shard_set.rows(SHARD, "SELECT id, sent_at IS NOT NULL, held FROM outbox WHERE shard_id = %(shard)s")
    return {row[0]: (bool(row[1]), row[2]) for row in found}


def due_now(shard_set: ShardSet) -> None:
    shard_set.change(SHARD, "UPDATE outbox_blocked SET next_try_at = NOW(6) WHERE shard_id = %(shard)s")


def test_a_batch_is_the_first_unsent_events_in_the_order_of_their_numbers(shard_set: ShardSet) -> None:
    assert ready(shard_set) == []
    assert write(shard_set, "a", "b", "a", "c") == [1, 2, 3, 4]
    assert ready(shard_set) == [SHARD]
    batch = take(shard_set, limit=3)
    assert numbers(batch) == [1, 2, 3]
    assert batch.full
    assert (batch.events[0].shard, batch.events[0].payload) == (SHARD, ISSUED)
    assert publish(shard_set) == [1, 2, 3, 4]
    assert all(sent for sent, _ in rows(shard_set).values())
    assert ready(shard_set) == []
    assert numbers(take(shard_set)) == []


def test_an_event_that_is_committed_late_is_not_passed_over(shard_set: ShardSet) -> None:
    """Numbers are taken last and locked to the COMMIT: whoever commits later has the higher number."""
    write(shard_set, "early")
    seen: list[list[int]] = []

    def slow(transaction: Any) -> None:
        first = transaction.take("event", 1)
        seen.append(publish(shard_set))  # another transaction publishes while this one is not committed
        events.write(transaction, first, [Event(type="invoice.issued", subscription="late", payload=ISSUED)])

    shard_set.router.run(SHARD, slow)
    assert seen == [[1]]
    assert publish(shard_set) == [2]


def test_a_lease_keeps_another_publisher_out_until_it_ends_or_is_released(shard_set: ShardSet) -> None:
    write(shard_set, "a")
    take(shard_set, token=1)
    other = rounds.take(shard_set.router, SHARD, token=2, lease_seconds=30, limit=10)
    assert isinstance(other, Leased)
    assert 20 < other.seconds <= 30
    assert numbers(take(shard_set, token=1)) == [1]  # renewed by its holder
    rounds.release(shard_set.router, SHARD, token=2)  # not its own
    assert isinstance(rounds.take(shard_set.router, SHARD, token=2, lease_seconds=30, limit=10), Leased)
    rounds.release(shard_set.router, SHARD, token=1)
    assert numbers(take(shard_set, token=2)) == [1]
    shard_set.change(SHARD, "UPDATE shard_task SET until = NOW(6) - INTERVAL 1 SECOND WHERE shard_id = %(shard)s")
    assert numbers(take(shard_set, token=3)) == [1]
    assert isinstance(rounds.take(shard_set.router, SHARD, token=2, lease_seconds=30, limit=10), Leased)


@pytest.mark.parametrize("after", [True, False])
def test_a_lost_answer_to_commit_changes_nothing(shard_set: ShardSet, lose_commit: Callable[[bool], None], after: bool) -> None:
    write(shard_set, "a", "b")
    lose_commit(after)
    batch = take(shard_set)
    lose_commit(after)
    rounds.record(shard_set.router, SHARD, batch, [Sent(event=event) for event in batch.events])
    assert all(sent for sent, _ in rows(shard_set).values())


def test_a_refused_event_holds_up_its_own_subscription_alone_and_goes_first_when_it_is_taken(shard_set: ShardSet) -> None:
    write(shard_set, "bad", "good", "bad", "good")
    assert publish(shard_set, refuse=[1]) == [1, 2, 4]
    assert rows(shard_set) == {1: (False, 1), 2: (True, 0), 3: (False, 1), 4: (True, 0)}
    assert ready(shard_set) == []  # what waits does not keep the publisher busy
    write(shard_set, "bad", "good")
    assert publish(shard_set) == [6]
    assert rows(shard_set)[5] == (False, 1)
    due_now(shard_set)
    assert ready(shard_set) == [SHARD]
    assert publish(shard_set, refuse=[1]) == [1]
    (failures,) = shard_set.rows(SHARD, "SELECT failures FROM outbox_blocked WHERE shard_id = %(shard)s")
    assert failures[0] == 2
    due_now(shard_set)
    assert publish(shard_set) == [1]
    assert publish(shard_set) == [3, 5]
    assert shard_set.count("outbox_blocked") == 0
    assert all(state == (True, 0) for state in rows(shard_set).values())


def test_a_publisher_that_comes_late_notes_what_is_true_and_nothing_else(shard_set: ShardSet) -> None:
    """Its lease is over: what it had confirmed is noted, what it saw refused no longer matters."""
    write(shard_set, "a", "b")
    late = take(shard_set, token=1)
    rounds.release(shard_set.router, SHARD, token=1)
    assert publish(shard_set) == [1, 2]
    write(shard_set, "a")
    answers: list[Answer] = [Sent(event=late.events[0]), Refused(event=late.events[1], problem=Problem.UNROUTABLE, details="no")]
    rounds.record(shard_set.router, SHARD, late, answers)
    assert shard_set.count("outbox_blocked") == 0
    assert publish(shard_set) == [3]


def test_a_skipped_event_is_never_sent_and_leaves_an_act(shard_set: ShardSet) -> None:
    write(shard_set, "bad", "bad", "good")
    publish(shard_set, refuse=[1])
    with shard_set.router.read(SHARD) as connection:
        (told,) = store.blocked(connection, [SHARD], 10)
    assert (told["event_id"], told["subscription_id"], told["problem"], told["waiting"]) == (1, "bad", "unroutable", 1)
    manual.skip(shard_set.router, SHARD, 1, actor="ann", reason="a test")
    assert shard_set.count("outbox_blocked") == 0
    assert rows(shard_set)[1] == (True, 2)
    assert publish(shard_set) == [2]
    act = shard_set.rows(
        SHARD, "SELECT actor, act, subject, subscription_id, before_act FROM manual_act WHERE shard_id = %(shard)s"
    )
    assert [row[:4] for row in act] == [("ann", "event.skip", "event:1", "bad")]
    assert json.loads(act[0][4])["problem"] == "unroutable"


def test_only_a_blocking_event_can_be_skipped(shard_set: ShardSet) -> None:
    write(shard_set, "bad", "bad", "good")
    publish(shard_set, refuse=[1])
    for number, told in ((2, "waits behind event 1"), (3, "was sent")):
        with pytest.raises(NotPossible, match=told):
            manual.skip(shard_set.router, SHARD, number, actor="ann", reason="a test")
    write(shard_set, "fresh")
    with pytest.raises(NotPossible, match="is not blocked"):
        manual.skip(shard_set.router, SHARD, 4, actor="ann", reason="a test")
    with pytest.raises(NotFound):
        manual.skip(shard_set.router, SHARD, 99, actor="ann", reason="a test")
    assert shard_set.count("manual_act") == 0


def test_blocked_events_are_tried_at_once_on_a_persons_word(shard_set: ShardSet) -> None:
    write(shard_set, "bad", "worse", "bad")
    publish(shard_set, refuse=[1, 2])
    assert ready(shard_set) == []
    manual.retry(shard_set.router, SHARD, 2, actor="ann", reason="mended")
    assert numbers(take(shard_set)) == [2]
    assert shard_set.count("manual_act", "act = 'event.retry' AND subject = 'event:2'") == 1


def test_purge_deletes_what_was_sent_long_ago_and_the_audit_can_still_count(shard_set: ShardSet) -> None:
    write(shard_set, *"abcdef")
    publish(shard_set, refuse=[2])
    age = "UPDATE outbox SET sent_at = NOW(6) - INTERVAL 100 SECOND WHERE shard_id = %(shard)s AND id IN (1, 3, 4)"
    shard_set.change(SHARD, age)
    database = shard_set.router.owner(SHARD).name
    assert not keeping.purge(shard_set.router, OutboxSpec(retention_seconds=200), database, [SHARD])
    assert len(rows(shard_set)) == 6
    keeping.purge(shard_set.router, OutboxSpec(retention_seconds=50), database, [SHARD])
    assert sorted(rows(shard_set)) == [2, 5, 6]
    assert gaps(shard_set) == []
    shard_set.change(SHARD, "UPDATE outbox SET sent_at = NOW(6) - INTERVAL 100 SECOND WHERE shard_id = %(shard)s AND id > 2")
    keeping.purge(shard_set.router, OutboxSpec(retention_seconds=50), database, [SHARD])
    assert sorted(rows(shard_set)) == [2]
    assert gaps(shard_set) == []
    write(shard_set, "g", "h", "i")
    assert gaps(shard_set) == []
    shard_set.change(SHARD, "DELETE FROM outbox WHERE shard_id = %(shard)s AND id = 8")
    assert gaps(shard_set) == [(8, 8, 1, 0)]
    shard_set.change(SHARD, "DELETE FROM outbox WHERE shard_id = %(shard)s AND id = 2")
    assert gaps(shard_set) == [(8, 8, 1, 0), (1, 6, 6, 5)]


def gaps(shard_set: ShardSet) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in shard_set.rows(SHARD, queries("audit").outbox_numbers)]


def test_purge_goes_in_bounded_steps(shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "PURGE_BATCH", 2)
    write(shard_set, *"abcde")
    publish(shard_set)
    shard_set.change(SHARD, "UPDATE outbox SET sent_at = NOW(6) - INTERVAL 100 SECOND WHERE shard_id = %(shard)s")
    left = []
    for _ in range(4):
        keeping.purge(shard_set.router, OutboxSpec(retention_seconds=50), shard_set.router.owner(SHARD).name, [SHARD])
        left.append(len(rows(shard_set)))
    assert left == [3, 1, 0, 0]


@pytest.mark.parametrize("name", ["unsent", "outlived", "held_of"])
def test_queries_of_a_shard_read_the_index_from_its_place_on_and_sort_nothing(shard_set: ShardSet, name: str) -> None:
    write(shard_set, *(f"s{n}" for n in range(300)))
    write(shard_set, *(f"s{n}" for n in range(300)), shard=2)
    params = {"limit": 50, "retention_seconds": 10, "subscriptions": ("s1", "s2")}
    plan = shard_set.explain(SHARD, getattr(queries("outbox"), name), **params)
    assert plan[0]["key"] == "unsent", pretty(plan)
    assert plan[0]["type"] in {"ref", "range"}, pretty(plan)
    assert not any("filesort" in (step["Extra"] or "") for step in plan), pretty(plan)


def test_looking_for_shards_with_events_reads_one_entry_of_each(shard_set: ShardSet) -> None:
    write(shard_set, *(f"s{n}" for n in range(500)))
    with shard_set.owner(SHARD) as connection:
        before = entries_read(connection)
        connection.exec_driver_sql(queries("outbox").shards_to_publish, {"rows": Rows([0, 1, 2, SHARD])}).all()
        assert entries_read(connection) - before < 20


def entries_read(connection: Connection) -> int:
    """Index entries that this connection has read."""
    rows = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'").all()
    return sum(int(row[1]) for row in rows if row[0] in {"Handler_read_key", "Handler_read_next"})


def test_what_waits_is_measured(shard_set: ShardSet) -> None:
    write(shard_set, "bad", "good", "bad")
    publish(shard_set, refuse=[1])
    write(shard_set, "good")
    with shard_set.router.read(SHARD) as connection:
        found = {one.shard: one for one in store.measure(connection, [0, SHARD])}
    assert (found[0].blocked, found[0].oldest) == (0, None)
    (written,) = shard_set.rows(SHARD, "SELECT created_at FROM outbox WHERE shard_id = %(shard)s AND id = 4")
    assert (found[SHARD].blocked, found[SHARD].oldest) == (1, written[0])


def test_the_command_line_shows_what_is_blocked_and_acts_upon_it(shard_set: ShardSet, tmp_path: Path) -> None:
    manifest = shard_set.manifest(tmp_path / "main.yaml")
    write(shard_set, "bad", "worse", "bad")
    publish(shard_set, refuse=[1, 2])
    why = ("--reason", "a test", "--actor", "ann", "--manifest", manifest)
    (first, _) = cli("events", "blocked", "--json", "--manifest", manifest).json["blocked"]
    assert (first["shard_id"], first["event_id"], first["problem"], first["waiting"]) == (SHARD, 1, "unroutable", 1)
    assert f"{SHARD}/1" in cli("events", "blocked", "--manifest", manifest).out
    assert cli("events", "skip", f"{SHARD}/1", *why).code == ExitCode.OK
    assert cli("events", "retry", f"{SHARD}/2", *why).code == ExitCode.OK
    assert sorted(numbers(take(shard_set))) == [2, 3]
    refused = cli("events", "skip", f"{SHARD}/1", *why)
    assert (refused.code, refused.err) == (ExitCode.FAILED, f"error: event {SHARD}/1 was skipped already\n")
    assert cli("events", "skip", f"{SHARD}/77", *why).code == ExitCode.NOT_FOUND
    for wrong in ("7", "9/1", f"{SHARD}/x"):
        assert cli("events", "skip", wrong, *why).code == ExitCode.BAD_INPUT
    assert shard_set.count("manual_act") == 2
