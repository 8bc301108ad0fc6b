"""The command line without a database: usage, exit codes, what is printed, and how names of invoices are read."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from billing_shards import errors
from billing_shards.cli import codes, invoice, main, output, source, status
from billing_shards.cli.codes import ExitCode
from billing_shards.cli.status import Waiting
from billing_shards.errors import BillingShardsError, InvalidInput
from billing_shards.shards.model import shard_of


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """Commands point the logs at stderr, which is another one in the next test."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.reset_defaults()


# Usage


def test_help_names_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.OK
    shown = capsys.readouterr().out
    for command in ("schema", "import", "status", "invoice", "audit", "claimer", "housekeeper", "run", "bench"):
        assert f"\n  {command} " in shown
    for code in ExitCode:
        assert f"{code.value} " in shown[shown.index("Exit codes") :]


def test_without_a_command_the_help_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Commands:" in captured.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["frob"], "frob"),
        (["audit", "--margin-seconds", "soon"], "--margin-seconds"),
        (["audit", "--examples", "-1"], "--examples"),
        (["import"], "FILE"),
        (["invoice", "show"], "INVOICE"),
        (["run"], "--manifest"),
        (["status", "--frob"], "--frob"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_option(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BILLING_SHARDS_MANIFEST", raising=False)
    assert main(arguments) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err


def test_without_manifest_and_without_mounted_folders_the_option_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("BILLING_SHARDS_MANIFEST", raising=False)
    monkeypatch.setenv("BILLING_SHARDS_CONFIG_DIR", str(tmp_path / "none"))
    assert main(["status"]) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err == f"error: --manifest: is needed outside a pod: there is no folder {tmp_path / 'none'}\n"


def test_a_wrong_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILLING_SHARDS_METRICS_PORT", "70000")
    with pytest.raises(InvalidInput, match="BILLING_SHARDS_METRICS_PORT: Input should be less than or equal to 65535"):
        source.settings()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (": : :", "cannot be read as YAML"),
        ("kind: Secret\nmetadata: {name: x}\n", "holds 0 documents of kind BillingShardSet"),
        (
            "kind: BillingShardSet\nmetadata: {name: x}\nspec: {databases: [], gateway: {url: http://x}}\n",
            "spec.databases: Tuple should have at least 1 item",
        ),
    ],
)
def test_a_wrong_manifest_is_one_line_with_field_and_reason(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "main.yaml"
    path.write_text(text)
    assert main(["status", "--manifest", str(path)]) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert reason in captured.err
    assert captured.err.count("\n") == 1


def test_a_fault_of_our_own_shows_its_traceback_and_is_no_audit_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> source.Source:
        raise ZeroDivisionError("of our own")

    monkeypatch.setattr(source, "find", broken)
    assert main(["audit"]) == ExitCode.CRASHED
    assert "ZeroDivisionError: of our own" in capsys.readouterr().err


def test_every_expected_error_has_a_code_of_its_own_kind() -> None:
    expected: list[tuple[BillingShardsError, ExitCode]] = [
        (errors.InvalidInput("amount", "is wrong"), ExitCode.BAD_INPUT),
        (errors.InvalidSpec("spec.shardMap", "is wrong"), ExitCode.BAD_INPUT),
        (errors.DatabaseUnavailable("a", "is down"), ExitCode.DATABASE),
        (errors.AccessDenied("a", "no"), ExitCode.DATABASE),
        (errors.WrongDatabase("a", "no"), ExitCode.DATABASE),
        (errors.SchemaBehind("a", "old"), ExitCode.DATABASE),
        (errors.NotFound("nothing"), ExitCode.NOT_FOUND),
        (errors.ShardFenced(3, "is fenced"), ExitCode.FAILED),
        (errors.TransactionFailed("again and again"), ExitCode.FAILED),
    ]
    assert [codes.code_of(error) for error, _ in expected] == [code for _, code in expected]


# What is printed


@given(st.text())
def test_shown_text_is_printable_and_in_one_line(text: str) -> None:
    assert output.visible(text).isprintable()


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S"])))
def test_printable_text_is_shown_as_it_is(text: str) -> None:
    assert output.visible(text) == text


def test_control_characters_are_escaped() -> None:
    assert output.visible("a\x1b[31mred\r\n\u202eevil\x9b") == "a\\x1b[31mred\\x0d\\x0a\\u202eevil\\x9b"


def test_json_keeps_large_numbers_and_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "amount": 9007199254740993,
        "sum": Decimal(9007199254740993),
        "at": datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC).replace(tzinfo=None),
        "day": date(2026, 1, 31),
        "id": "\x1b[31m",
    }
    output.print_json(document)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert json.loads(shown) == {
        "amount": 9007199254740993,
        "sum": 9007199254740993,
        "at": "2026-01-31T12:00:00.000005Z",
        "day": "2026-01-31",
        "id": "\x1b[31m",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (-3, "0 s"), (59.6, "1 m"), (61, "1 m 1 s"), (3600, "1 h"), (12_000, "3 h 20 m"), (90_061, "1 d 1 h")],
)
def test_ages_are_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert output.age(seconds) == text


