"""Import on real servers: all of a file or nothing of it, once, whatever is interrupted or done at the same time."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import event

from billing_shards.audit.auditor import audit
from billing_shards.billing import imports
from billing_shards.billing.imports import ImportReport, import_subscriptions
from billing_shards.billing.rows import COLUMNS
from billing_shards.billing.scheduler import due_shards, schedule_shard
from billing_shards.db import queries
from billing_shards.errors import InvalidInput
from billing_shards.jobs.lanes import Lanes
from tests.mysql.shard_set import ShardSet, pretty

HEADER = ",".join(COLUMNS)
Load = Callable[..., ImportReport]


def line(number: int, **changes: str) -> str:
    row = {
        "id": f"sub-{number}",
        "customer_id": f"c-{number}",
        "service": "video",
        "amount": "9.90",
        "currency": "USD",
        "interval": "1 month",
        "start_date": "2024-01-31",
        "time_zone": "Asia/Kolkata",
        "payment_method": f"pm_{number}",
        **changes,
    }
    return ",".join(row[name] for name in COLUMNS)


@pytest.fixture
def load(shard_set: ShardSet, tmp_path: Path) -> Load:
    """Import rows as a file."""

    def do(*rows: str, header: str = HEADER, raw: bytes | None = None, **options: Any) -> ImportReport:
        path = tmp_path / "subscriptions.csv"
        path.write_bytes("\n".join([header, *rows, ""]).encode() if raw is None else raw)
        return import_subscriptions(shard_set.router, path, shard_count=shard_set.spec.shard_count, **options)

    return do


def told(report: ImportReport) -> list[tuple[int, str, str]]:
    return [(problem.line, problem.field, problem.reason) for problem in report.problems]


def test_a_row_is_stored_as_it_was_agreed(shard_set: ShardSet, load: Load) -> None:
    report = load(line(1, amount="1.234", currency="KWD", interval="2 weeks"))
    assert (report.rows, report.imported, report.already_there, report.skipped, report.problems) == (1, 1, 0, 0, ())
    row = shard_set.rows(shard_set.shard_of("sub-1"), "SELECT * FROM subscription WHERE shard_id = %(shard)s")[0]._mapping
    assert {name: row[name] for name in ("id", "customer_id", "service", "amount", "currency", "payment_method")} == {
        "id": "sub-1",
        "customer_id": "c-1",
        "service": "video",
        "amount": 1234,
        "currency": "KWD",
        "payment_method": "pm_1",
    }
    assert (row["interval_unit"], row["interval_count"], row["status"], row["next_period"]) == (2, 2, 1, 0)
    assert (row["start_date"], row["time_zone"]) == (date(2024, 1, 31), "Asia/Kolkata")
    assert row["next_invoice_at"] == datetime.fromisoformat("2024-01-30T18:30:00")


def test_what_was_billed_elsewhere_is_kept_and_not_invoiced(shard_set: ShardSet, load: Load) -> None:
    header = f"{HEADER},billed_until,anchor_day"
    shard_set.set_clock(datetime.fromisoformat("2024-04-01T00:00:00"))
    rows = [
        line(1, start_date="2019-01-31", time_zone="UTC") + ",2024-03-31,",
        line(2, start_date="2024-02-29", time_zone="UTC") + ",2024-03-31,31",
        line(3, start_date="2024-02-29", time_zone="UTC") + ",,",
    ]
    assert load(*rows, header=header).imported == 3
    assert load(*rows, header=header).already_there == 3
    assert told(load(line(1, start_date="2019-01-31", time_zone="UTC"))) == [
        (2, "id", "exists already, and differs in billed_until")
    ]
    for shard in due_shards(shard_set.router, shard_set.shards):
        schedule_shard(shard_set.router, shard, lanes=Lanes(shard_set.spec), grace_seconds=60)
    found = {
        tuple(map(str, row))
        for shard in shard_set.shards
        for row in shard_set.rows(
            shard, "SELECT subscription_id, period_start, period_end FROM invoice WHERE shard_id = %(shard)s"
        )
    }
    assert found == {
        ("sub-1", "2024-03-31", "2024-04-30"),
        ("sub-2", "2024-03-31", "2024-04-30"),
        ("sub-3", "2024-02-29", "2024-03-29"),
        ("sub-3", "2024-03-29", "2024-04-29"),
    }
    assert audit(shard_set.router, shard_set.spec).clean


def test_each_new_subscription_is_told_of_once(shard_set: ShardSet, load: Load) -> None:
    load(line(1), line(2))
    load(line(1), line(2), line(3))
    assert shard_set.count("outbox", "type = 'subscription.created'") == 3
    shard = shard_set.shard_of("sub-1")
    query = "SELECT payload FROM outbox WHERE shard_id = %(shard)s AND subscription_id = 'sub-1'"
    assert json.loads(shard_set.rows(shard, query)[0][0]) == {
        "customer": "c-1",
        "service": "video",
        "amount": 990,
        "currency": "USD",
        "interval": "1 month",
        "start_date": "2024-01-31",
        "anchor_day": None,
        "time_zone": "Asia/Kolkata",
        "first_period_start": "2024-01-31",
    }


def test_rows_go_to_the_shards_of_their_ids_and_are_billed(shard_set: ShardSet, load: Load) -> None:
    shard_set.set_clock(datetime.fromisoformat("2024-02-15T00:00:00"))
    assert load(*map(line, range(200))).imported == 200
    for shard in shard_set.shards:
        ids = shard_set.rows(shard, "SELECT id FROM subscription WHERE shard_id = %(shard)s")
        assert {shard_set.shard_of(row[0]) for row in ids} == {shard}
    for shard in due_shards(shard_set.router, shard_set.shards):
        schedule_shard(shard_set.router, shard, lanes=Lanes(shard_set.spec), grace_seconds=60)
    assert shard_set.count("invoice") == 200
    assert due_shards(shard_set.router, shard_set.shards) == []


def test_one_wrong_row_and_nothing_is_imported(shard_set: ShardSet, load: Load) -> None:
    rows = [line(1), line(2, amount="-9.90"), line(3, currency="XXX"), line(4, start_date="2024-02-30"), line(1), line(5)]
    report = load(*rows)
    assert told(report) == [
        (3, "amount", "must not be negative"),
        (4, "currency", "'XXX' is not the ISO 4217 code of a currency in circulation"),
        (5, "start_date", "'2024-02-30' is not a date of the calendar written as YYYY-MM-DD"),
        (6, "id", "is the same as on line 2"),
    ]
    assert (report.rows, report.imported, report.skipped, report.problems_total) == (6, 0, 4, 4)
    assert shard_set.count("subscription") == 0


def test_wrong_rows_are_skipped_where_that_is_asked_for(shard_set: ShardSet, load: Load) -> None:
    rows = [line(1), line(2, amount="-9.90"), line(1, amount="5"), line(3)]
    report = load(*rows, skip_invalid=True)
    assert (report.rows, report.imported, report.skipped, report.problems_total) == (4, 2, 2, 2)
    assert shard_set.count("subscription", "id IN ('sub-1', 'sub-3') AND amount = 990") == 2
    assert shard_set.count("subscription") == 2


def test_running_again_imports_nothing_twice(shard_set: ShardSet, load: Load) -> None:
    rows = [line(number) for number in range(50)]
    load(*rows[:20])
    report = load(*rows)
    assert (report.imported, report.already_there, report.problems_total) == (30, 20, 0)
    report = load(*rows)
    assert (report.imported, report.already_there, report.problems_total) == (0, 50, 0)
    assert shard_set.count("subscription") == 50


def test_a_subscription_that_is_billed_already_is_there_already(shard_set: ShardSet, load: Load) -> None:
    load(line(1))
    shard = shard_set.shard_of("sub-1")
    schedule_shard(shard_set.router, shard, lanes=Lanes(shard_set.spec), grace_seconds=60)
    before = shard_set.rows(shard, "SELECT * FROM subscription")
    assert load(line(1)).already_there == 1
    assert shard_set.rows(shard, "SELECT * FROM subscription") == before


def test_the_same_id_with_other_terms_is_refused(shard_set: ShardSet, load: Load) -> None:
    load(line(1))
    report = load(line(2), line(1, amount="8", interval="1 year", payment_method="pm_other"))
    assert told(report) == [(3, "id", "exists already, and differs in amount, interval, payment_method")]
    assert (report.imported, shard_set.count("subscription")) == (0, 1)
    assert load(line(2), line(1, amount="8"), skip_invalid=True).imported == 1


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_line_ends_byte_order_marks_and_blank_lines_are_read(load: Load, bom: bytes, end: bytes) -> None:
    rows = [HEADER, line(1), "", line(2, amount="-1"), ""]
    report = load(raw=bom + end.join(row.encode() for row in rows))
    assert told(report) == [(4, "amount", "must not be negative")]
    assert report.rows == 2


def test_undecodable_bytes_are_told_by_line(shard_set: ShardSet, load: Load) -> None:
    rows = [HEADER.encode(), line(1).encode(), line(2).encode().replace(b"video", b"vid\xe9o"), line(3).encode()]
    assert told(load(raw=b"\n".join(rows))) == [(3, "service", "is not valid UTF-8")]
    assert shard_set.count("subscription") == 0


def test_nul_bytes_are_told_by_line(load: Load) -> None:
    assert told(load(line(1), line(2, customer_id="c\0"))) == [(3, "customer_id", "holds a NUL byte")]


def test_rows_with_cells_too_few_or_too_many_are_told(load: Load) -> None:
    assert told(load("sub-1,c-1", line(2) + ",more")) == [
        (2, "row", "has 2 cells, the header has 9"),
        (3, "row", "has 10 cells, the header has 9"),
    ]


def test_quotes_are_read_and_broken_ones_told(load: Load) -> None:
    quoted = '"sub-1","c-1","video","9.90","USD","1 month","2024-01-31","UTC","pm_1"'
    assert load(quoted).imported == 1
    report = load(line(2), '"sub-3"x,c', line(4))
    assert [(problem.line, problem.field) for problem in report.problems] == [(3, "row")]
    assert report.rows == 3


def test_a_row_over_several_lines_is_told_by_its_first(load: Load) -> None:
    report = load(line(1), line(2, customer_id='"c\n\n2"'), line(3, amount="-1"))
    assert [(problem.line, problem.field) for problem in report.problems] == [(3, "customer_id"), (6, "amount")]


def test_a_quote_that_never_ends_does_not_swallow_the_file_in_silence(shard_set: ShardSet, load: Load) -> None:
    report = load(line(1), '"sub-2', *map(line, range(3, 3000)))
    assert (report.problems[0].line, report.problems[0].field) == (3, "row")
    assert shard_set.count("subscription") == 0


def test_a_file_without_line_ends_is_refused(load: Load) -> None:
    with pytest.raises(InvalidInput, match=r"line 2: is longer than 65536 characters"):
        load(raw=HEADER.encode() + b"\n" + b"x" * 10_000_000)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "header: lacks id"),
        (b"id,amount\n", "header: lacks customer_id"),
        (HEADER.replace(",", ";").encode(), "header: lacks id"),
        (HEADER.encode("utf-16"), "header: lacks id"),
        (b'"id"x,', "header: is not well-formed CSV"),
    ],
)
def test_a_wrong_header_is_refused(load: Load, raw: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load(raw=raw)


def test_a_file_with_a_header_alone_is_an_empty_import(load: Load) -> None:
    assert load().rows == 0


def test_what_is_no_file_is_refused(shard_set: ShardSet, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.csv"):
        with pytest.raises(InvalidInput, match="is not a file"):
            import_subscriptions(shard_set.router, path, shard_count=8)


def test_a_card_number_is_refused_and_never_repeated(shard_set: ShardSet, load: Load) -> None:
    report = load(line(1, payment_method="4111 1111 1111 1111"))
    assert told(report) == [(2, "payment_method", "looks like a card number: only the provider's token may be stored")]
    assert shard_set.count("subscription") == 0


def test_many_problems_are_counted_but_not_all_kept(load: Load) -> None:
    report = load(*(line(number, amount="0") for number in range(1500)))
    assert (report.problems_total, report.skipped, len(report.problems)) == (1500, 1500, imports.PROBLEMS_MAX)


def test_progress_is_told_for_each_row_checked_and_written(load: Load) -> None:
    seen: list[int] = []
    load(*map(line, range(2500)), on_progress=seen.append)
    assert sum(seen) == 5000
    seen.clear()
    load(line(1, amount="0"), line(2), on_progress=seen.append)
    assert sum(seen) == 2


def test_an_import_that_is_cut_off_is_simply_run_again(shard_set: ShardSet, load: Load) -> None:
    rows = [line(number) for number in range(400)]
    seen: list[str] = []

    def cut(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "INSERT INTO subscription" in statement:
            seen.append(statement)
            if len(seen) == 4:
                raise KeyboardInterrupt

    for database in shard_set.router.databases.values():
        event.listen(database.engine, "before_cursor_execute", cut)
    with pytest.raises(KeyboardInterrupt):
        load(*rows)
    there = shard_set.count("subscription")
    assert 0 < there < 400
    report = load(*rows)
    assert (report.imported, report.already_there) == (400 - there, there)
    assert shard_set.count("subscription") == 400


def test_two_imports_of_one_file_at_once_import_each_row_once(shard_set: ShardSet, tmp_path: Path) -> None:
    path = tmp_path / "subscriptions.csv"
    path.write_text("\n".join([HEADER, *map(line, range(1000)), ""]))
    barrier = Barrier(3)

    def work(_: int) -> ImportReport:
        barrier.wait()
        return import_subscriptions(shard_set.router, path, shard_count=8)

    with ThreadPoolExecutor(3) as threads:
        reports = list(threads.map(work, range(3)))
    assert sum(report.imported for report in reports) == 1000
    assert [report.imported + report.already_there for report in reports] == [1000] * 3
    assert shard_set.count("subscription") == 1000


def test_a_file_that_changes_while_it_is_read_is_told(shard_set: ShardSet, load: Load, tmp_path: Path) -> None:
    def change(_: int) -> None:
        (tmp_path / "subscriptions.csv").write_text(f"{HEADER}\n{line(99)}\n")

    with pytest.raises(InvalidInput, match="was changed while it was read"):
        load(line(1), line(2), on_progress=change)
    assert shard_set.count("subscription") == 0


def test_what_is_agreed_is_looked_up_by_key(shard_set: ShardSet, load: Load) -> None:
    load(*map(line, range(1000)))
    plan = shard_set.explain(3, queries("billing").agreed_terms, ids='[[3, "sub-1"], [3, "sub-2"]]')
    assert [(row["table"], row["type"], row["key"]) for row in plan] == [("r", "ALL", None), ("s", "eq_ref", "PRIMARY")], pretty(
        plan
    )


def test_a_file_written_by_a_csv_library_is_read(shard_set: ShardSet, tmp_path: Path) -> None:
    path = tmp_path / "made.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(dict(zip(COLUMNS, line(number).split(","), strict=True)) for number in range(10))
    assert import_subscriptions(shard_set.router, path, shard_count=8).imported == 10
