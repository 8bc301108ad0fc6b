"""One row of an import: a subscription, or all that is wrong with it. Pure.

A reason never repeats a long cell: where columns are mixed up, that could be a card number or a customer's data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import Any

from billing_shards.accounts.money import exponent, parse_amount
from billing_shards.billing.model import Subscription
from billing_shards.billing.periods import Interval, Unit, is_anchor, time_zones
from billing_shards.billing.terms import first_period_from
from billing_shards.errors import InvalidInput

_INTERVAL = re.compile(r"([1-9][0-9]{0,3}) (day|week|month|year)s?")
_LONGEST = {Unit.DAY: 3660, Unit.WEEK: 520, Unit.MONTH: 120, Unit.YEAR: 10}
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DAY = re.compile(r"[1-9]|[12][0-9]|3[01]")
_START_MIN, _START_MAX = date(1970, 1, 1), date(2199, 12, 31)
_NAME = re.compile(r"[A-Za-z0-9._:@+/=-]+")
_TOKEN = re.compile(r"[!-~]+")
_CARD = re.compile(r"[0-9 -]{13,}")
_CARD_DIGITS = range(13, 20)
_SHOWN_MAX = 12  # characters: fewer than the shortest card number has


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with one cell (or, as field `row`, with a whole row) of a file."""

    line: int
    """The first line of the row; the file's first line is 1."""
    field: str
    reason: str


def parse_header(cells: Sequence[str]) -> tuple[int | None, ...]:
    """Where each of `ALL_COLUMNS` stands in a row; None for one that is left out, nothing for those left out at the end.

    Raises `InvalidInput` for a missing, unknown or repeated column.
    """
    names = [cell.strip() for cell in cells]
    wrong = {
        "lacks": [name for name in COLUMNS if name not in names],
        "has unknown": [_shown(name) for name in names if name not in ALL_COLUMNS],
        "repeats": sorted({name for name in names if names.count(name) > 1 and name in ALL_COLUMNS}),
    }
    reasons = [f"{what} {', '.join(found)}" for what, found in wrong.items() if found]
    if reasons:
        raise InvalidInput("header", f"{'; '.join(reasons)} (columns are {', '.join(COLUMNS)}, separated by commas)")
    wanted = ALL_COLUMNS[: max(number for number, name in enumerate(ALL_COLUMNS, 1) if name in names)]
    return tuple(names.index(name) if name in names else None for name in wanted)


def parse_row(line: int, cells: Sequence[str]) -> Subscription | list[Problem]:
    """The subscription of a row whose cells are in the order of `ALL_COLUMNS`, or every problem that can be told.

    The optional columns at the end may be left out, or empty.
    """
    values: dict[str, Any] = {}
    problems = []
    for (field, parse), cell in zip({**_PARSERS, **_OPTIONAL}.items(), [*cells, *_NO_CELLS][: len(ALL_COLUMNS)], strict=True):
        if field in _OPTIONAL and not cell:
            continue
        try:
            values[field] = parse(field, cell)
        except InvalidInput as error:
            problems.append(Problem(line=line, field=field, reason=_encoding_problem(cell) or error.reason))
    if "currency" in values and "amount" in values:
        try:
            values["amount"] = parse_amount(values["amount"], values["currency"])
        except InvalidInput as error:
            problems.append(Problem(line=line, field="amount", reason=_encoding_problem(values["amount"]) or error.reason))
    return problems or _with_history(line, values)


def parse_cell(field: str, text: str, *, like: str | None = None) -> Any:
    """One value as a file's column `like` (by default `field`) would have it; not for amounts. Raises `InvalidInput`."""
    problem = _encoding_problem(text)
    if problem is not None:
        raise InvalidInput(field, problem)
    return {**_PARSERS, **_OPTIONAL}[like or field](field, text)


def _with_history(line: int, values: dict[str, Any]) -> Subscription | list[Problem]:
    """The optional columns, which mean something only beside the others."""
    billed_until, anchor_day = values.pop("billed_until", None), values.pop("anchor_day", None)
    subscription = Subscription(**values)
    if anchor_day is not None and anchor_day != subscription.start_date.day:
        if subscription.interval.unit not in {Unit.MONTH, Unit.YEAR} or not is_anchor(anchor_day, subscription.start_date):
            reason = f"no period that begins on day {anchor_day} of a month begins with {subscription.start_date}"
            return [Problem(line=line, field="anchor_day", reason=reason)]
        subscription = replace(subscription, anchor_day=anchor_day)
    if billed_until is None:
        return subscription
    period = first_period_from(subscription, billed_until)
    found = subscription.first_day(period)
    if found != billed_until:
        early = billed_until < subscription.start_date
        reason = f"is {'before the first' if early else 'in the middle of a'} period: the next one begins on {found}"
        return [Problem(line=line, field="billed_until", reason=reason)]
    return replace(subscription, first_period=period)


