"""The scheduler on real servers: one invoice a period with all that belongs to it, whoever else is at work or is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import event

from billing_shards.billing.scheduler import due_shards, schedule_shard
from billing_shards.billing.smoothing import offset_seconds
from billing_shards.db import queries
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import job_key
from tests.mysql.faults import KilledError, killed_after
from tests.mysql.shard_set import ShardSet, pretty

FAR_FUTURE = datetime(2999, 1, 1)
WINDOW, GRACE = 3600, 14 * 86_400


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def schedule(shard_set: ShardSet, shard: int, **changes: Any) -> int:
    options = {"lanes": Lanes(shard_set.spec), "grace_seconds": GRACE, "missed_max": 1000, **changes}
    return schedule_shard(shard_set.router, shard, **options)


def schedule_all(shard_set: ShardSet, **changes: Any) -> int:
    """Until nothing is due any more."""
    count = 0
    while shards := due_shards(shard_set.router, shard_set.shards):
        count += sum(schedule(shard_set, shard, **changes) for shard in shards)
    return count


def periods(shard_set: ShardSet, subscription: str) -> list[tuple[str, str]]:
    rows = shard_set.rows(
        shard_set.shard_of(subscription),
        "SELECT period_start, period_end FROM invoice WHERE shard_id = %(shard)s AND subscription_id = %(id)s ORDER BY 1",
        id=subscription,
    )
    return [(str(row[0]), str(row[1])) for row in rows]


def assert_whole(shard_set: ShardSet, invoices: int) -> None:
    """Each invoice has its job, ledger entry and event, and numbers have no gaps."""
    assert shard_set.count("invoice") == invoices
    joined = (
        "invoice i"
        " JOIN billing_job j ON j.shard_id = i.shard_id AND j.invoice_id = i.id AND j.subscription_id = i.subscription_id"
        " JOIN ledger_entry l ON l.shard_id = i.shard_id AND l.invoice_id = i.id AND l.amount = i.amount"
        " JOIN outbox o ON o.shard_id = i.shard_id AND o.subscription_id = i.subscription_id AND o.payload->'$.invoice' = i.id"
    )
    assert shard_set.count(joined) == invoices
    for table, name in (("ledger_entry", "ledger"), ("outbox", "event")):
        assert shard_set.count(table) == invoices
        rows = f"(SELECT COUNT(*) FROM {table} t WHERE t.shard_id = s.shard_id)"
        assert shard_set.count("shard_sequence s", f"name = '{name}' AND next_value <> 1 + {rows}") == 0
    assert shard_set.count("billing_job") == invoices


def test_a_period_that_begins_is_invoiced_with_all_that_belongs_to_it(shard_set: ShardSet) -> None:
    shard_set.set_clock(at("2024-02-01T08:00:00"))
    shard = shard_set.add_subscription("sub-1", amount=990, payment_method="pm_7")
    assert schedule(shard_set, shard) == 1
    invoice = shard_set.rows(shard, "SELECT * FROM invoice WHERE shard_id = %(shard)s")[0]._mapping
    due, key = at("2024-01-31T00:00:00"), job_key("sub-1", date(2024, 1, 31), 1)
    charged = due + timedelta(seconds=offset_seconds("sub-1", WINDOW))
    assert (invoice["period_start"], invoice["period_end"]) == (date(2024, 1, 31), date(2024, 2, 29))
    assert (invoice["amount"], invoice["currency"], invoice["status"], invoice["charge_type"]) == (990, "USD", 1, 1)
    assert (invoice["due_at"], invoice["issued_at"]) == (due, at("2024-02-01T08:00:00"))
    job = shard_set.rows(shard, "SELECT * FROM billing_job WHERE shard_id = %(shard)s")[0]._mapping
    assert (job["lane"], job["status"], job["attempt_no"], job["attempt_open"]) == (0, 0, 0, 0)
    assert (job["due_at"], job["invoice_id"], job["idempotency_key"]) == (charged, invoice["id"], key)
    assert (job["amount"], job["currency"], job["payment_method"]) == (990, "USD", "pm_7")
    entry = shard_set.rows(shard, "SELECT * FROM ledger_entry WHERE shard_id = %(shard)s")[0]._mapping
    assert (entry["debit_account"], entry["credit_account"]) == ("receivable:sub-1", "revenue:video")
    assert (entry["amount"], entry["currency"], entry["kind"], entry["id"]) == (990, "USD", 1, 1)
    told = shard_set.rows(shard, "SELECT type, subscription_id, payload->>'$.period_end', id FROM outbox")
    assert told == [("invoice.issued", "sub-1", "2024-02-29", 1)]
    row = shard_set.rows(shard, "SELECT next_period, next_invoice_at FROM subscription")[0]
    assert row == (1, at("2024-02-29T00:00:00"))


def test_running_again_writes_nothing(shard_set: ShardSet) -> None:
    shard_set.set_clock(at("2024-02-01T08:00:00"))
    shard = shard_set.add_subscription("sub-1")
    assert [schedule(shard_set, shard) for _ in range(3)] == [1, 0, 0]
    assert_whole(shard_set, 1)


def test_virtual_time_brings_one_invoice_a_month(shard_set: ShardSet) -> None:
    """killbill#127, lago#1840: a year of month ends, the clock put forward day by day."""
    shard_set.add_subscription("sub-1")
    day = at("2024-01-30T12:00:00")
    while day < at("2024-06-30T00:00:00"):
        shard_set.set_clock(day)
        schedule_all(shard_set)
        day += timedelta(days=1)
    starts = ["2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30", "2024-05-31"]
    assert periods(shard_set, "sub-1") == list(zip(starts, [*starts[1:], "2024-06-30"], strict=True))
    assert_whole(shard_set, 5)


