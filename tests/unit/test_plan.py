"""Which invoices the scheduler shall write: every period that has begun, once, in bounded steps."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.billing.decide import plan
from billing_shards.billing.model import Due, Invoice, Plan, Stop, Subscription
from billing_shards.billing.periods import Interval, Unit, begins_at, first_day
from billing_shards.billing.smoothing import offset_seconds
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import RENEWAL, job_key
from billing_shards.settings import parse_spec

ZONES = ("UTC", "Asia/Kolkata", "America/Bogota", "America/Sao_Paulo", "Pacific/Apia", "America/Juneau")


def subscription(start: str = "2024-01-31", *, time_zone: str = "UTC", unit: Unit = Unit.MONTH, count: int = 1) -> Subscription:
    return Subscription(
        id="sub-1",
        customer_id="c-1",
        service="video",
        amount=990,
        currency="USD",
        interval=Interval(unit=unit, count=count),
        start_date=date.fromisoformat(start),
        time_zone=time_zone,
        payment_method="pm_1",
    )


def lanes(**spec: Any) -> Lanes:
    user = {"credentialsSecret": {"name": "app"}, "schemaSecret": {"name": "owner"}}
    return Lanes(parse_spec({"databases": [{"name": "a", "host": "a", **user}], "gateway": {"url": "http://a"}, **spec}))


def planned(
    agreed: Subscription,
    now: str,
    *,
    next_period: int = 0,
    window: int = 3600,
    grace: int = 60,
    most: int = 12,
    missed_max: int = 10_000,
    **due: Any,
) -> Plan:
    wanted = Due(subscription=agreed, next_period=next_period, **due)
    common = lanes(smoothing={"windowSeconds": window})
    moment = datetime.fromisoformat(now)
    return plan(wanted, moment, lanes=common, grace_seconds=grace, catch_up_max=most, missed_max=missed_max)


def test_the_first_period_is_invoiced_when_it_begins() -> None:
    found = planned(subscription(), "2024-01-31T00:00:00")
    due = datetime.fromisoformat("2024-01-31T00:00:00")
    charge_at = due + timedelta(seconds=offset_seconds("sub-1", 3600))
    assert found == Plan(
        subscription="sub-1",
        invoices=(
            Invoice(
                subscription=subscription(),
                period_start=date(2024, 1, 31),
                period_end=date(2024, 2, 29),
                due_at=due,
                charge_at=charge_at,
                grace_until=charge_at + timedelta(seconds=60),
                key=job_key("sub-1", date(2024, 1, 31), 1),
                lane=RENEWAL,
            ),
        ),
        next_period=1,
        next_day=date(2024, 2, 29),
        next_invoice_at=datetime.fromisoformat("2024-02-29T00:00:00"),
    )


def test_a_service_of_its_own_has_its_lane_and_its_window() -> None:
    services = [{"name": "video", "lane": 7, "windowSeconds": 0}]
    due = Due(subscription=subscription(), next_period=0)
    (invoice,) = plan(
        due, datetime(2024, 1, 31), lanes=lanes(services=services), grace_seconds=60, catch_up_max=12, missed_max=12
    ).invoices
    assert (invoice.lane, invoice.charge_at) == (14, datetime(2024, 1, 31))


def test_before_a_period_begins_nothing_is_invoiced() -> None:
    found = planned(subscription(), "2024-01-30T23:59:59.999999")
    assert (found.invoices, found.next_period) == ((), 0)
    assert found.next_invoice_at == datetime.fromisoformat("2024-01-31T00:00:00")


def test_missed_periods_are_caught_up_in_bounded_steps() -> None:
    agreed = subscription(unit=Unit.DAY)
    steps = [planned(agreed, "2024-03-01T00:00:00", next_period=period) for period in (0, 12, 24, 31)]
    assert [len(step.invoices) for step in steps] == [12, 12, 7, 0]
    assert [step.next_period for step in steps] == [12, 24, 31, 31]


@pytest.mark.parametrize(
    ("now", "grace_until"),
    [("2024-01-31T00:00:00", "2024-01-31T00:01:00"), ("2024-02-15T08:00:00", "2024-02-15T08:01:00")],
)
def test_grace_begins_with_the_charge_but_not_before_the_invoice(now: str, grace_until: str) -> None:
    (invoice,) = planned(subscription(), now, window=0).invoices
    assert invoice.charge_at == datetime.fromisoformat("2024-01-31T00:00:00")
    assert invoice.grace_until == datetime.fromisoformat(grace_until)


@given(
    st.dates(date(1990, 1, 1), date(2030, 12, 31)),
    st.sampled_from(ZONES),
    st.sampled_from(Unit),
    st.integers(1, 4),
    st.timedeltas(timedelta(0), timedelta(days=500)),
    st.integers(1, 40),
)
def test_caught_up_in_whatever_steps_each_period_that_has_begun_has_one_invoice(
    start: date, time_zone: str, unit: Unit, count: int, later: timedelta, most: int
) -> None:
    agreed = subscription(start.isoformat(), time_zone=time_zone, unit=unit, count=count)
    now = (datetime.combine(start, datetime.min.time(), UTC) + later).replace(tzinfo=None)
    invoices: list[Invoice] = []
    period = 0
    while step := planned(agreed, now.isoformat(), next_period=period, most=most).invoices:
        assert len(step) <= most
        invoices += step
        period += len(step)
    assert [invoice.period_start for invoice in invoices] == [first_day(start, agreed.interval, k) for k in range(period)]
    assert all(before.period_end == after.period_start for before, after in pairwise(invoices))
    assert all(invoice.due_at <= now and invoice.due_at <= invoice.charge_at < invoice.grace_until for invoice in invoices)
    assert len({invoice.key for invoice in invoices}) == len(invoices)
    assert begins_at(first_day(start, agreed.interval, period), time_zone) > now


# Too many missed periods need a word


@pytest.mark.parametrize(
    ("now", "missed_max", "word", "invoices", "stop"),
    [
        ("2024-04-30T00:00:00", 4, None, 4, None),  # four have begun: just as many as may
        ("2024-05-31T00:00:00", 4, None, 0, Stop.HELD),
        ("2024-05-31T00:00:00", 4, 3, 3, None),
        ("2024-05-31T00:00:00", 4, 9, 5, None),
        ("2024-05-31T00:00:00", 4, 0, 0, Stop.HELD),
        ("2024-01-30T00:00:00", 1, None, 0, None),
        ("2034-01-31T00:00:00", 120, None, 0, Stop.HELD),
    ],
)
def test_more_missed_periods_than_the_limit_wait_for_a_word(
    now: str, missed_max: int, word: int | None, invoices: int, stop: Stop | None
) -> None:
    found = planned(subscription(), now, missed_max=missed_max, catch_up_until=word, most=200)
    assert (len(found.invoices), found.stop) == (invoices, stop)
    assert (found.next_invoice_at is None) is (stop is not None)
    assert found.next_day == first_day(date(2024, 1, 31), subscription().interval, invoices)


def test_the_limit_is_for_what_was_missed_and_not_for_one_step() -> None:
    """Caught up in steps of two, none of which may forget how many there are."""
    found = [planned(subscription(), "2024-05-31T00:00:00", next_period=period, missed_max=5, most=2) for period in (0, 2, 4)]
    assert [(len(step.invoices), step.stop) for step in found] == [(2, None), (2, None), (1, None)]
    assert planned(subscription(), "2024-05-31T00:00:00", missed_max=4, most=2).stop is Stop.HELD


def test_a_word_ends_where_it_was_given_for() -> None:
    now = "2024-12-31T00:00:00"  # twelve have begun
    first = planned(subscription(), now, missed_max=4, catch_up_until=5)
    assert (len(first.invoices), first.next_period) == (5, 5)
    assert planned(subscription(), now, next_period=5, missed_max=4, catch_up_until=5).stop is Stop.HELD
    assert len(planned(subscription(), now, next_period=8, missed_max=4, catch_up_until=5).invoices) == 4


# The last period


@pytest.mark.parametrize(
    ("now", "invoices", "stop"),
    [
        ("2024-03-30T23:59:59", 2, None),  # 31 January and 29 February; the end is still to come
        ("2024-03-31T00:00:00", 2, Stop.CANCELED),
        ("2029-01-01T00:00:00", 2, Stop.CANCELED),  # periods after the end are not missed
    ],
)
def test_what_begins_on_the_last_day_or_later_is_not_invoiced(now: str, invoices: int, stop: Stop | None) -> None:
    found = planned(subscription(), now, missed_max=3, cancel_at=date(2024, 3, 31))
    assert (len(found.invoices), found.stop) == (invoices, stop)
    wanted = None if stop else datetime(2024, 3, 31)
    assert found.next_invoice_at == wanted


def test_it_ends_only_once_all_that_came_before_is_invoiced() -> None:
    found = planned(subscription(), "2029-01-01T00:00:00", most=1, missed_max=3, cancel_at=date(2024, 3, 31))
    assert (len(found.invoices), found.stop, found.next_invoice_at) == (1, None, datetime(2024, 2, 29))


@given(
    st.dates(date(1990, 1, 1), date(2030, 12, 31)),
    st.sampled_from(ZONES),
    st.sampled_from(Unit),
    st.integers(1, 4),
    st.timedeltas(timedelta(0), timedelta(days=900)),
    st.integers(1, 6),
    st.integers(1, 30),
    st.lists(st.integers(1, 12), max_size=6),
    st.none() | st.integers(0, 40),
)
def test_whatever_is_held_and_let_go_no_period_is_lost_or_invoiced_twice(
    start: date,
    time_zone: str,
    unit: Unit,
    count: int,
    later: timedelta,
    most: int,
    missed_max: int,
    words: list[int],
    last: int | None,
) -> None:
    agreed = subscription(start.isoformat(), time_zone=time_zone, unit=unit, count=count)
    now = (datetime.combine(start, datetime.min.time(), UTC) + later).replace(tzinfo=None)
    cancel_at = None if last is None else agreed.first_day(last)
    due: dict[str, Any] = {"missed_max": missed_max, "most": most, "cancel_at": cancel_at}
    period, word, starts, waiting = 0, None, list[date](), list(words)
    while True:
        step = planned(agreed, now.isoformat(), next_period=period, catch_up_until=word, **due)
        starts += [invoice.period_start for invoice in step.invoices]
        period += len(step.invoices)
        assert step.next_period == period
        if step.stop is Stop.HELD and waiting:
            word = period + waiting.pop()
        elif step.stop is not None or not step.invoices:
            break
    assert starts == [agreed.first_day(number) for number in range(period)]
    assert last is None or period <= last
    begun = next(number for number in range(10_000) if agreed.begins_at(number) > now or number == last)
    if step.stop is Stop.HELD:
        assert begun - period > missed_max
    else:
        assert period == begun
