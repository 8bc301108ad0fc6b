"""Changes of a subscription: periods go on without gap or overlap, and what cannot be done is refused with its reason."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.billing import state
from billing_shards.billing.dunning import Standing
from billing_shards.billing.model import Status, Subscription
from billing_shards.billing.periods import Interval, Unit
from billing_shards.billing.state import Row
from billing_shards.billing.terms import Change, Span, changed, first_period_after, first_period_from, skipped
from billing_shards.errors import InvalidInput, NotPossible

MONTHLY, YEARLY = Interval(unit=Unit.MONTH, count=1), Interval(unit=Unit.YEAR, count=1)
NOW = datetime(2024, 3, 15)
NOTHING_RUNS = "no period is running (the subscription is suspended or held): cancel it now"


def terms(start: str = "2024-01-31", *, interval: Interval = MONTHLY, **changes: Any) -> Subscription:
    return Subscription(
        **{
            "id": "sub-1",
            "customer_id": "c-1",
            "service": "video",
            "amount": 990,
            "currency": "USD",
            "interval": interval,
            "start_date": date.fromisoformat(start),
            "time_zone": "UTC",
            "payment_method": "pm_1",
            **changes,
        }
    )


def row(*, next_period: int = 2, status: Status = Status.ACTIVE, **changes: Any) -> Row:
    """By default invoiced up to 31 March."""
    agreed = changes.pop("terms", terms())
    running = status in {Status.ACTIVE, Status.PAST_DUE} and changes.get("held_since") is None
    return Row(
        **{
            "terms": agreed,
            "status": status,
            "next_period": next_period,
            "next_invoice_at": agreed.begins_at(next_period) if running else None,
            "catch_up_until": None,
            "held_since": None,
            "cancel_at": None,
            "past_due_since": None,
            "suspended_since": None,
            "notices": 0,
            "write_off": False,
            "next_dunning_at": None,
            **changes,
        }
    )


def days(span: Span, count: int) -> list[str]:
    return [str(span.terms.first_day(period)) for period in range(span.next_period, span.next_period + count)]


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (Interval(unit=Unit.MONTH, count=2), ["2024-02-29", "2024-04-30", "2024-06-30", "2024-08-31"]),  # still the 31st
        (YEARLY, ["2024-02-29", "2025-02-28", "2026-02-28", "2027-02-28"]),
        (Interval(unit=Unit.WEEK, count=2), ["2024-02-29", "2024-03-14", "2024-03-28", "2024-04-11"]),
        (Interval(unit=Unit.DAY, count=30), ["2024-02-29", "2024-03-30", "2024-04-29", "2024-05-29"]),
    ],
)
def test_another_interval_begins_with_the_next_period_and_keeps_the_day_of_the_month(
    interval: Interval, expected: list[str]
) -> None:
    after = changed(Span(terms=terms(), next_period=1), Change(interval=interval))
    assert days(after, 4) == expected
    assert (after.terms.first_period, after.next_period) == (0, 0)


def test_back_from_weeks_the_day_is_the_one_the_change_falls_on() -> None:
    weekly = changed(Span(terms=terms(), next_period=1), Change(interval=Interval(unit=Unit.WEEK, count=1)))
    assert weekly.terms.anchor_day is None
    monthly = changed(replace(weekly, next_period=1), Change(interval=MONTHLY))
    assert days(monthly, 3) == ["2024-03-07", "2024-04-07", "2024-05-07"]


def test_another_price_keeps_the_count() -> None:
    after = changed(Span(terms=terms(), next_period=3), Change(amount=1200, currency="EUR", service="music"))
    assert (after.terms.amount, after.terms.currency, after.terms.service) == (1200, "EUR", "music")
    assert (after.terms.first_period, after.next_period, after.terms.start_date) == (3, 3, date(2024, 1, 31))


intervals = st.one_of(
    st.builds(Interval, unit=st.sampled_from([Unit.DAY, Unit.WEEK, Unit.MONTH]), count=st.integers(1, 24)),
    st.builds(Interval, unit=st.just(Unit.YEAR), count=st.integers(1, 3)),
)
zones = st.sampled_from(["UTC", "Asia/Kolkata", "America/Juneau", "Pacific/Apia"])


@given(
    st.dates(date(1990, 1, 1), date(2040, 12, 31)),
    zones,
    intervals,
    st.lists(st.tuples(st.integers(0, 5), intervals), max_size=6),
)
def test_periods_tile_across_any_changes_of_the_interval(
    start: date, time_zone: str, interval: Interval, changes: list[tuple[int, Interval]]
) -> None:
    """So many periods are invoiced, then the interval is changed, and so on: each period begins where the one before ended."""
    span = Span(terms=terms(start.isoformat(), interval=interval, time_zone=time_zone), next_period=0)
    found: list[tuple[date, date]] = []
    for count, then in [*changes, (3, interval)]:
        numbers = range(span.next_period, span.next_period + count)
        found += [(span.terms.first_day(number), span.terms.first_day(number + 1)) for number in numbers]
        span = changed(replace(span, next_period=span.next_period + count), Change(interval=then))
    assert found[0][0] == start
    assert all(first < after for first, after in found)
    assert all(before[1] == after[0] for before, after in pairwise(found))


@given(st.dates(date(1990, 1, 1), date(2040, 12, 31)), zones, intervals, st.integers(0, 4000), st.integers(0, 5))
def test_what_is_left_out_ends_with_the_present(start: date, time_zone: str, interval: Interval, later: int, done: int) -> None:
    span = Span(terms=terms(start.isoformat(), interval=interval, time_zone=time_zone), next_period=done)
    now = span.next_begins_at + timedelta(days=later)
    after = skipped(span, first_period_after(span, now))
    assert after.next_begins_at > now
    assert after.next_period == done or after.terms.begins_at(after.next_period - 1) <= now
    assert (after.terms.first_period == after.next_period) is (after.next_period > done or done == 0)


def test_nothing_is_skipped_backwards() -> None:
    span = Span(terms=terms(), next_period=5)
    assert skipped(span, 3) is span
    assert skipped(span, 5) is span  # nothing lies between: the span goes on


def test_the_first_period_from_a_day() -> None:
    assert first_period_from(terms(), date(2024, 3, 1)) == 2
    assert first_period_from(terms(), date(2024, 3, 31)) == 2
    assert first_period_from(terms(), date(1999, 1, 1)) == 0
    assert first_period_from(terms(), date(1999, 1, 1), earliest=4) == 4


# What a person may do in each state


def test_an_update_holds_from_the_next_period_on_and_keeps_what_was_before() -> None:
    before = row()
    after = state.updated(before, Change(amount=1200), NOW)
    assert (after.terms.amount, after.terms.first_period, after.next_period) == (1200, 2, 2)
    assert after.next_invoice_at == datetime(2024, 3, 31)
    assert state.closed(before, after) == before.span


def test_before_the_first_invoice_nothing_is_kept() -> None:
    before = row(next_period=0, terms=terms("2024-06-30"))
    after = state.updated(before, Change(interval=YEARLY), NOW)
    assert state.closed(before, after) is None
    assert after.next_invoice_at == datetime(2024, 6, 30)


def test_a_change_of_payment_method_is_no_change_of_terms() -> None:
    before = row()
    after = state.with_method(before, "pm_2", NOW)
    assert (after.terms.payment_method, after.next_dunning_at) == ("pm_2", NOW)
    assert state.closed(before, after) is None


def test_a_word_for_catching_up_counts_the_periods_of_these_terms_alone() -> None:
    before = row(catch_up_until=7)
    assert state.updated(before, Change(amount=1200), NOW).catch_up_until is None


@pytest.mark.parametrize(
    ("before", "change", "reason"),
    [
        (row(status=Status.CANCELED), Change(amount=1), "the subscription is canceled"),
        (
            row(held_since=NOW),
            Change(amount=1),
            "the subscription is held: say first what becomes of the periods it missed (catch-up)",
        ),
        (
            row(next_period=1),
            Change(amount=1),
            "the period of 2024-02-29 has begun, and has no invoice yet: try again when it has",
        ),
        (
            row(next_period=0, terms=terms("2024-03-15")),
            Change(amount=1),
            "the period of 2024-03-15 has begun, and has no invoice yet: try again when it has",
        ),
        (row(), Change(currency="EUR"), "amount: is needed in the new currency EUR"),
        (row(), Change(), "update: changes nothing"),
        (row(), Change(amount=990, currency="USD", service="video", interval=MONTHLY), "update: changes nothing"),
    ],
)
def test_an_update_that_is_not_possible_says_why(before: Row, change: Change, reason: str) -> None:
    with pytest.raises((NotPossible, InvalidInput), match=f"^{re.escape(reason)}$"):
        state.updated(before, change, NOW)


def test_of_a_suspended_one_the_new_terms_begin_with_the_first_period_to_come() -> None:
    before = row(status=Status.SUSPENDED, next_period=1)
    after = state.updated(before, Change(interval=YEARLY), NOW)
    assert (after.span.next_day, after.next_invoice_at) == (date(2024, 3, 31), None)
    assert state.closed(before, after) == before.span


def test_the_end_now_and_the_end_of_the_period() -> None:
    now = state.canceled(row(), NOW, at_period_end=False, write_off=True)
    assert (now.status, now.next_invoice_at, now.write_off, now.next_dunning_at) == (Status.CANCELED, None, True, NOW)
    kept = state.canceled(row(next_dunning_at=NOW), NOW, at_period_end=False, write_off=False)
    assert (kept.write_off, kept.next_dunning_at) == (False, None)
    later = state.canceled(row(), NOW, at_period_end=True, write_off=False)
    assert (later.status, later.cancel_at, later.next_invoice_at) == (Status.ACTIVE, date(2024, 3, 31), datetime(2024, 3, 31))
    behind = state.canceled(row(next_period=0), NOW, at_period_end=True, write_off=False)
    assert behind.cancel_at == date(2024, 3, 31)  # of the period that runs now, not of the one not invoiced yet


@pytest.mark.parametrize(
    ("before", "at_period_end", "write_off", "reason"),
    [
        (row(status=Status.CANCELED), False, False, "the subscription is canceled already"),
        (row(status=Status.SUSPENDED), True, False, NOTHING_RUNS),
        (row(held_since=NOW), True, False, NOTHING_RUNS),
        (row(), True, True, "write-off: goes with a cancellation that takes place now"),
    ],
)
def test_an_end_that_is_not_possible_says_why(before: Row, at_period_end: bool, write_off: bool, reason: str) -> None:
    with pytest.raises((NotPossible, InvalidInput), match=f"^{re.escape(reason)}$"):
        state.canceled(before, NOW, at_period_end=at_period_end, write_off=write_off)


def test_a_payment_method_is_refused_where_it_helps_nobody() -> None:
    with pytest.raises(InvalidInput, match=r"^payment method: is the one that it has already$"):
        state.with_method(row(), "pm_1", NOW)
    with pytest.raises(NotPossible, match=r"^the subscription is canceled, and its debt written off$"):
        state.with_method(row(status=Status.CANCELED, write_off=True), "pm_2", NOW)
    assert state.with_method(row(status=Status.CANCELED), "pm_2", NOW).terms.payment_method == "pm_2"


HELD = row(next_period=0, held_since=datetime(2024, 3, 1))


def test_the_word_to_invoice_missed_periods() -> None:
    after = state.caught_up(HELD, NOW, periods=2)
    assert (after.held_since, after.catch_up_until, after.next_invoice_at) == (None, 2, datetime(2024, 1, 31))
    assert state.closed(HELD, after) is None


def test_the_word_to_leave_missed_periods_out() -> None:
    after = state.caught_up(HELD, NOW, skip_to=date(2024, 2, 15))
    assert (after.next_period, after.terms.first_period, after.next_invoice_at) == (1, 1, datetime(2024, 2, 29))
    part = replace(HELD, next_period=1)
    assert state.closed(part, state.caught_up(part, NOW, skip_to=date(2024, 3, 31))) == part.span
    assert state.caught_up(HELD, NOW, skip_to=date(2000, 1, 1)).next_period == 0


@pytest.mark.parametrize(
    ("before", "word", "reason"),
    [
        (row(), {"periods": 1}, "the subscription is not held"),
        (HELD, {}, "catch-up: say how many periods to invoice, or to which day to skip"),
        (HELD, {"skip_to": date(2024, 4, 1)}, "skip-to: would leave out periods that have not begun yet"),
    ],
)
def test_a_word_that_is_not_possible_says_why(before: Row, word: dict[str, Any], reason: str) -> None:
    with pytest.raises((NotPossible, InvalidInput), match=f"^{re.escape(reason)}$"):
        state.caught_up(before, NOW, **word)


def standing(status: Status) -> Standing:
    return Standing(status=status, past_due_since=None, suspended_since=None, notices=0, write_off=False, unpaid=())


def test_after_dunning_invoicing_stops_and_goes_on() -> None:
    suspended = state.followed(row(next_period=1), standing(Status.SUSPENDED), NOW, NOW)
    assert (suspended.next_invoice_at, suspended.next_dunning_at) == (None, NOW)
    back = state.followed(suspended, standing(Status.ACTIVE), None, NOW)
    assert (back.next_period, back.next_invoice_at) == (2, datetime(2024, 3, 31))
    assert state.closed(suspended, back) == suspended.span
    late = state.followed(row(), standing(Status.PAST_DUE), NOW, NOW)
    assert (late.next_period, late.next_invoice_at) == (2, datetime(2024, 3, 31))


def test_only_a_suspension_that_is_lifted_leaves_periods_out() -> None:
    """One of 29 February has begun, and waits for its invoice."""
    recovered = state.followed(row(next_period=1, status=Status.PAST_DUE), standing(Status.ACTIVE), None, NOW)
    assert (recovered.next_period, recovered.next_invoice_at) == (1, datetime(2024, 2, 29))
    ended = state.followed(row(next_period=1, status=Status.SUSPENDED), standing(Status.CANCELED), None, NOW)
    assert (ended.next_period, ended.next_invoice_at) == (1, None)


def test_one_that_is_held_stays_held_when_its_suspension_is_lifted() -> None:
    held = row(status=Status.SUSPENDED, next_period=0, held_since=NOW)
    back = state.followed(held, standing(Status.ACTIVE), None, NOW)
    assert (back.status, back.next_period, back.next_invoice_at, back.held_since) == (Status.ACTIVE, 0, None, NOW)