def test_after_an_outage_every_missed_period_is_invoiced_in_bounded_steps(shard_set: ShardSet) -> None:
    """A scheduler that looks for today's subscriptions alone would lose the days it slept through."""
    shard_set.set_clock(at("2024-03-01T00:00:00"))
    shard = shard_set.add_subscription("daily", interval_unit=1, start_date=date(2024, 1, 31))
    steps = [schedule(shard_set, shard, catch_up_max=12) for _ in range(4)]
    assert steps == [12, 12, 7, 0]
    found = periods(shard_set, "daily")
    assert [start for start, _ in found[1:]] == [end for _, end in found[:-1]]
    assert (found[0][0], found[-1][0]) == ("2024-01-31", "2024-03-01")
    assert_whole(shard_set, 31)


def test_too_many_missed_periods_are_held_until_there_is_a_word(shard_set: ShardSet) -> None:
    shard_set.set_clock(at("2024-06-01T00:00:00"))
    shard = shard_set.add_subscription("sub-1")  # January to May: five
    assert schedule_all(shard_set, missed_max=4) == 0
    row = shard_set.rows(shard, "SELECT next_period, next_invoice_at, held_since, status FROM subscription")[0]
    assert row == (0, None, at("2024-06-01T00:00:00"), 1)
    told = shard_set.rows(shard, "SELECT type, payload->>'$.next_period_start', payload->>'$.reason' FROM outbox")
    assert told == [("subscription.held", "2024-01-31", "too_many_periods_missed")]
    shard_set.change(
        shard,
        "UPDATE subscription SET held_since = NULL, catch_up_until = 2, next_invoice_at = '2024-01-31'"
        " WHERE shard_id = %(shard)s",
    )
    assert schedule_all(shard_set, missed_max=4) == 5  # after two, no more than three are missed
    assert [start for start, _ in periods(shard_set, "sub-1")][-1] == "2024-05-31"
    assert shard_set.count("subscription", "held_since IS NOT NULL") == 0


def test_a_held_one_holds_up_nobody(shard_set: ShardSet) -> None:
    shard_set.set_clock(at("2024-03-01T00:00:00"))
    for number in range(8):
        shard_set.add_subscription(f"old-{number}", start_date=date(2019, 1, 31), next_invoice_at=at("2019-01-31T00:00:00"))
        shard_set.add_subscription(f"new-{number}")
    assert schedule_all(shard_set, missed_max=12, limit=3) == 8 * 2
    assert shard_set.count("outbox", "type = 'subscription.held'") == 8


