"""Which invoices are to be written for a subscription now. Pure: the time is passed in."""

from __future__ import annotations

from datetime import datetime, timedelta

from billing_shards.billing.model import RECURRING, Due, Invoice, Plan, Stop, Subscription
from billing_shards.billing.smoothing import offset_seconds
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Lane, job_key


def plan(due: Due, now: datetime, *, lanes: Lanes, grace_seconds: int, catch_up_max: int, missed_max: int) -> Plan:
    """One invoice for each period that has begun, `catch_up_max` at most: the rest is for the next run.

    After an outage no period is left out, since the count goes on from the last period that was invoiced. But where more than
    `missed_max` wait, none of them is invoiced without a person's word (`due.catch_up_until`).
    """
    subscription, period = due.subscription, due.next_period
    missed = _begun(due, now, most=max(catch_up_max, missed_max) + 1)
    allowed = missed if missed <= missed_max else max(0, (due.catch_up_until or 0) - period)
    count = min(missed, allowed, catch_up_max)
    lane, window_seconds = lanes.of_service(subscription.service), lanes.window_seconds(subscription.service)
    offset = timedelta(seconds=offset_seconds(subscription.id, window_seconds))
    invoices = tuple(
        _invoice(subscription, number, now, offset=offset, grace_seconds=grace_seconds, lane=lane)
        for number in range(period, period + count)
    )
    stop = Stop.HELD if missed and not count else None
    begin = subscription.begins_at(period + count)
    if stop is None and begin <= now and _ends(due, period + count):
        stop = Stop.CANCELED
    return Plan(
        subscription=subscription.id,
        invoices=invoices,
        next_period=period + count,
        next_day=subscription.first_day(period + count),
        next_invoice_at=begin if stop is None else None,
        stop=stop,
    )


def _begun(due: Due, now: datetime, *, most: int) -> int:
    """How many periods have begun that are to be invoiced, counted up to `most`."""
    count = 0
    while count < most and not _ends(due, due.next_period + count) and due.subscription.begins_at(due.next_period + count) <= now:
        count += 1
    return count


def _ends(due: Due, period: int) -> bool:
    return due.cancel_at is not None and due.subscription.first_day(period) >= due.cancel_at


def _invoice(
    subscription: Subscription, period: int, now: datetime, *, offset: timedelta, grace_seconds: int, lane: Lane
) -> Invoice:
    period_start, begin = subscription.first_day(period), subscription.begins_at(period)
    charge_at = begin + offset
    return Invoice(
        subscription=subscription,
        period_start=period_start,
        period_end=subscription.first_day(period + 1),
        due_at=begin,
        charge_at=charge_at,
        # Counted from now where the invoice is late: the customer must not lose the grace that we took to write it.
        grace_until=max(charge_at, now) + timedelta(seconds=grace_seconds),
        key=job_key(subscription.id, period_start, RECURRING),
        lane=lane,
    )
