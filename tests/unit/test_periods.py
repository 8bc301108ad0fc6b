"""Periods keep their anchor day, tile without gap or overlap, and begin at midnight where the subscription lives."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from billing_shards.billing.periods import Interval, Unit, begins_at, first_day, is_anchor, time_zones

DAILY = Interval(unit=Unit.DAY, count=1)
MONTHLY = Interval(unit=Unit.MONTH, count=1)
YEARLY = Interval(unit=Unit.YEAR, count=1)

starts = st.dates(date(1971, 1, 1), date(2099, 12, 31))
intervals = st.one_of(
    st.builds(Interval, unit=st.sampled_from([Unit.DAY, Unit.WEEK, Unit.MONTH]), count=st.integers(1, 60)),
    st.builds(Interval, unit=st.just(Unit.YEAR), count=st.integers(1, 10)),
)


def days(start: date, interval: Interval, count: int) -> list[date]:
    return [first_day(start, interval, period) for period in range(count)]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        # killbill#127: after [02-28, 03-31) comes [03-31, 04-30)
        ("2017-01-31", ["2017-01-31", "2017-02-28", "2017-03-31", "2017-04-30"]),
        # lago#1840: on 2024-02-29 the period of January 30 ends, and the next one keeps the 30th
        ("2024-01-30", ["2024-01-30", "2024-02-29", "2024-03-30", "2024-04-30"]),
        # lago#1567: no period is lost around a short month
        ("2023-01-31", ["2023-01-31", "2023-02-28", "2023-03-31", "2023-04-30"]),
        # polar#10664: the anchor does not drift from the 31st to the 29th
        ("2024-01-31", ["2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30", "2024-05-31"]),
        ("2023-11-30", ["2023-11-30", "2023-12-30", "2024-01-30", "2024-02-29", "2024-03-30"]),
    ],
)
def test_the_anchor_day_outlives_short_months(start: str, expected: list[str]) -> None:
    found = days(date.fromisoformat(start), MONTHLY, len(expected))
    assert [day.isoformat() for day in found] == expected


def test_a_leap_days_anniversary_comes_back_in_leap_years() -> None:
    found = days(date(2096, 2, 29), YEARLY, 9)
    assert [(day.month, day.day) for day in found] == [(2, 29), *[(2, 28)] * 7, (2, 29)]
    assert found[4] == date(2100, 2, 28)  # not a leap year


@pytest.mark.parametrize(
    ("start", "anchor", "expected"),
    [
        ("2024-02-29", 31, ["2024-02-29", "2024-03-31", "2024-04-30", "2024-05-31"]),
        ("2023-02-28", 29, ["2023-02-28", "2023-03-29", "2023-04-29", "2023-05-29"]),
        ("2024-04-30", 31, ["2024-04-30", "2024-05-31", "2024-06-30", "2024-07-31"]),
        ("2024-04-15", 15, ["2024-04-15", "2024-05-15", "2024-06-15", "2024-07-15"]),
    ],
)
def test_an_anchor_day_of_its_own_outlives_a_start_in_a_short_month(start: str, anchor: int, expected: list[str]) -> None:
    """killbill#127's anchor 31 in a subscription that begins in February."""
    assert is_anchor(anchor, date.fromisoformat(start))
    found = [first_day(date.fromisoformat(start), MONTHLY, period, anchor) for period in range(len(expected))]
    assert [day.isoformat() for day in found] == expected


@given(starts, intervals, st.integers(1, 31), st.integers(0, 60))
def test_periods_of_any_anchor_tile_from_the_start_on(start: date, interval: Interval, anchor: int, period: int) -> None:
    if not is_anchor(anchor, start):
        assert first_day(start, MONTHLY, 0, anchor) != start
        return
    assert first_day(start, interval, 0, anchor) == start
    assert first_day(start, interval, period, anchor) < first_day(start, interval, period + 1, anchor)
    if interval.unit in {Unit.MONTH, Unit.YEAR}:
        assert is_anchor(anchor, first_day(start, interval, period, anchor))


@pytest.mark.parametrize(
    ("unit", "count", "text"), [(Unit.MONTH, 1, "1 month"), (Unit.DAY, 30, "30 days"), (Unit.YEAR, 2, "2 years")]
)
def test_intervals_are_written_as_an_import_reads_them(unit: Unit, count: int, text: str) -> None:
    assert str(Interval(unit=unit, count=count)) == text


@pytest.mark.parametrize(
    ("unit", "count", "period", "expected"),
    [
        (Unit.DAY, 30, 2, "2024-03-01"),
        (Unit.WEEK, 2, 3, "2024-02-12"),
        (Unit.MONTH, 3, 1, "2024-04-01"),
        (Unit.MONTH, 13, 2, "2026-03-01"),
        (Unit.YEAR, 2, 5, "2034-01-01"),
    ],
)
def test_intervals_are_counted_in_their_unit(unit: Unit, count: int, period: int, expected: str) -> None:
    assert first_day(date(2024, 1, 1), Interval(unit=unit, count=count), period) == date.fromisoformat(expected)


