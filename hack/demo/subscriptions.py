"""The customers of the demo: subscriptions by a seed, of which one period each (of a few, two) is due today. Pure.

A period begins at midnight of the subscription's own time zone, up to 14 hours from the day in UTC. Start days are chosen so
that every beginning is at least two days away on either side: wherever and whenever it runs, also over a midnight, the same
number of periods is due.
"""

import csv
import io
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

COLUMNS = (
    "id", "customer_id", "service", "amount", "currency", "interval", "start_date", "time_zone", "payment_method",
)  # fmt: skip

CATCH_UP_SHARE = 0.025
"""Share of subscriptions with two periods due, as after an outage."""

_DECIMALS = {"USD": 2, "EUR": 2, "JPY": 0, "KWD": 3}
_CURRENCIES = {"USD": 40, "EUR": 30, "JPY": 20, "KWD": 10}
_PRICES: Mapping[str, Mapping[str, tuple[int, ...]]] = {  # minor units
    "video": {"USD": (899, 1399, 1999), "EUR": (899, 1299, 1799), "JPY": (990, 1490, 1980), "KWD": (2750, 3995, 5250)},
    "music": {"USD": (499, 1099), "EUR": (499, 1099), "JPY": (480, 980), "KWD": (1495, 3250)},
    "storage": {"USD": (199, 999, 9999), "EUR": (199, 999, 9999), "JPY": (250, 1300, 13000), "KWD": (605, 3005, 29995)},
    "news": {"USD": (150, 1700), "EUR": (199, 1490), "JPY": (300, 4277), "KWD": (455, 4125)},
}
_ZONES = {
    "USD": ("America/New_York", "America/Los_Angeles", "Pacific/Honolulu", "Pacific/Kiritimati"),
    "EUR": ("Europe/Berlin", "Europe/Lisbon", "Europe/Athens"),
    "JPY": ("Asia/Tokyo",),
    "KWD": ("Asia/Kuwait", "UTC"),
}
_BEGUN: Mapping[int, Mapping[str, tuple[int, int]]] = {
    1: {"1 month": (3, 25), "30 days": (3, 27), "2 weeks": (3, 11), "3 months": (3, 85), "1 year": (3, 360)},
    2: {"1 week": (9, 12), "1 month": (33, 56), "10 days": (12, 17)},
}
"""Periods that are due -> interval -> how many days ago it may have begun, both included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One row of the file. `amount` is in minor units; `periods_due` is what the scheduler must find."""

    id: str
    customer: str
    service: str
    amount: int
    currency: str
    interval: str
    start: date
    time_zone: str
    payment_method: str
    periods_due: int

    def cells(self) -> tuple[str, ...]:
        """In the order of `COLUMNS`."""
        amount = major_units(self.amount, self.currency)
        terms = (self.service, amount, self.currency, self.interval, self.start.isoformat(), self.time_zone)
        return (self.id, self.customer, *terms, self.payment_method)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must be found once all is invoiced, by currency; amounts in minor units."""

    subscriptions: Mapping[str, int]
    invoices: Mapping[str, int]
    amounts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Invoices in all currencies."""
        return sum(self.invoices.values())


def major_units(amount: int, currency: str) -> str:
    """1999 USD is 19.99, 1999 JPY is 1999, 1999 KWD is 1.999."""
    decimals = _DECIMALS[currency]
    whole, fraction = divmod(amount, 10**decimals)
    return f"{whole}.{fraction:0{decimals}}" if decimals else str(whole)


def generate(count: int, *, seed: int, today: date) -> Iterator[Subscription]:
    """The same subscriptions for the same seed, their start days counted back from today."""
    draw = random.Random(seed)
    for number in range(1, count + 1):
        currency = draw.choices(list(_CURRENCIES), list(_CURRENCIES.values()))[0]
        service = draw.choice(list(_PRICES))
        periods = 2 if draw.random() < CATCH_UP_SHARE else 1
        interval, (nearest, farthest) = draw.choice(list(_BEGUN[periods].items()))
        yield Subscription(
            id=f"sub-{number:06}",
            customer=f"cus-{draw.randrange(1, count + 1):06}",
            service=service,
            amount=draw.choice(_PRICES[service][currency]),
            currency=currency,
            interval=interval,
            start=today - timedelta(days=draw.randint(nearest, farthest)),
            time_zone=draw.choice(_ZONES[currency]),
            payment_method=f"pm_card_{draw.getrandbits(48):012x}",
            periods_due=periods,
        )


def as_csv(subscriptions: Iterable[Subscription]) -> str:
    """The file that `billing-shards import` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(subscription.cells() for subscription in subscriptions)
    return text.getvalue()


def expected(subscriptions: Iterable[Subscription]) -> Expected:
    """Count what must be found."""
    counts: Counter[str] = Counter()
    invoices: Counter[str] = Counter()
    amounts: Counter[str] = Counter()
    for one in subscriptions:
        counts[one.currency] += 1
        invoices[one.currency] += one.periods_due
        amounts[one.currency] += one.periods_due * one.amount
    return Expected(subscriptions=counts, invoices=invoices, amounts=amounts)
