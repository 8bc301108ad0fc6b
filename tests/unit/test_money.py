"""Amounts are exact, and what is no amount is refused with its field and a reason."""

from decimal import Decimal

import iso4217
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.accounts.money import AMOUNT_MAX, exponent, exponents, format_amount, parse_amount
from billing_shards.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "currency", "minor"),
    [
        ("9.90", "USD", 990),
        ("9.9", "USD", 990),
        ("9", "USD", 900),
        ("0.01", "USD", 1),
        ("007.10", "EUR", 710),
        ("80", "JPY", 80),  # not 8000: Paymenter#1258
        ("35.2", "BHD", 35_200),  # not 3520: woocommerce#2720
        ("2000", "ISK", 2000),  # the standard's exponent is 0, whatever a provider wants: stripe-ios#3986
        ("1.234", "KWD", 1234),
        ("92233720368547758.07", "USD", AMOUNT_MAX),
        ("9223372036854775807", "JPY", AMOUNT_MAX),
    ],
)
def test_an_amount_is_read_exactly(text: str, currency: str, minor: int) -> None:
    assert parse_amount(text, currency) == minor


@pytest.mark.parametrize(
    ("text", "currency", "reason"),
    [
        ("-1", "USD", "must not be negative"),
        ("0", "USD", "must be more than zero"),
        ("0.00", "USD", "must be more than zero"),
        ("-0.00", "USD", "must not be negative zero"),
        ("9.999", "USD", "has 3 decimals, USD has 2"),
        ("80.00", "JPY", "has 2 decimals, JPY has none"),
        ("92233720368547758.08", "USD", "is more than 92233720368547758.07 USD"),
        ("9223372036854775808", "JPY", "is more than 9223372036854775807 JPY"),
        ("9" * 10_000, "USD", "is more than 92233720368547758.07 USD"),
        *((text, "USD", "must be digits") for text in ("", " ", "1e3", "9,90", "1 000", ".5", "5.", "+5", "0x10", "NaN", "inf")),
        *((text, "USD", "must be digits") for text in ("٣", "²", "--1", "1.2.3", "9.90\n", "1_000", "$5")),
    ],
)
def test_what_is_no_amount_is_refused(text: str, currency: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_amount(text, currency, field="price")
    assert refused.value.field == "price"
    assert refused.value.reason.startswith(reason)


@pytest.mark.parametrize("currency", ["XXX", "XAU", "XTS", "XDR", "CHE", "CLF", "USN", "UYW", "XAD", "usd", "US", "", "DEM"])
def test_only_money_in_circulation_is_a_currency(currency: str) -> None:
    with pytest.raises(InvalidInput, match="currency: is not the ISO 4217 code"):
        exponent(currency)


def test_exponents_are_the_standards() -> None:
    assert {"USD": 2, "EUR": 2, "JPY": 0, "KWD": 3, "XOF": 0, "XCD": 2}.items() <= exponents().items()
    assert set(exponents().values()) == {0, 2, 3}
    assert all(iso4217.Currency(code).exponent == decimals for code, decimals in exponents().items())


@given(st.integers(1, AMOUNT_MAX), st.sampled_from(sorted(exponents())))
def test_reading_what_was_written_gives_the_same_amount(minor: int, currency: str) -> None:
    text, code = format_amount(minor, currency).split(" ")
    assert code == currency
    assert Decimal(text) == Decimal(minor).scaleb(-exponent(currency))
    assert parse_amount(text, currency) == minor


@pytest.mark.parametrize(
    ("minor", "currency", "text"),
    [(990, "USD", "9.90 USD"), (5, "USD", "0.05 USD"), (-5, "KWD", "-0.005 KWD"), (0, "JPY", "0 JPY"), (80, "JPY", "80 JPY")],
)
def test_an_amount_is_written_with_all_its_decimals(minor: int, currency: str, text: str) -> None:
    assert format_amount(minor, currency) == text
