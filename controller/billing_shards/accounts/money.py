"""Money: a whole number of minor units and an ISO 4217 currency.

The exponent of a currency (USD 2, JPY 0, KWD 3) is the standard's own, from the table of the `iso4217` package. Amounts are
never floats, never negative zero, and always fit a BIGINT.
"""

from __future__ import annotations

import re
from functools import cache

import iso4217

from billing_shards.errors import InvalidInput

AMOUNT_MAX = 2**63 - 1

_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?")
_DIGITS_MAX = len(str(AMOUNT_MAX))
# Units of account that the standard's table neither marks as funds nor leaves without an exponent.
_UNITS_OF_ACCOUNT = frozenset({"XAD", "UYW"})


@cache
def exponents() -> dict[str, int]:
    """Decimals of every currency that people pay with: no funds, metals, test codes or units of account."""
    found = {}
    for entry in iso4217.raw_xml.iterfind("CcyTbl/CcyNtry"):
        code, decimals = entry.findtext("Ccy"), entry.findtext("CcyMnrUnts", "")
        fund = entry.find("CcyNm[@IsFund='true']") is not None
        if code and decimals.isdigit() and not fund and code not in _UNITS_OF_ACCOUNT:
            found[code] = int(decimals)
    return found


def exponent(currency: str, *, field: str = "currency") -> int:
    """Decimals of a currency. Raises `InvalidInput` where nobody pays with it; codes are upper case."""
    try:
        return exponents()[currency]
    except KeyError:
        raise InvalidInput(field, "is not the ISO 4217 code of a currency in circulation") from None


def parse_amount(text: str, currency: str, *, field: str = "amount") -> int:
    """Minor units of a decimal number of major units: `parse_amount("9.90", "USD")` is 990.

    Raises `InvalidInput` for anything but plain digits with at most one point, for zero, less than zero, more decimals than
    the currency has, and more than a BIGINT holds.
    """
    decimals = exponent(currency)
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise InvalidInput(field, "must be digits, with a point before the decimals if there are any")
    sign, whole, fraction = found[1], found[2].lstrip("0"), found[3] or ""
    if len(fraction) > decimals:
        raise InvalidInput(field, f"has {len(fraction)} decimals, {currency} has {decimals or 'none'}")
    if len(whole) > _DIGITS_MAX:
        raise InvalidInput(field, f"is more than {format_amount(AMOUNT_MAX, currency)}")
    return _checked(int(whole + fraction.ljust(decimals, "0") or "0"), currency, negative=bool(sign), field=field)


def _checked(amount: int, currency: str, *, negative: bool, field: str) -> int:
    if amount == 0:
        raise InvalidInput(field, "must not be negative zero" if negative else "must be more than zero")
    if negative:
        raise InvalidInput(field, "must not be negative")
    if amount > AMOUNT_MAX:
        raise InvalidInput(field, f"is more than {format_amount(AMOUNT_MAX, currency)}")
    return amount


def format_amount(amount: int, currency: str) -> str:
    """What a person reads: `format_amount(990, "USD")` is "9.90 USD". Raises `InvalidInput` for an unknown currency."""
    decimals = exponent(currency)
    sign, digits = "-" if amount < 0 else "", str(abs(amount)).rjust(decimals + 1, "0")
    whole, fraction = digits[: len(digits) - decimals], digits[len(digits) - decimals :]
    return f"{sign}{whole}{'.' + fraction if fraction else ''} {currency}"
