"""Billing periods: which days a period covers, and the instant at which it begins. Pure.

Period k runs from start_date + k intervals up to start_date + (k + 1) intervals. It is computed from the start each time,
never from the period before, so that a subscription of the 31st that was billed on 28 February is billed on 31 March. A
period begins when its first day does in the subscription's own time zone.

Instants are UTC and naive, as the database has them.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import IntEnum
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, available_timezones

_NOT_PLACES = frozenset({"localtime", "Factory"})


class Unit(IntEnum):
    """What an interval is counted in."""

    DAY = 1
    WEEK = 2
    MONTH = 3
    YEAR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The length of a period, e.g. two weeks."""

    unit: Unit
    count: int

    def __str__(self) -> str:
        """As an import has it: `1 month`, `2 weeks`."""
        return f"{self.count} {self.unit.name.lower()}{'s' if self.count != 1 else ''}"


@cache
def time_zones() -> frozenset[str]:
    """Names of the time zones that a subscription may be in."""
    return frozenset(available_timezones()) - _NOT_PLACES


def first_day(start: date, interval: Interval, period: int, anchor_day: int | None = None) -> date:
    """The first day of period number `period`, which is also the day after the period before.

    `anchor_day` is the day of the month that periods begin on, by default the start's. A month that is too short for it begins
    its period on its last day. Raises `OverflowError` past year 9999.
    """
    anchor = anchor_day or start.day
    steps = interval.count * period
    match interval.unit:
        case Unit.DAY:
            return start + timedelta(days=steps)
        case Unit.WEEK:
            return start + timedelta(weeks=steps)
        case Unit.MONTH:
            return _add_months(start, steps, anchor)
        case Unit.YEAR:
            return _add_months(start, 12 * steps, anchor)


def is_anchor(anchor_day: int, start: date) -> bool:
    """Whether `start` is on that day of its month, or on the last one of a month too short for it."""
    return start.day == min(anchor_day, monthrange(start.year, start.month)[1])


def _add_months(start: date, months: int, anchor_day: int) -> date:
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    if year > date.max.year:
        raise OverflowError(f"year {year} is past the calendar's end")
    return date(year, month + 1, min(anchor_day, monthrange(year, month + 1)[1]))


@lru_cache(maxsize=16_384)  # thousands of subscriptions share a day and a zone
def begins_at(day: date, time_zone: str) -> datetime:
    """The instant at which `day` begins in a time zone.

    Where midnight happens twice, the first; where it is skipped, the first instant after it, which is later than the whole
    day where the day itself is skipped (Samoa had no 30 December 2011). Raises `ZoneInfoNotFoundError`.
    """
    zone = ZoneInfo(time_zone)
    midnight = datetime.combine(day, time.min, zone)
    early, late = (midnight.replace(fold=fold).astimezone(UTC) for fold in (1, 0))
    if early < late:  # in a gap: by the clock after it, and by the clock before it
        gap = range(int((late - early).total_seconds()))
        seconds = bisect_left(gap, day, key=lambda second: (early + timedelta(seconds=second)).astimezone(zone).date())
        late = early + timedelta(seconds=seconds)
    return late.replace(tzinfo=None)
