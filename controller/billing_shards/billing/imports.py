"""Import of subscriptions from a CSV file of any length, in two passes.

The first pass checks every row, against the file and against the databases; only when nothing is wrong (or when the wrong rows
are to be skipped) does the second one write. An import that was interrupted is run again: a row that is there already, with
the same terms, is no error.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TextIO, TypeVar

import structlog
from pymysql.constants import ER
from sqlalchemy import Connection
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from billing_shards.billing import store
from billing_shards.billing.model import Subscription, describe
from billing_shards.billing.rows import Problem, parse_header, parse_row
from billing_shards.db import error_code
from billing_shards.errors import InvalidInput
from billing_shards.outbox import events
from billing_shards.shards.model import shard_of
from billing_shards.shards.transactions import ShardRouter, ShardTransaction

Line = tuple[int, Subscription]
Place = TypeVar("Place", int, str)

PROBLEMS_MAX = 1000
_LINE_MAX = 65_536
_BATCH_ROWS = 1000
_WAITING_ROWS_MAX = 50_000
_THREADS = 4  # their COMMITs share one flush of the server's log
_DUPLICATE_RUNS_MAX = 5
_COLUMN_OF = {"first_period": "billed_until"}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What became of a file."""

    rows: int
    imported: int
    already_there: int
    """Rows whose subscription was in the database, with the same terms."""
    skipped: int
    """Rows with a problem. Without `skip_invalid`, one of them is enough for nothing to be imported."""
    problems: tuple[Problem, ...]
    """By line; no more than `PROBLEMS_MAX` are kept."""
    problems_total: int