def test_the_last_period_is_followed_by_the_end(shard_set: ShardSet) -> None:
    shard_set.set_clock(at("2024-02-29T00:00:00"))
    shard = shard_set.add_subscription("sub-1", cancel_at=date(2024, 3, 31))
    assert schedule_all(shard_set) == 2
    shard_set.set_clock(at("2024-03-30T23:59:59"))
    assert schedule_all(shard_set) == 0
    assert shard_set.rows(shard, "SELECT status FROM subscription") == [(1,)]
    shard_set.set_clock(at("2024-03-31T00:00:00"))
    assert schedule_all(shard_set) == 0
    assert shard_set.rows(shard, "SELECT status, next_invoice_at FROM subscription") == [(4, None)]
    told = shard_set.rows(shard, "SELECT payload->>'$.reason' FROM outbox WHERE type = 'subscription.canceled'")
    assert told == [("period_ended",)]


def test_another_window_moves_nothing_that_is_scheduled(make_shard_set: Callable[..., ShardSet]) -> None:
    """snuba#1987's lesson, by the service: what was promised to be charged at 00:12 is charged at 00:12."""

    def service(seconds: int) -> Lanes:
        changes = {"services": [{"name": "video", "lane": 1, "windowSeconds": seconds}], "smoothing": {"windowSeconds": 60}}
        return Lanes(shard_set.site.spec(**changes))

    shard_set = make_shard_set()
    shard = shard_set.add_subscription("sub-1")
    charged: list[datetime] = []
    for day, window in ((31, 3600), (60, 7200), (91, 0)):
        shard_set.set_clock(at("2024-01-01T00:00:00") + timedelta(days=day - 1))
        schedule(shard_set, shard, lanes=service(window))
        rows = [row[0] for row in shard_set.rows(shard, "SELECT due_at FROM billing_job ORDER BY due_at")]
        assert rows[:-1] == charged
        begun = at("2024-01-01T00:00:00") + timedelta(days=day - 1)
        assert rows[-1] == begun + timedelta(seconds=offset_seconds("sub-1", window))
        charged = rows


def test_an_invoice_that_comes_late_has_its_whole_grace(shard_set: ShardSet) -> None:
    shard_set.set_clock(at("2024-07-01T00:00:00"))
    shard = shard_set.add_subscription("late", start_date=date(2024, 6, 30))
    shard_set.add_subscription("later", start_date=date(2024, 1, 31))
    schedule_all(shard_set)
    rows = shard_set.rows(shard, "SELECT grace_until FROM billing_job WHERE shard_id = %(shard)s AND subscription_id = 'late'")
    assert rows == [(at("2024-07-15T00:00:00"),)]
    assert shard_set.count("billing_job", "grace_until < '2024-07-15'") == 0


def test_grace_is_counted_from_the_charge_that_is_still_to_come(shard_set: ShardSet) -> None:
    shard_set.set_clock(at("2024-01-31T00:00:00"))
    shard = shard_set.add_subscription("sub-1")
    schedule(shard_set, shard)
    row = shard_set.rows(shard, "SELECT due_at, grace_until FROM billing_job")[0]
    assert row[0] == at("2024-01-31T00:00:00") + timedelta(seconds=offset_seconds("sub-1", WINDOW))
    assert row[1] - row[0] == timedelta(seconds=GRACE)


@pytest.mark.parametrize(
    ("time_zone", "before", "begun"),
    [
        ("Asia/Kolkata", "2024-01-30T18:29:59", "2024-01-30T18:30:00"),
        ("America/Bogota", "2024-01-31T04:59:59", "2024-01-31T05:00:00"),
    ],
)
def test_a_period_begins_at_its_own_midnight(shard_set: ShardSet, time_zone: str, before: str, begun: str) -> None:
    """lago#879: one invoice on each side of UTC, however often the scheduler runs around midnight."""
    shard_set.add_subscription("sub-1", time_zone=time_zone, next_invoice_at=at(begun))
    shard_set.set_clock(at(before))
    assert schedule_all(shard_set) == 0
    shard_set.set_clock(at(begun))
    assert schedule_all(shard_set) == 1
    shard_set.set_clock(at(begun) + timedelta(hours=12))
    assert schedule_all(shard_set) == 0
    assert periods(shard_set, "sub-1") == [("2024-01-31", "2024-02-29")]


@pytest.mark.parametrize("status", [3, 4])
def test_who_is_suspended_or_has_canceled_is_not_invoiced(shard_set: ShardSet, status: int) -> None:
    shard = shard_set.add_subscription("sub-1", status=status)
    assert schedule(shard_set, shard) == 0
    assert shard_set.count("invoice") == 0


