"""Which invoices are to be written for a subscription now. Pure: the time is passed in."""

from __future__ import annotations

from datetime import datetime, timedelta

from billing_shards.billing.model import RECURRING, Due, Invoice, Plan, Subscription
from billing_shards.billing.periods import begins_at, first_day
from billing_shards.billing.smoothing import offset_seconds
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Lane, job_key


def plan(due: Due, now: datetime, *, lanes: Lanes, grace_seconds: int, catch_up_max: int) -> Plan:
    """One invoice for each period that has begun, `catch_up_max` at most: the rest is for the next run.

    After an outage no period is left out, since the count goes on from the last period that was invoiced.
    """
    subscription, period = due.subscription, due.next_period
    lane, window_seconds = lanes.of_service(subscription.service), lanes.window_seconds(subscription.service)
    invoices: list[Invoice] = []
    begin = begins_at(first_day(subscription.start_date, subscription.interval, period), subscription.time_zone)
    while begin <= now and len(invoices) < catch_up_max:
        charge_at = begin + timedelta(seconds=offset_seconds(subscription.id, window_seconds))
        # Counted from now where the invoice is late: the customer must not lose the grace that we took to write it.
        grace_until = max(charge_at, now) + timedelta(seconds=grace_seconds)
        invoices.append(_invoice(subscription, period, begin, charge_at, grace_until, lane))
        period += 1
        begin = begins_at(invoices[-1].period_end, subscription.time_zone)
    return Plan(subscription=subscription.id, invoices=tuple(invoices), next_period=period, next_invoice_at=begin)


def _invoice(
    subscription: Subscription, period: int, begin: datetime, charge_at: datetime, grace_until: datetime, lane: Lane
) -> Invoice:
    period_start, period_end = (
        first_day(subscription.start_date, subscription.interval, number) for number in (period, period + 1)
    )
    return Invoice(
        subscription=subscription,
        period_start=period_start,
        period_end=period_end,
        due_at=begin,
        charge_at=charge_at,
        grace_until=grace_until,
        key=job_key(subscription.id, period_start, RECURRING),
        lane=lane,
    )
