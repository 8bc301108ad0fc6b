"""What the commands print: tables and lines for a person, JSON for a program, progress on a terminal.

Text from a database or a file is shown with its control characters escaped, so that no customer's id can move the cursor or
colour the screen. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

OnProgress = Callable[[int, int], None]
"""Called with (done, in all)."""

_UNBOUNDED = 10_000


def visible(text: object) -> str:
    """The text with everything that is not printable escaped: control characters, directions, odd spaces."""
    return "".join(character if character.isprintable() else _escaped(ord(character)) for character in str(text))


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # noqa: PLR2004


def cell(value: object) -> str:
    """One value for a person: times in UTC, nothing for None."""
    match value:
        case None:
            return ""
        case datetime():
            return moment(value)
        case list() | tuple():
            return ", ".join(map(cell, value)) or "none"
        case _:
            return visible(value)


def moment(value: datetime) -> str:
    """An instant as the database has it (UTC, naive), to the second."""
    return value.strftime("%Y-%m-%d %H:%M:%S")


def age(seconds: float) -> str:
    """A length of time in its two largest units: `3 h 20 m`."""
    whole = max(0, round(seconds))
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number or first == len(parts) - 1)


def console(*, stderr: bool = False) -> Console:
    """Where to print. Colours only on a terminal and without NO_COLOR; no line is broken where there is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _UNBOUNDED
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()) -> None:
    """A plain table; columns named in `right` hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    numbers = set(right)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    console().print(table)


def print_line(text: str, style: str = "") -> None:
    """One line on stdout; `text` holds nothing that is not printable."""
    console().print(Text(text, style=style))


def print_json(document: object) -> None:
    """One JSON document on stdout. ASCII, so nothing in it can act on a terminal."""
    sys.stdout.write(json.dumps(document, default=_plain, indent=2) + "\n")


def _plain(value: object) -> object:
    match value:
        case datetime():
            return value.replace(tzinfo=value.tzinfo or UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case Decimal():
            return int(value)
        case Mapping():
            return dict(value)
        case _:
            raise TypeError(f"{type(value).__name__} has no form in JSON")


def print_note(text: str) -> None:
    """One line on stderr that is no error."""
    console(stderr=True).print(Text(visible(text)))


def print_error(text: str) -> None:
    """One line on stderr."""
    console(stderr=True).print(Text(f"error: {visible(text)}", style="red"))


@contextmanager
def progress(what: str) -> Iterator[OnProgress]:
    """A bar on stderr, where that is a terminal; otherwise nothing."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def where(columns: Mapping[str, Any]) -> str:
    """Named values in one line: `shard 3, invoice 17`."""
    return ", ".join(f"{name.replace('_', ' ')} {cell(value) or 'none'}" for name, value in columns.items())
