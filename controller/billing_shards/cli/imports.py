"""`import`: subscriptions from a CSV file."""

from __future__ import annotations

from pathlib import Path

from billing_shards.billing.imports import ImportReport, import_subscriptions
from billing_shards.cli import output
from billing_shards.cli.codes import ExitCode
from billing_shards.cli.source import Source

_CHUNK = 1 << 20


def run(source: Source, path: Path, *, skip_invalid: bool, as_json: bool) -> int:
    """Import, and show every problem with its line; 2 where problems kept the file from being imported."""
    with source.router() as router, output.progress("rows") as on_progress:
        total = 2 * _lines(path)  # each row is checked, then written
        done = 0

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            on_progress(done, total)

        report = import_subscriptions(
            router, path, shard_count=source.spec.shard_count, skip_invalid=skip_invalid, on_progress=advance
        )
    if as_json:
        output.print_json(document(report))
    else:
        _print(report)
    return ExitCode.BAD_INPUT if report.problems_total and not skip_invalid else ExitCode.OK


def _lines(path: Path) -> int:
    """About how many rows there are, for the bar alone; what is wrong with the file the import itself says."""
    try:
        with path.open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))
    except OSError:
        return 0


def document(report: ImportReport) -> dict[str, object]:
    """The report as JSON."""
    return {
        "rows": report.rows,
        "imported": report.imported,
        "already_there": report.already_there,
        "skipped": report.skipped,
        "problems_total": report.problems_total,
        "problems": [{"line": one.line, "field": one.field, "reason": one.reason} for one in report.problems],
    }


def _print(report: ImportReport) -> None:
    for problem in report.problems:
        output.print_error(f"line {problem.line}: {problem.field}: {problem.reason}")
    if report.problems_total > len(report.problems):
        output.print_error(f"and {report.problems_total - len(report.problems)} more problems")
    output.print_line(
        f"{report.rows} rows: {report.imported} imported, {report.already_there} there already, {report.skipped} with a problem"
    )
