"""Values of billing: what a customer agreed to, and what is owed for a period. Instants are UTC and naive, as in the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from billing_shards.billing.periods import Interval
from billing_shards.jobs.model import Lane

RECURRING = 1
"""The charge type of a subscription's periods."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A subscription of which at least period number `next_period` has begun and is not invoiced yet."""

    subscription: Subscription
    next_period: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the scheduler shall do about one subscription."""

    subscription: str
    invoices: tuple[Invoice, ...]
    next_period: int
    next_invoice_at: datetime
