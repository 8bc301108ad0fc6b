"""A row of an import is a subscription, or every problem in it with line, field and reason."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.billing.model import Subscription
from billing_shards.billing.periods import Interval, Unit
from billing_shards.billing.rows import ALL_COLUMNS, COLUMNS, Problem, is_card_number, parse_header, parse_row
from billing_shards.errors import InvalidInput

GOOD = {
    "id": "sub-1",
    "customer_id": "c:1@example.org",
    "service": "video",
    "amount": "9.90",
    "currency": "USD",
    "interval": "1 month",
    "start_date": "2024-01-31",
    "time_zone": "Europe/Berlin",
    "payment_method": "pm_1a2b",
}


def row(**changes: str) -> Subscription | list[Problem]:
    return parse_row(7, [{**GOOD, **changes}.get(name, "") for name in ALL_COLUMNS])


def test_a_good_row_is_a_subscription() -> None:
    assert row() == Subscription(
        id="sub-1",
        customer_id="c:1@example.org",
        service="video",
        amount=990,
        currency="USD",
        interval=Interval(unit=Unit.MONTH, count=1),
        start_date=date(2024, 1, 31),
        time_zone="Europe/Berlin",
        payment_method="pm_1a2b",
    )


@pytest.mark.parametrize(
    ("amount", "currency", "minor"), [("80", "JPY", 80), ("1.5", "KWD", 1500), ("0.01", "EUR", 1), ("12", "BRL", 1200)]
)
def test_amounts_are_in_major_units(amount: str, currency: str, minor: int) -> None:
    found = row(amount=amount, currency=currency)
    assert isinstance(found, Subscription)
    assert (found.amount, found.currency) == (minor, currency)


@pytest.mark.parametrize(
    ("text", "unit", "count"),
    [
        ("1 month", Unit.MONTH, 1),
        ("2 weeks", Unit.WEEK, 2),
        ("1 year", Unit.YEAR, 1),
        ("30 days", Unit.DAY, 30),
        ("1 months", Unit.MONTH, 1),
        ("10 years", Unit.YEAR, 10),
        ("3660 days", Unit.DAY, 3660),
    ],
)
def test_intervals_are_read(text: str, unit: Unit, count: int) -> None:
    found = row(interval=text)
    assert isinstance(found, Subscription)
    assert found.interval == Interval(unit=unit, count=count)


@pytest.mark.parametrize(
    ("field", "cell", "reason"),
    [
        ("amount", "-1", "must not be negative"),
        ("amount", "0", "must be more than zero"),
        ("amount", "9.999", "has 3 decimals, USD has 2"),
        ("amount", "", "must be digits"),
        ("currency", "XXX", "'XXX' is not the ISO 4217 code"),
        ("currency", "usd", "'usd' is not the ISO 4217 code"),
        ("currency", "", "'' is not the ISO 4217 code"),
        ("start_date", "2023-02-29", "'2023-02-29' is not a date of the calendar"),
        ("start_date", "2024-1-31", "'2024-1-31' is not a date"),
        ("start_date", "20240131", "'20240131' is not a date"),
        ("start_date", "2024-W05-3", "'2024-W05-3' is not a date"),
        ("start_date", "31.01.2024", "'31.01.2024' is not a date"),
        ("start_date", "1024-01-31", "'1024-01-31' is not from 1970-01-01 to 2199-12-31"),
        ("start_date", "9999-12-31", "'9999-12-31' is not from"),
        ("interval", "monthly", "'monthly' is not like '1 month'"),
        ("interval", "0 days", "'0 days' is not like"),
        ("interval", "-1 month", "'-1 month' is not like"),
        ("interval", "1  month", "'1  month' is not like"),
        ("interval", "11 years", "'11 years' is longer than ten years"),
        ("interval", "9999 days", "'9999 days' is longer than ten years"),
        ("time_zone", "Mars/Olympus", "is not the name of an IANA time zone"),
        ("time_zone", "europe/berlin", "is not the name"),
        ("time_zone", "../../etc/passwd", "is not the name"),
        ("id", "", "is empty"),
        ("id", "x" * 65, "is longer than 64 characters"),
        ("id", "two words", "may hold letters, digits"),
        ("id", "müller", "may hold letters, digits"),
        ("customer_id", "a\nb", "may hold letters, digits"),
        ("service", "x" * 64, "is longer than 63 characters"),
        ("payment_method", "", "is empty"),
        ("payment_method", "x" * 129, "is longer than 128 characters"),
        ("payment_method", "pm 1", "may hold printable ASCII characters without spaces only"),
        ("payment_method", "4111111111111111", "looks like a card number"),
        ("payment_method", "4111 1111-1111 1111", "looks like a card number"),
        ("payment_method", "378282246310005", "looks like a card number"),
        *((field, "a\0b", "holds a NUL byte") for field in COLUMNS),
        *((field, "a\udcffb", "is not valid UTF-8") for field in COLUMNS),
    ],
)
def test_a_wrong_cell_is_named_with_its_line_and_reason(field: str, cell: str, reason: str) -> None:
    found = row(**{field: cell})
    assert isinstance(found, list)
    (problem,) = found
    assert (problem.line, problem.field) == (7, field)
    assert problem.reason.startswith(reason)


def test_all_problems_of_a_row_are_told() -> None:
    found = row(id="", amount="-1", start_date="tomorrow", time_zone="here")
    assert isinstance(found, list)
    assert {problem.field for problem in found} == {"id", "amount", "start_date", "time_zone"}


@pytest.mark.parametrize("field", COLUMNS)
def test_a_card_number_in_any_column_is_not_repeated(field: str) -> None:
    found = row(**{field: "4111111111111111 "})
    assert isinstance(found, list)
    assert "4111" not in str(found)


def test_a_long_amount_of_digits_is_told_as_too_much() -> None:
    found = row(amount="4111111111111111111")
    assert isinstance(found, list)
    assert found[0].reason == "is more than 92233720368547758.07 USD"


@pytest.mark.parametrize(
    "number", ["4242424242424242", "5555555555554444", "6011111111111117", "4222222222222", "3530111333300000"]
)
def test_card_numbers_are_known_by_their_check_digit(number: str) -> None:
    assert is_card_number(number)
    assert not is_card_number(number[:-1] + str((int(number[-1]) + 1) % 10))


@pytest.mark.parametrize("token", ["pm_4242424242424242", "424242424242", "42424242424242424242", "", "٤٢٤٢٤٢٤٢٤٢٤٢٤٢٤٢"])
def test_tokens_are_no_card_numbers(token: str) -> None:
    assert not is_card_number(token)


@given(st.lists(st.text(max_size=140), min_size=len(COLUMNS), max_size=len(ALL_COLUMNS)))
def test_no_text_whatever_breaks_the_parser(cells: list[str]) -> None:
    found = parse_row(1, cells)
    assert isinstance(found, list)
    assert found


@pytest.mark.parametrize(
    ("cells", "first_period", "anchor_day"),
    [
        ({}, 0, None),
        ({"billed_until": "2024-01-31"}, 0, None),
        ({"billed_until": "2024-02-29"}, 1, None),
        ({"billed_until": "2026-01-31"}, 24, None),
        ({"start_date": "2024-02-29", "anchor_day": "31"}, 0, 31),
        ({"start_date": "2024-02-29", "anchor_day": "29"}, 0, None),  # the start's own
        ({"start_date": "2024-02-29", "anchor_day": "31", "billed_until": "2024-03-31"}, 1, 31),
        ({"start_date": "2024-02-29", "anchor_day": "31", "interval": "1 year", "billed_until": "2025-02-28"}, 1, 31),
    ],
)
def test_what_was_billed_elsewhere_is_not_billed_again(cells: dict[str, str], first_period: int, anchor_day: int | None) -> None:
    found = row(**cells)
    assert isinstance(found, Subscription)
    assert (found.first_period, found.anchor_day) == (first_period, anchor_day)


@pytest.mark.parametrize(
    ("cells", "field", "reason"),
    [
        ({"billed_until": "2024-02-15"}, "billed_until", "is in the middle of a period: the next one begins on 2024-02-29"),
        ({"billed_until": "2023-01-01"}, "billed_until", "is before the first period: the next one begins on 2024-01-31"),
        ({"billed_until": "soon"}, "billed_until", "'soon' is not a date"),
        ({"anchor_day": "32"}, "anchor_day", "'32' is not a day of the month"),
        ({"anchor_day": "0"}, "anchor_day", "'0' is not a day of the month"),
        ({"anchor_day": "30"}, "anchor_day", "no period that begins on day 30 of a month begins with 2024-01-31"),
        (
            {"start_date": "2024-02-29", "anchor_day": "31", "interval": "2 weeks"},
            "anchor_day",
            "no period that begins on day 31 of a month begins with 2024-02-29",
        ),
    ],
)
def test_a_history_that_does_not_fit_is_told(cells: dict[str, str], field: str, reason: str) -> None:
    found = row(**cells)
    assert isinstance(found, list)
    (problem,) = found
    assert problem.field == field
    assert problem.reason.startswith(reason)


def test_optional_columns_may_be_left_out_or_stand_anywhere() -> None:
    assert parse_header(("anchor_day", *COLUMNS)) == (*range(1, len(COLUMNS) + 1), None, 0)
    assert parse_header((*COLUMNS, "billed_until")) == tuple(range(len(COLUMNS) + 1))


def test_columns_come_in_any_order() -> None:
    order = parse_header(list(reversed(COLUMNS)))
    assert order == tuple(range(len(COLUMNS) - 1, -1, -1))


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (COLUMNS[1:], "lacks id"),
        ((*COLUMNS, "note"), "has unknown 'note'"),
        ((*COLUMNS, "id"), "repeats id"),
        ((), "lacks id, customer_id"),
        ((";".join(COLUMNS),), "lacks id, customer_id"),
    ],
)
def test_a_wrong_header_is_refused(names: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_header(names)
    assert refused.value.field == "header"
    assert refused.value.reason.startswith(reason)