@pytest.mark.parametrize("unit", Unit)
def test_the_calendars_end_is_an_error_in_every_unit(unit: Unit) -> None:
    with pytest.raises(OverflowError):
        first_day(date(9990, 1, 1), Interval(unit=unit, count=5000), 1)


@given(starts, intervals, st.integers(0, 200))
def test_periods_tile_the_calendar(start: date, interval: Interval, period: int) -> None:
    """Each day from the start on is in exactly one period: period k ends where k + 1 begins, and never before it began."""
    assert first_day(start, interval, 0) == start
    first, after = first_day(start, interval, period), first_day(start, interval, period + 1)
    assert first < after
    least, most = {Unit.DAY: (1, 1), Unit.WEEK: (7, 7), Unit.MONTH: (28, 31), Unit.YEAR: (365, 366)}[interval.unit]
    slack = 3 if interval.unit is Unit.MONTH else 1  # days by which two clamped ends may differ
    assert least * interval.count - slack <= (after - first).days <= most * interval.count + slack


@given(starts, intervals, st.integers(0, 200))
def test_a_period_is_clamped_only_where_its_month_is_too_short(start: date, interval: Interval, period: int) -> None:
    day = first_day(start, interval, period)
    if interval.unit in {Unit.MONTH, Unit.YEAR} and day.day != start.day:
        assert day.day < start.day
        assert (day + timedelta(days=1)).day == 1


@given(starts, intervals, st.sampled_from(sorted(time_zones())), st.integers(0, 200))
@example(date(2011, 12, 29), DAILY, "Pacific/Apia", 0)
@example(date(2011, 12, 29), DAILY, "Pacific/Apia", 1)
@example(date(1993, 8, 20), DAILY, "Pacific/Kwajalein", 0)
@example(date(1994, 12, 30), DAILY, "Pacific/Kiritimati", 0)
def test_instants_tile_time(start: date, interval: Interval, time_zone: str, period: int) -> None:
    """A period begins at the first instant of its first day, so no instant is in two periods or in none."""
    zone = ZoneInfo(time_zone)
    first, after = first_day(start, interval, period), first_day(start, interval, period + 1)
    instant = begins_at(first, time_zone).replace(tzinfo=UTC)
    assert instant.astimezone(zone).date() >= first
    assert (instant - timedelta(seconds=1)).astimezone(zone).date() < first
    assert begins_at(first, time_zone) <= begins_at(after, time_zone)


@pytest.mark.parametrize(
    ("day", "time_zone", "expected"),
    [
        ("2024-03-01", "UTC", "2024-03-01T00:00:00"),
        ("2024-03-01", "Asia/Kolkata", "2024-02-29T18:30:00"),  # lago#879: the day before in UTC
        ("2024-03-01", "America/Bogota", "2024-03-01T05:00:00"),
        ("2018-11-04", "America/Sao_Paulo", "2018-11-04T03:00:00"),  # midnight is skipped: the day begins at 01:00
        ("2018-02-18", "America/Sao_Paulo", "2018-02-18T03:00:00"),  # midnight was turned back to 23:00 of the day before
        ("2024-11-03", "America/Havana", "2024-11-03T04:00:00"),  # midnight happens twice: the first one
        ("2024-04-26", "Africa/Cairo", "2024-04-25T22:00:00"),  # skipped
        ("2011-12-30", "Pacific/Apia", "2011-12-30T10:00:00"),  # the whole day is skipped
        ("2011-12-31", "Pacific/Apia", "2011-12-30T10:00:00"),
        ("1972-01-07", "Africa/Monrovia", "1972-01-07T00:44:30"),  # the clock was put forward by 44 min 30 s at midnight
        ("2015-11-01", "America/Juneau", "2015-11-01T08:00:00"),
        ("2015-11-02", "America/Juneau", "2015-11-02T09:00:00"),
    ],
)
def test_a_day_begins_at_its_own_midnight(day: str, time_zone: str, expected: str) -> None:
    assert begins_at(date.fromisoformat(day), time_zone) == utc(expected)


def test_a_gap_that_begins_before_midnight_ends_the_day_before_at_once() -> None:
    """Toronto, 30 March 1919: 23:30 was followed by 00:30 of the 31st."""
    assert begins_at(date(1919, 3, 31), "America/Toronto") == utc("1919-03-31T04:30:00")


def test_days_across_a_clock_change_are_23_and_25_hours_long() -> None:
    """killbill#445: in Juneau, from 2015-10-01 until past the end of summer time; it never came to an end there."""
    instants = [begins_at(day, "America/Juneau") for day in days(date(2015, 10, 1), DAILY, 61)]
    lengths = [(after - before) // timedelta(hours=1) for before, after in pairwise(instants)]
    assert lengths == [24] * 31 + [25] + [24] * 28
    spring = [begins_at(date(2016, 3, day), "America/Juneau") for day in (13, 14)]
    assert spring[1] - spring[0] == timedelta(hours=23)


def test_time_zones_are_places() -> None:
    assert {"UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"} <= time_zones()
    assert not {"localtime", "Factory", "posixrules", "Mars/Olympus", ""} & time_zones()
    assert max(map(len, time_zones())) <= 64
