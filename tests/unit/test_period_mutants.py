"""The calendar's end, which mutants showed that no other test reaches."""

from __future__ import annotations

from datetime import date

import pytest

from billing_shards.billing.periods import Interval, Unit, first_day

MONTHLY = Interval(unit=Unit.MONTH, count=1)


def test_the_last_year_of_the_calendar_has_its_periods() -> None:
    assert first_day(date(9998, 12, 31), MONTHLY, 1) == date(9999, 1, 31)
    assert first_day(date(9998, 12, 31), MONTHLY, 12) == date(9999, 12, 31)


def test_a_period_past_it_is_an_error_that_names_the_year() -> None:
    with pytest.raises(OverflowError, match=r"^year 10000 is past the calendar's end$"):
        first_day(date(9998, 12, 31), MONTHLY, 13)
