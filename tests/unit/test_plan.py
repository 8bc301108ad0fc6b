"""Which invoices the scheduler shall write: every period that has begun, once, in bounded steps."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.billing.decide import plan
from billing_shards.billing.model import Due, Invoice, Plan, Subscription
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
