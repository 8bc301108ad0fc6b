"""Values of billing: what a customer agreed to, and what is owed for a period. Instants are UTC and naive, as in the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum, IntEnum
from typing import Any

from billing_shards.billing.periods import Interval, begins_at, first_day
from billing_shards.jobs.model import Lane

RECURRING = 1
"""The charge type of a subscription's periods."""


class Status(IntEnum):
    """`subscription.status`. A subscription that is suspended or canceled is not invoiced."""

    ACTIVE = 1
    PAST_DUE = 2
    SUSPENDED = 3
    CANCELED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a customer agreed to."""

    id: str
    customer_id: str
    service: str
    amount: int
    """Minor units of `currency`, for one period."""
    currency: str
    interval: Interval
    start_date: date
    """The first day of period 0 in `time_zone`; its day of the month is the anchor of all later periods."""
    time_zone: str
    payment_method: str
    """The provider's token."""
    anchor_day: int | None = None
    """The day of the month that periods begin on, where the month of `start_date` is too short for it."""
    first_period: int = 0
    """The first period that is invoiced; those before were billed elsewhere, or are not billed at all."""

    def first_day(self, period: int) -> date:
        """The first day of a period, in the subscription's time zone."""
        return first_day(self.start_date, self.interval, period, self.anchor_day)

    def begins_at(self, period: int) -> datetime:
        """The instant at which a period begins."""
        return begins_at(self.first_day(period), self.time_zone)


def describe(subscription: Subscription) -> dict[str, Any]:
    """The terms as JSON's values, for events and manual acts. Not the payment method."""
    return {
        "customer": subscription.customer_id,
        "service": subscription.service,
        "amount": subscription.amount,
        "currency": subscription.currency,
        "interval": str(subscription.interval),
        "start_date": subscription.start_date.isoformat(),
        "anchor_day": subscription.anchor_day,
        "time_zone": subscription.time_zone,
        "first_period_start": subscription.first_day(subscription.first_period).isoformat(),
    }


def ended(reason: str, *, write_off: bool = False) -> dict[str, Any]:
    """What `subscription.canceled` tells."""
    return {"reason": reason, "write_off": write_off}


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A subscription of which at least period number `next_period` has begun and is not invoiced yet."""

    subscription: Subscription
    next_period: int
    catch_up_until: int | None = None
    """Missed periods before this one may be invoiced, however many they are: a person said so."""
    cancel_at: date | None = None
    """A period that begins on this day or later is not invoiced: the subscription ends instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """What will be owed for one period, and when it is charged."""

    subscription: Subscription
    period_start: date
    period_end: date
    """The first day after the period."""
    due_at: datetime
    """When the period begins."""
    charge_at: datetime
    """`due_at` and the subscription's place in the billing window."""
    grace_until: datetime
    key: bytes
    """The job's idempotency key: 32 bytes."""
    lane: Lane


class Stop(Enum):
    """Why the scheduler invoices no more of a subscription."""

    HELD = "held"
    """More periods were missed than are invoiced without a person's word."""
    CANCELED = "canceled"
    """Its last period is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the scheduler shall do about one subscription."""

    subscription: str
    invoices: tuple[Invoice, ...]
    next_period: int
    next_day: date
    """The first day of the next period."""
    next_invoice_at: datetime | None
    """None where there is nothing more to invoice, for the reason in `stop`."""
    stop: Stop | None = None
