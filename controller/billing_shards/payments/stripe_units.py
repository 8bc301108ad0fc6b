"""Stripe's minor units, where they are not the standard's. Pure.

Ours are ISO 4217's. Stripe counts some currencies otherwise (docs.stripe.com/currencies): ISK and UGX have no decimals but are
given with two, MGA is divided by five and given with none, and amounts with three decimals must end in 0.
"""

from __future__ import annotations

from billing_shards.accounts.money import exponent
from billing_shards.errors import InvalidInput

_NO_DECIMALS = frozenset(
    ("BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF")
)
_THREE_DECIMALS = frozenset(("BHD", "JOD", "KWD", "OMR", "TND"))


def to_stripes(amount: int, currency: str) -> int:
    """Stripe's amount for ours. Raises `InvalidInput` where Stripe cannot be given it exactly, or nobody pays in the currency."""
    apart = _decimals_apart(currency)
    theirs, rest = _scaled(amount, apart)
    if rest:
        raise InvalidInput("amount", f"Stripe takes {currency} in whole units only")
    if currency in _THREE_DECIMALS and theirs % 10:
        raise InvalidInput("amount", f"Stripe takes {currency} to the hundredth only: its last digit must be 0")
    return theirs


def from_stripes(amount: int, currency: str) -> int | None:
    """Our amount for Stripe's; None where it is none of ours."""
    try:
        apart = _decimals_apart(currency)
    except InvalidInput:
        return None
    ours, rest = _scaled(amount, -apart)
    return None if rest else ours


def _scaled(amount: int, decimals: int) -> tuple[int, int]:
    """The amount with so many decimals more (or less), and what is left over."""
    factor = int(10 ** abs(decimals))
    return (amount * factor, 0) if decimals >= 0 else divmod(amount, factor)


def _decimals_apart(currency: str) -> int:
    """Stripe's decimals less the standard's."""
    theirs = 0 if currency in _NO_DECIMALS else 3 if currency in _THREE_DECIMALS else 2
    return theirs - exponent(currency)