@dataclass(slots=True)
class _Tally:
    """Counted while a file is read."""

    on_progress: Callable[[int], None]
    rows: int = 0
    imported: int = 0
    already_there: int = 0
    problems_total: int = 0
    problems: list[Problem] = field(default_factory=list)
    wrong_lines: set[int] = field(default_factory=set)

    def add(self, problems: Sequence[Problem]) -> None:
        self.problems_total += len(problems)
        self.problems += problems[: max(0, PROBLEMS_MAX - len(self.problems))]
        self.wrong_lines.update(problem.line for problem in problems)

    def report(self) -> ImportReport:
        return ImportReport(
            rows=self.rows,
            imported=self.imported,
            already_there=self.already_there,
            skipped=len(self.wrong_lines),
            problems=tuple(sorted(self.problems, key=lambda problem: problem.line)),
            problems_total=self.problems_total,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """One batch beside what its shard has."""

    new: list[Line]
    same: int
    problems: list[Problem]


def import_subscriptions(
    router: ShardRouter,
    path: Path,
    *,
    shard_count: int,
    skip_invalid: bool = False,
    on_progress: Callable[[int], None] = lambda rows: None,  # noqa: ARG005
) -> ImportReport:
    """Import the file at `path`, or nothing of it where a row is wrong and `skip_invalid` is not set.

    `on_progress` is given the number of rows dealt with since its last call: each row counts once when it is checked and once
    more when it is written. Raises `InvalidInput` where the file as a whole cannot be read, and what `ShardRouter.run` raises;
    then some batches may be imported, and the import is to be run again.
    """
    before = _identity(path)
    tally = _Tally(on_progress)
    lines: dict[bytes, int] = {}
    _check(router, path, shard_count, tally, lines)
    if not tally.problems_total or skip_invalid:
        tally.already_there = 0  # counted anew by the pass that writes
        _write(router, path, shard_count, tally, lines)
        if _identity(path) != before:
            raise InvalidInput(str(path), "was changed while it was read: check it and import it again")
    report = tally.report()
    _log.info("subscriptions_imported", rows=report.rows, imported=report.imported, skipped=report.skipped)
    return report


def _check(router: ShardRouter, path: Path, shard_count: int, tally: _Tally, lines: dict[bytes, int]) -> None:
    """The first pass. Fills `lines` with the line of each id, by a digest: all that is kept of the file."""

    def sound() -> Iterator[Line]:
        for line, row in _rows(path):
            tally.rows += 1
            problems, subscription = (row, None) if isinstance(row, list) else ([], row)
            if subscription is not None:
                first = lines.setdefault(_digest(subscription.id), line)
                if first != line:
                    problems = [Problem(line=line, field="id", reason=f"is the same as on line {first}")]
            if problems:
                tally.add(problems)
                tally.on_progress(1)
            elif subscription is not None:
                yield line, subscription

    def compare(database: str, batch: list[Line]) -> _Compared:
        ids = [(shard_of(subscription.id, shard_count), subscription.id) for _, subscription in batch]
        with router.connect(database) as connection:
            return _compare(batch, store.agreed(connection, ids))

    batches = _batches(sound(), lambda id_: router.owner(shard_of(id_, shard_count)).name)
    for batch, compared in _in_threads(compare, batches):
        tally.add(compared.problems)
        tally.already_there += compared.same
        tally.on_progress(len(batch))


def _write(router: ShardRouter, path: Path, shard_count: int, tally: _Tally, lines: dict[bytes, int]) -> None:
    """The second pass: rows that the first one found sound, each batch in a transaction of its shard."""

    def sound() -> Iterator[Line]:
        for line, row in _rows(path):
            if isinstance(row, Subscription) and line not in tally.wrong_lines:
                if lines.get(_digest(row.id)) != line:
                    raise InvalidInput(str(path), "was changed while it was read: check it and import it again")
                yield line, row

    def write(shard: int, batch: list[Line]) -> _Compared:
        return _insert(router, shard, batch)

    for batch, compared in _in_threads(write, _batches(sound(), lambda id_: shard_of(id_, shard_count))):
        tally.add(compared.problems)
        tally.imported += len(compared.new)
        tally.already_there += compared.same
        tally.on_progress(len(batch))


def _insert(router: ShardRouter, shard: int, batch: list[Line]) -> _Compared:
    """Write those of a batch that the shard does not have. Where another import is quicker, look again."""
    ids = [subscription.id for _, subscription in batch]
    last: list[_Compared] = []

    def body(transaction: ShardTransaction) -> _Compared:
        compared = _compare(batch, store.agreed_in(transaction, ids))
        if compared.new:
            new = [subscription for _, subscription in compared.new]
            store.insert_subscriptions(transaction, new)
            events.write(transaction, transaction.take("event", len(new)), [_created(subscription) for subscription in new])
        last[:] = [compared]
        return compared

    def committed(connection: Connection) -> _Compared | None:
        """Run again where a row is missing: should the COMMIT still be under way, its rows turn up as duplicates."""
        there = store.agreed(connection, [(shard, id_) for id_ in ids])
        return None if _compare(batch, there).new else last[0]

    again = Retrying(
        retry=retry_if_exception(lambda error: error_code(error) == ER.DUP_ENTRY),
        stop=stop_after_attempt(_DUPLICATE_RUNS_MAX),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        reraise=True,
    )
    compared: _Compared = again(router.run, shard, body, committed=committed)
    return compared


def _created(subscription: Subscription) -> events.Event:
    return events.Event(type="subscription.created", subscription=subscription.id, payload=describe(subscription))


def _compare(batch: list[Line], there: dict[str, Subscription]) -> _Compared:
    new, problems = [], []
    for line, subscription in batch:
        found = there.get(subscription.id)
        if found is None:
            new.append((line, subscription))
        elif found != subscription:
            different = (f.name for f in fields(found) if getattr(found, f.name) != getattr(subscription, f.name))
            names = ", ".join(_COLUMN_OF.get(name, name) for name in different)
            problems.append(Problem(line=line, field="id", reason=f"exists already, and differs in {names}"))
    return _Compared(new=new, same=len(batch) - len(new) - len(problems), problems=problems)


def _batches(rows: Iterable[Line], place_of: Callable[[str], Place]) -> Iterator[tuple[Place, list[Line]]]:
    """Rows by place: a place's when it has enough for a batch, the fullest place's when too many wait in all."""
    waiting: defaultdict[Place, list[Line]] = defaultdict(list)
    count = 0
    for row in rows:
        place = place_of(row[1].id)
        waiting[place].append(row)
        count += 1
        if count >= _WAITING_ROWS_MAX:
            place = max(waiting, key=lambda one: len(waiting[one]))
        if len(waiting[place]) >= _BATCH_ROWS or count >= _WAITING_ROWS_MAX:
            batch = waiting.pop(place)
            count -= len(batch)
            yield place, batch
    yield from waiting.items()


def _in_threads(
    work: Callable[[Place, list[Line]], _Compared], batches: Iterator[tuple[Place, list[Line]]]
) -> Iterator[tuple[list[Line], _Compared]]:
    """`work` on each batch in a few threads, reading no further ahead than they need."""
    under_way: deque[tuple[list[Line], Future[_Compared]]] = deque()
    with ThreadPoolExecutor(_THREADS) as threads:
        for place, batch in batches:
            under_way.append((batch, threads.submit(work, place, batch)))
            if len(under_way) >= 2 * _THREADS:
                done, future = under_way.popleft()
                yield done, future.result()
        for done, future in under_way:
            yield done, future.result()


def _rows(path: Path) -> Iterator[tuple[int, Subscription | list[Problem]]]:
    """Each row of the file with its line."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(_lines(file, path), strict=True)
        order = _header(reader)
        width = sum(position is not None for position in order)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield line, [Problem(line=line, field="row", reason=f"is not well-formed CSV: {error}")]
                continue
            if len(cells) == width:
                yield line, parse_row(line, ["" if position is None else cells[position] for position in order])
            elif cells:
                reason = f"has {len(cells)} cells, the header has {width}"
                yield line, [Problem(line=line, field="row", reason=reason)]


def _header(reader: Iterator[list[str]]) -> tuple[int | None, ...]:
    try:
        return parse_header(next(reader, []))
    except csv.Error as error:
        raise InvalidInput("header", f"is not well-formed CSV: {error}") from error


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    number = 0
    while text := file.readline(_LINE_MAX):
        number += 1
        if len(text) == _LINE_MAX and text[-1] not in "\r\n":
            raise InvalidInput(f"{path}, line {number}", f"is longer than {_LINE_MAX} characters: this is no CSV file")
        yield text


def _identity(path: Path) -> tuple[int, ...]:
    """What changes when the file does. Raises `InvalidInput` where it cannot be read, or not twice."""
    if not path.is_file():
        raise InvalidInput(str(path), "is not a file (it is read twice, so a pipe will not do)")
    if not os.access(path, os.R_OK):
        raise InvalidInput(str(path), "may not be read")
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _digest(subscription: str) -> bytes:
    return hashlib.blake2b(subscription.encode(), digest_size=16).digest()