def test_an_invoice_that_is_there_already_is_left_alone(shard_set: ShardSet) -> None:
    """lago#4795: the same period enqueued twice. Here the subscription was put back by hand; its first period is invoiced."""
    shard_set.set_clock(at("2024-03-01T00:00:00"))
    shard = shard_set.add_subscription("sub-1")
    shard_set.add_subscription("other")
    assert schedule_all(shard_set) == 4
    shard_set.change(shard, "DELETE FROM invoice WHERE shard_id = %(shard)s AND period_start = '2024-02-29'")
    orphans = "shard_id = %(shard)s AND invoice_id NOT IN (SELECT id FROM invoice WHERE shard_id = %(shard)s)"
    for table in ("billing_job", "ledger_entry"):
        shard_set.change(shard, f"DELETE FROM {table} WHERE {orphans}")
    entries = shard_set.count("ledger_entry")
    shard_set.change(shard, "UPDATE subscription SET next_period = 0, next_invoice_at = '2024-01-31' WHERE shard_id = %(shard)s")
    written = schedule_all(shard_set)
    assert written > 0
    assert shard_set.count("ledger_entry") == entries + written
    assert shard_set.count("invoice") == shard_set.count("billing_job") == 4
    assert shard_set.count("invoice i JOIN billing_job j ON j.shard_id = i.shard_id AND j.invoice_id = i.id") == 4


def test_six_schedulers_at_once_write_one_invoice_a_period(shard_set: ShardSet) -> None:
    """frappe/central#170: six workers looked, then inserted, and there were six invoices."""
    shard_set.set_clock(at("2024-04-15T00:00:00"))
    for number in range(60):
        shard_set.add_subscription(f"sub-{number}")
    barrier = Barrier(6)

    def work(_: int) -> int:
        barrier.wait()
        return schedule_all(shard_set, limit=7, catch_up_max=2)

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(work, range(6))) == 60 * 3
    assert all(periods(shard_set, f"sub-{number}") == periods(shard_set, "sub-0") for number in range(60))
    assert_whole(shard_set, 60 * 3)


def test_killed_between_any_two_steps_it_leaves_nothing_half_done(shard_set: ShardSet) -> None:
    shard_set.set_clock(at("2024-04-15T00:00:00"))
    shard = shard_set.add_subscription("sub-1")
    steps = 0
    while shard_set.count("invoice") == 0:
        steps += 1
        try:
            with killed_after(shard_set, steps):
                schedule(shard_set, shard)
        except KilledError:
            assert_whole(shard_set, 0)
            assert shard_set.rows(shard, "SELECT next_period FROM subscription")[0] == (0,)
    assert steps > 10  # it was ended after each of its statements
    assert_whole(shard_set, 3)


