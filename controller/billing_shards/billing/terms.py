"""What changes of a subscription do to its periods. Pure.

A span is a run of periods under the same terms. A change of terms closes the span that is in force before its next period, and
opens another with that period; periods that are left out (a suspension's, or missed ones that a person forgave) also end a span.
So spans never overlap, and within one there is no gap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from itertools import count

from billing_shards.billing.model import Subscription
from billing_shards.billing.periods import Interval, Unit

_CALENDAR = (Unit.MONTH, Unit.YEAR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """New terms; what is None stays as it is."""

    amount: int | None = None
    """Minor units of the new currency, where there is one."""
    currency: str | None = None
    service: str | None = None
    interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The terms in force, and the first of their periods that is not invoiced yet."""

    terms: Subscription
    next_period: int

    @property
    def is_empty(self) -> bool:
        """Whether none of its periods was invoiced: then nothing needs to be kept of it."""
        return self.next_period == self.terms.first_period

    @property
    def next_day(self) -> date:
        """The first day of the next period."""
        return self.terms.first_day(self.next_period)

    @property
    def next_begins_at(self) -> datetime:
        """When the next period begins."""
        return self.terms.begins_at(self.next_period)


def changed(span: Span, change: Change) -> Span:
    """The span that begins with `span`'s next period, under new terms.

    Another interval counts from that period's first day on; months and years keep the day of the month they had.
    """
    old = span.terms
    terms = replace(
        old,
        amount=old.amount if change.amount is None else change.amount,
        currency=change.currency or old.currency,
        service=change.service or old.service,
        first_period=span.next_period,
    )
    interval = change.interval
    if interval is None or interval == old.interval:
        return Span(terms=terms, next_period=span.next_period)
    start = span.next_day
    keeps_day = old.interval.unit in _CALENDAR and interval.unit in _CALENDAR
    anchor = (old.anchor_day or old.start_date.day) if keeps_day else start.day
    anchor_day = None if anchor == start.day else anchor
    terms = replace(terms, interval=interval, start_date=start, anchor_day=anchor_day, first_period=0)
    return Span(terms=terms, next_period=0)


def skipped(span: Span, to_period: int) -> Span:
    """The same terms from a later period on; `span` itself where nothing is left out."""
    if to_period <= span.next_period:
        return span
    return Span(terms=replace(span.terms, first_period=to_period), next_period=to_period)


def first_period_after(span: Span, now: datetime) -> int:
    """The first period, not invoiced yet, that begins later than `now`."""
    return next(period for period in count(span.next_period) if span.terms.begins_at(period) > now)


def first_period_from(terms: Subscription, day: date, *, earliest: int = 0) -> int:
    """The first period, from number `earliest` on, that begins on `day` or later."""
    return next(period for period in count(earliest) if terms.first_day(period) >= day)
