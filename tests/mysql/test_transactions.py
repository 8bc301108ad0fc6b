"""The routed transaction: fence, reruns, moves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import QueuePool

from billing_shards.errors import CommitUnknown, DatabaseUnavailable, NotOwner, ShardFenced, ShardUnknown, TransactionFailed
from billing_shards.shards import shardset
from billing_shards.shards.transactions import ShardTransaction
from tests.mysql.shard_set import NAME, ShardSet


def fence(shard_set: ShardSet, shard: int, state: int, moved_to: str | None = None) -> None:
    statement = "UPDATE shard_owner SET state = %(state)s, moved_to = %(to)s, epoch = epoch + 1 WHERE shard_id = %(shard)s"
    shard_set.change(shard, statement, state=state, to=moved_to)


def take(transaction: ShardTransaction) -> int:
    return transaction.take("id", 10)


def test_counters_count(shard_set: ShardSet) -> None:
    assert [shard_set.router.run(2, take) for _ in range(3)] == [1, 11, 21]
    assert shard_set.router.run(2, lambda t: t.take_many({"event": 2, "ledger": 3})) == {"event": 1, "ledger": 1}
    assert shard_set.router.run(2, lambda t: t.take_many({"event": 1, "ledger": 1})) == {"event": 3, "ledger": 4}


def test_a_fenced_shard_is_waited_for(shard_set: ShardSet) -> None:
    fence(shard_set, 2, 2)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(shard_set.router.run, 2, take)
        threading.Event().wait(0.2)
        assert not future.done()
        fence(shard_set, 2, 1)
        assert future.result(timeout=30) == 1


def test_a_fence_that_stays_is_an_error_that_names_the_shard(shard_set: ShardSet) -> None:
    fence(shard_set, 2, 2)
    with pytest.raises(ShardFenced, match="shard 2"):
        shard_set.router.run(2, take)


def test_a_moved_shard_is_followed(shard_set: ShardSet) -> None:
    source, target = shard_set.router.owner(2).name, "b"
    with shard_set.owners[target].engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO shard_owner (shard_id, epoch, state, updated_at) VALUES (2, 2, 1, NOW(6))")
        connection.exec_driver_sql("INSERT INTO shard_sequence VALUES (2, 'id', 501), (2, 'event', 1), (2, 'ledger', 1)")
    fence(shard_set, 2, 4, target)
    assert source == "a"
    assert shard_set.router.run(2, take) == 501
    assert shard_set.router.owner(2).name == target


def test_a_shard_that_the_database_never_had(shard_set: ShardSet) -> None:
    shard_set.change(2, "DELETE FROM shard_owner WHERE shard_id = %(shard)s")
    with pytest.raises(NotOwner, match="shard 2: not owned by database a"):
        shard_set.router.run(2, take)
    with pytest.raises(ShardUnknown, match="shard 99"):
        shard_set.router.run(99, take)


def test_a_writer_holds_the_fence_until_it_commits(shard_set: ShardSet) -> None:
    """A hand-over that takes the fence row exclusively waits for open writers; another shard's writer waits for nobody."""
    inside, leave = threading.Event(), threading.Event()

    def slow(transaction: ShardTransaction) -> int:
        inside.set()
        leave.wait(20)
        return take(transaction)

    with ThreadPoolExecutor(2) as pool:
        writer = pool.submit(shard_set.router.run, 2, slow)
        assert inside.wait(20)
        handover = pool.submit(fence, shard_set, 2, 2)
        threading.Event().wait(0.2)
        assert not handover.done()
        assert shard_set.router.run(3, take) == 1
        leave.set()
        assert writer.result(timeout=30) == 1
        handover.result(timeout=30)


def test_deadlocked_transactions_are_run_again_as_a_whole(shard_set: ShardSet) -> None:
    runs: list[str] = []
    meet = threading.Barrier(2, timeout=20)
    statement = "UPDATE shard_sequence SET next_value = next_value + 1 WHERE shard_id = %(shard)s AND name = %(name)s"

    def crossing(first: str, second: str) -> Callable[[ShardTransaction], None]:
        waited = threading.Event()

        def body(transaction: ShardTransaction) -> None:
            runs.append(first)
            transaction.write(statement, {"name": first}, table="shard_sequence", keys=[(first,)])
            if not waited.is_set():
                waited.set()
                meet.wait()
            transaction.write(statement, {"name": second}, table="shard_sequence", keys=[(second,)])

        return body

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(shard_set.router.run, 1, crossing(*names)) for names in (("id", "event"), ("event", "id"))]
        for future in both:
            future.result(timeout=60)
    assert len(runs) == 3
    values = shard_set.rows(1, "SELECT next_value FROM shard_sequence WHERE shard_id = %(shard)s AND name <> 'ledger'")
    assert [row[0] for row in values] == [3, 3]