def test_a_broken_connection_in_the_middle_is_run_again(shard_set: ShardSet) -> None:
    shard_set.set_clock(at("2024-04-15T00:00:00"))
    shard = shard_set.add_subscription("sub-1")
    engine = shard_set.router.owner(shard).engine
    broken: list[str] = []

    def before(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "INSERT INTO ledger_entry" in statement and not broken:
            broken.append(statement)
            cursor.connection._sock.close()
            connection.connection.dbapi_connection._force_close()

    event.listen(engine, "before_cursor_execute", before)
    assert schedule(shard_set, shard) == 3
    assert broken
    assert_whole(shard_set, 3)


def test_a_lost_answer_to_commit_is_looked_up(shard_set: ShardSet, lose_commit: Callable[[int], list[int]]) -> None:
    shard_set.set_clock(at("2024-04-15T00:00:00"))
    shard = shard_set.add_subscription("sub-1")
    lost = lose_commit(shard)
    assert schedule(shard_set, shard) == 3
    assert len(lost) == 1
    assert_whole(shard_set, 3)


@pytest.fixture
def lose_commit(shard_set: ShardSet) -> Iterator[Callable[[int], list[int]]]:
    """Make one COMMIT of the shard's database take place, and its answer be lost."""
    undo: list[Callable[[], None]] = []

    def arm(shard: int) -> list[int]:
        engine = shard_set.router.owner(shard).engine
        lost: list[int] = []
        original = engine.dialect.do_commit

        def do_commit(connection: Any) -> None:
            original(connection)
            if not lost:
                lost.append(shard)
                connection._force_close()
                original(connection)  # raises as it does when the server has gone

        setattr(engine.dialect, "do_commit", do_commit)  # noqa: B010  mypy knows it as a method
        undo.append(lambda: setattr(engine.dialect, "do_commit", original))
        return lost

    yield arm
    for step in undo:
        step()


def test_due_shards_are_those_with_a_period_that_has_begun(shard_set: ShardSet) -> None:
    shard_set.set_clock(at("2024-04-15T00:00:00"))
    due = {shard_set.add_subscription(f"due-{n}") for n in range(3)}
    for n in range(40):
        shard_set.add_subscription(f"future-{n}", next_invoice_at=at("2024-04-15T00:00:00.000001"))
        shard_set.add_subscription(f"ended-{n}", status=4, next_invoice_at=None)
    assert due_shards(shard_set.router, shard_set.shards) == sorted(due)
    assert due_shards(shard_set.router, [shard for shard in shard_set.shards if shard not in due]) == []


def fill(shard_set: ShardSet, shard: int) -> None:
    """A thousand subscriptions of the shard, a hundred of them due, by one statement."""
    shard_set.change(
        shard,
        "INSERT INTO subscription (shard_id, id, customer_id, service, amount, currency, interval_unit, interval_count,"
        " start_date, time_zone, payment_method, status, next_period, next_invoice_at, created_at, updated_at)"
        " SELECT shard_id, CONCAT(id, '-', a.n, b.n, c.n), customer_id, service, amount, currency,"
        " interval_unit, interval_count, start_date, time_zone, payment_method, status, next_period,"
        " IF(a.n = 0, NOW() - INTERVAL b.n DAY, %(later)s), created_at, updated_at FROM subscription,"
        " JSON_TABLE('[0,1,2,3,4,5,6,7,8,9]', '$[*]' COLUMNS (n INT PATH '$')) a,"
        " JSON_TABLE('[0,1,2,3,4,5,6,7,8,9]', '$[*]' COLUMNS (n INT PATH '$')) b,"
        " JSON_TABLE('[0,1,2,3,4,5,6,7,8,9]', '$[*]' COLUMNS (n INT PATH '$')) c WHERE shard_id = %(shard)s",
        later=FAR_FUTURE,
    )


def test_the_look_for_due_subscriptions_reads_the_due_ones_in_order(shard_set: ShardSet) -> None:
    shard = shard_set.add_subscription("sub")
    fill(shard_set, shard)
    now = shard_set.rows(shard, "SELECT NOW(6)")[0][0]
    plan = shard_set.explain(shard, queries("billing").due_subscriptions, now=now, limit=500)
    assert [row["key"] for row in plan] == ["due"], pretty(plan)
    assert plan[0]["type"] == "range"
    assert plan[0]["rows"] < 300
    assert "filesort" not in plan[0]["Extra"]


def test_the_look_for_due_shards_is_one_step_a_shard(shard_set: ShardSet) -> None:
    shard = shard_set.add_subscription("sub")
    fill(shard_set, shard)
    plan = shard_set.explain(shard, queries("billing").due_shards, shards=tuple(shard_set.shards))
    assert [row["key"] for row in plan] == ["due"], pretty(plan)
    assert "Using index for group-by" in plan[0]["Extra"]
    assert "filesort" not in plan[0]["Extra"]


def test_advancing_finds_each_subscription_by_its_key(shard_set: ShardSet) -> None:
    shard = shard_set.add_subscription("sub")
    fill(shard_set, shard)
    rows = '[["sub-001", 1, "2024-02-29 00:00:00"]]'
    plan = shard_set.explain(shard, queries("billing").advance_subscriptions, rows=rows, now=FAR_FUTURE)
    assert [(row["table"], row["type"], row["key"]) for row in plan] == [("r", "ALL", None), ("s", "eq_ref", "PRIMARY")]


def test_the_invoices_just_written_are_read_back_by_key(shard_set: ShardSet) -> None:
    shard = shard_set.add_subscription("sub")
    fill(shard_set, shard)
    assert schedule(shard_set, shard, catch_up_max=3) > 100
    plan = shard_set.explain(shard, queries("billing").inserted_invoices, first=1, last=20)
    assert [(row["type"], row["key"]) for row in plan] == [("range", "PRIMARY")], pretty(plan)
    assert plan[0]["rows"] <= 20