def _encoding_problem(cell: str) -> str | None:
    if "\0" in cell:
        return "holds a NUL byte"
    if any("\ud800" <= character <= "\udfff" for character in cell):  # undecodable bytes, as `surrogateescape` has them
        return "is not valid UTF-8"
    return None


def _name(characters_max: int) -> Callable[[str, str], str]:
    def parse(field: str, cell: str) -> str:
        _check_length(field, cell, characters_max)
        if not _NAME.fullmatch(cell):
            raise InvalidInput(field, "may hold letters, digits and . _ : @ + / = - only")
        return cell

    return parse


def _check_length(field: str, cell: str, characters_max: int) -> None:
    if not cell:
        raise InvalidInput(field, "is empty")
    if len(cell) > characters_max:
        raise InvalidInput(field, f"is longer than {characters_max} characters")


def _amount(_field: str, cell: str) -> str:
    return cell  # read once the currency is known


def _currency(field: str, cell: str) -> str:
    try:
        exponent(cell)
    except InvalidInput as error:
        raise InvalidInput(field, f"{_shown(cell)} {error.reason}") from None
    return cell


@lru_cache(maxsize=1024)
def _interval(field: str, cell: str) -> Interval:
    found = _INTERVAL.fullmatch(cell)
    if found is None:
        raise InvalidInput(field, f"{_shown(cell)} is not like '1 month', '2 weeks', '30 days' or '1 year'")
    interval = Interval(unit=Unit[found[2].upper()], count=int(found[1]))
    if interval.count > _LONGEST[interval.unit]:
        raise InvalidInput(field, f"{_shown(cell)} is longer than ten years")
    return interval


@lru_cache(maxsize=4096)
def _start_date(field: str, cell: str) -> date:
    try:
        day = date.fromisoformat(cell) if _DATE.fullmatch(cell) else None
    except ValueError:
        day = None
    if day is None:
        raise InvalidInput(field, f"{_shown(cell)} is not a date of the calendar written as YYYY-MM-DD")
    if not _START_MIN <= day <= _START_MAX:
        raise InvalidInput(field, f"{_shown(cell)} is not from {_START_MIN} to {_START_MAX}")
    return day


def _anchor_day(field: str, cell: str) -> int:
    if not _DAY.fullmatch(cell):
        raise InvalidInput(field, f"{_shown(cell)} is not a day of the month from 1 to 31")
    return int(cell)


def _time_zone(field: str, cell: str) -> str:
    if cell not in time_zones():
        raise InvalidInput(field, "is not the name of an IANA time zone, like Europe/Berlin or UTC")
    return cell


def _payment_method(field: str, cell: str) -> str:
    _check_length(field, cell, 128)
    if is_card_number(cell):
        raise InvalidInput(field, "looks like a card number: only the provider's token may be stored")
    if not _TOKEN.fullmatch(cell):
        raise InvalidInput(field, "may hold printable ASCII characters without spaces only")
    return cell


def is_card_number(text: str) -> bool:
    """Whether a text is 13 to 19 digits, spaces and dashes aside, with the check digit of a card number (Luhn)."""
    if not _CARD.fullmatch(text):
        return False
    digits = text.replace(" ", "").replace("-", "")
    if len(digits) not in _CARD_DIGITS:
        return False
    doubled = [int(digit) * 2 for digit in digits[-2::-2]]
    return (sum(int(digit) for digit in digits[-1::-2]) + sum(n - 9 if n > 9 else n for n in doubled)) % 10 == 0  # noqa: PLR2004


def _shown(cell: str) -> str:
    return ascii(cell) if len(cell) <= _SHOWN_MAX else "the value"


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "id": _name(64),
    "customer_id": _name(64),
    "service": _name(63),
    "amount": _amount,
    "currency": _currency,
    "interval": _interval,
    "start_date": _start_date,
    "time_zone": _time_zone,
    "payment_method": _payment_method,
}

COLUMNS = tuple(_PARSERS)
"""Those that every file has."""

_OPTIONAL: Mapping[str, Callable[[str, str], Any]] = {"billed_until": _start_date, "anchor_day": _anchor_day}
_NO_CELLS = ("",) * len(_OPTIONAL)

ALL_COLUMNS = (*COLUMNS, *_OPTIONAL)
"""Those, and the ones that may be left out: `billed_until` and `anchor_day`."""