def test_a_lock_wait_rolls_the_whole_transaction_back(shard_set: ShardSet) -> None:
    """MySQL rolls back the statement alone: committing after it would keep half a batch."""
    runs = 0
    free = threading.Event()

    def body(transaction: ShardTransaction) -> int:
        nonlocal runs
        runs += 1
        value = transaction.take("event", 1)
        if runs == 2:
            free.set()
        transaction.write(
            "UPDATE shard_sequence SET next_value = next_value + 1 WHERE shard_id = %(shard)s AND name = 'id'",
            {},
            table="shard_sequence",
            keys=[("id",)],
        )
        return value

    for database in shard_set.router.databases.values():
        database.engine.dispose()
    with shard_set.owner(2) as connection:
        connection.exec_driver_sql("SELECT 1 FROM shard_sequence WHERE shard_id = 2 AND name = 'id' FOR UPDATE")
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(shard_set.router.run, 2, body)
            free.wait(25)
            connection.rollback()
            assert future.result(timeout=60) == 1
    assert runs >= 2
    (row,) = shard_set.rows(2, "SELECT next_value FROM shard_sequence WHERE shard_id = %(shard)s AND name = 'event'")
    assert row[0] == 2


def test_without_a_proof_a_lost_commit_is_said_to_be_unknown(shard_set: ShardSet, lose_commit: Callable[[bool], None]) -> None:
    lose_commit(True)
    with pytest.raises(CommitUnknown, match="shard 2"):
        shard_set.router.run(2, take)


def test_a_proof_that_finds_nothing_runs_the_transaction_again(shard_set: ShardSet, lose_commit: Callable[[bool], None]) -> None:
    lose_commit(False)
    assert shard_set.router.run(2, take, committed=lambda _: None) == 1


def test_a_transaction_that_never_passes_ends(shard_set: ShardSet) -> None:
    def body(transaction: ShardTransaction) -> None:
        raise_deadlock(transaction)

    def raise_deadlock(transaction: ShardTransaction) -> None:
        signal = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'deadlock'"
        transaction.write(signal, {}, table="none", keys=[])

    with pytest.raises(TransactionFailed, match="rolled back 8 times"):
        shard_set.router.run(2, body)


def test_connections_that_are_all_in_use_are_a_database_that_is_unavailable(shard_set: ShardSet) -> None:
    """Not a fault of our own, which would end the process."""
    router = shardset.open_router(NAME, shard_set.spec, shard_set.secrets, pool_size=1)
    name = router.owner(0).name
    pool = router.databases[name].engine.pool
    assert isinstance(pool, QueuePool)
    pool._timeout = 0.1
    message = r"^database a: every connection of this process has been in use for too long$"
    try:
        with router.connect(name), pytest.raises(DatabaseUnavailable, match=message), router.connect(name):
            pass
    finally:
        router.close()


def test_what_was_committed_is_not_rolled_back_and_what_was_left_open_is(shard_set: ShardSet) -> None:
    """A connection of one pool, which goes back and forth; ROLLBACKs are counted by its session."""

    def rollbacks() -> tuple[int, int]:
        raw = database.engine.raw_connection()
        cursor = raw.cursor()
        cursor.execute("SHOW SESSION STATUS LIKE 'Com_rollback'")
        ((_, count),) = cursor.fetchall()
        cursor.execute("SELECT CONNECTION_ID()")
        ((connection,),) = cursor.fetchall()
        raw.close()
        return connection, int(count)

    database = shard_set.router.owner(2)
    before = rollbacks()
    assert [shard_set.router.run(2, take) for _ in range(3)] == [1, 11, 21]
    assert rollbacks() == before
    raw = database.engine.raw_connection()
    raw.cursor().execute("UPDATE shard_sequence SET next_value = 99 WHERE shard_id = 2")
    raw.close()
    assert rollbacks() == (before[0], before[1] + 1)
    assert shard_set.router.run(2, take) == 31