def test_a_long_line_is_not_broken_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name"], [["x" * 500]])
    assert "x" * 500 in capsys.readouterr().out


# Invoices


@pytest.mark.parametrize(
    ("text", "which"),
    [
        ("3/17", invoice.Which(shard=3, id=17)),
        ("sub-1", invoice.Which(shard=shard_of("sub-1", 8), subscription="sub-1")),
        ("sub-1@2026-01-31", invoice.Which(shard=shard_of("sub-1", 8), subscription="sub-1", day=date(2026, 1, 31))),
        ("a@b.example", invoice.Which(shard=shard_of("a@b.example", 8), subscription="a@b.example")),
        ("3/x", invoice.Which(shard=shard_of("3/x", 8), subscription="3/x")),
    ],
)
def test_invoices_are_named_by_number_or_subscription(text: str, which: invoice.Which) -> None:
    assert invoice.parse(text, 8) == which


@pytest.mark.parametrize(
    ("text", "reason"), [("8/1", "shard 8 is not below shardCount 8"), ("s@2026-02-30", "2026-02-30 is not a day")]
)
def test_a_wrong_name_of_an_invoice_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        invoice.parse(text, 8)


# Status


def _waiting(first: int, database: str = "a", state: str = "owner", **counts: int) -> Waiting:
    oldest = counts.pop("oldest", None)
    return Waiting(first=first, last=first, database=database, state=state, oldest_due_seconds=oldest, **counts)


def test_neighbours_of_one_kind_are_shown_as_a_range() -> None:
    shards = [
        _waiting(0, due=2, oldest=5),
        _waiting(1, due=1, oldest=90, unsent=4),
        _waiting(2, state="fenced"),
        _waiting(3),
        _waiting(5),
        _waiting(4, database="b"),
    ]
    shown = status.joined(shards)
    assert [(one.first, one.last, one.database, one.state) for one in shown] == [
        (0, 1, "a", "owner"),
        (2, 2, "a", "fenced"),
        (3, 3, "a", "owner"),
        (4, 4, "b", "owner"),
        (5, 5, "a", "owner"),
    ]
    assert (shown[0].due, shown[0].oldest_due_seconds, shown[0].unsent) == (3, 90, 4)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), max_size=12))
def test_ranges_cover_each_shard_once_and_lose_nothing(rows: list[tuple[str, int]]) -> None:
    shown = status.joined([_waiting(shard, database=database, due=due) for shard, (database, due) in enumerate(rows)])
    assert [shard for one in shown for shard in range(one.first, one.last + 1)] == list(range(len(rows)))
    assert sum(one.due for one in shown) == sum(due for _, due in rows)
    assert all(rows[shard][0] == one.database for one in shown for shard in range(one.first, one.last + 1))
    assert all(left.database != right.database for left, right in pairwise(shown))
