"""The demo's customers: whoever runs it, wherever and whenever, the same number of periods is due."""

import csv
import io
from collections import Counter
from datetime import date, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.billing.model import Subscription as Parsed
from billing_shards.billing.periods import begins_at, first_day
from billing_shards.billing.rows import parse_header, parse_row
from hack.demo.subscriptions import COLUMNS, Subscription, as_csv, expected, generate, major_units

TODAY = date(2026, 3, 1)


def parsed(subscriptions: list[Subscription]) -> list[Parsed]:
    """What the product's own import makes of the file."""
    header, *rows = csv.reader(io.StringIO(as_csv(subscriptions)))
    order = parse_header(header)
    found = [parse_row(line, [row[at] for at in order if at is not None]) for line, row in enumerate(rows, 2)]
    return [one for one in found if isinstance(one, Parsed)]


def periods_begun(subscription: Parsed, now: datetime) -> int:
    count = 0
    while begins_at(first_day(subscription.start_date, subscription.interval, count), subscription.time_zone) <= now:
        count += 1
    return count


@given(
    today=st.dates(date(2024, 1, 1), date(2060, 12, 31)),
    seconds=st.integers(min_value=0, max_value=2 * 86_400 - 1),  # it may be run a little before midnight
    seed=st.integers(0, 5),
)
def test_periods_due_are_those_that_have_begun(today: date, seconds: int, seed: int) -> None:
    customers = list(generate(30, seed=seed, today=today))
    now = datetime.combine(today, time()) + timedelta(seconds=seconds)
    assert [periods_begun(one, now) for one in parsed(customers)] == [one.periods_due for one in customers]


def test_the_import_takes_every_row_as_it_was_meant() -> None:
    customers = list(generate(2000, seed=1, today=TODAY))
    found = [(one.id, one.amount, one.currency, one.start_date, one.payment_method) for one in parsed(customers)]
    assert found == [(one.id, one.amount, one.currency, one.start, one.payment_method) for one in customers]


def test_a_seed_always_gives_the_same_file_and_another_one_does_not() -> None:
    first, second, other = (as_csv(generate(200, seed=seed, today=TODAY)) for seed in (7, 7, 8))
    assert first == second != other


def test_ids_are_unique_and_four_currencies_and_several_services_and_zones_are_there() -> None:
    customers = list(generate(5000, seed=3, today=TODAY))
    assert len({one.id for one in customers}) == 5000
    assert {one.currency for one in customers} == {"USD", "EUR", "JPY", "KWD"}
    assert len({one.service for one in customers}) >= 3
    assert len({one.time_zone for one in customers}) >= 6


def test_a_few_customers_have_two_periods_to_catch_up_with() -> None:
    due = Counter(one.periods_due for one in generate(20_000, seed=3, today=TODAY))
    assert set(due) == {1, 2}
    assert 400 < due[2] < 600


def test_expected_counts_each_due_period_at_its_price() -> None:
    def one(number: int, currency: str, amount: int, periods: int) -> Subscription:
        return Subscription(
            id=f"sub-{number}",
            customer="cus-1",
            service="news",
            amount=amount,
            currency=currency,
            interval="1 week",
            start=TODAY,
            time_zone="UTC",
            payment_method="pm_1",
            periods_due=periods,
        )

    found = expected([one(1, "USD", 150, 1), one(2, "USD", 200, 2), one(3, "JPY", 300, 1)])
    assert dict(found.subscriptions) == {"USD": 2, "JPY": 1}
    assert dict(found.invoices) == {"USD": 3, "JPY": 1}
    assert dict(found.amounts) == {"USD": 550, "JPY": 300}
    assert found.total == 4


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [(1999, "USD", "19.99"), (5, "EUR", "0.05"), (1490, "JPY", "1490"), (605, "KWD", "0.605"), (12_000, "KWD", "12.000")],
)
def test_amounts_are_written_with_the_decimals_of_their_currency(amount: int, currency: str, text: str) -> None:
    assert major_units(amount, currency) == text


def test_columns_are_the_ones_that_the_import_knows() -> None:
    assert set(parse_header(list(COLUMNS))) == set(range(len(COLUMNS)))
