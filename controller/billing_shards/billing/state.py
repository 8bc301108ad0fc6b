"""A subscription's whole row as one value, and the changes to it that dunning and a person's word make. Pure.

Each change returns the row as it shall be, or raises what keeps it from being made; nothing else is touched by it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime

from billing_shards.billing.dunning import Standing, Unpaid
from billing_shards.billing.model import Status, Subscription
from billing_shards.billing.terms import Change, Span, changed, first_period_after, first_period_from, skipped
from billing_shards.errors import InvalidInput, NotPossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`subscription`, but for when it was written."""

    terms: Subscription
    status: Status
    next_period: int
    next_invoice_at: datetime | None
    catch_up_until: int | None
    held_since: datetime | None
    cancel_at: date | None
    past_due_since: datetime | None
    suspended_since: datetime | None
    notices: int
    write_off: bool
    next_dunning_at: datetime | None

    @property
    def span(self) -> Span:
        """The terms in force, and how far they are invoiced."""
        return Span(terms=self.terms, next_period=self.next_period)

    @property
    def is_invoiced(self) -> bool:
        """Whether its periods are invoiced as they begin."""
        return self.status in {Status.ACTIVE, Status.PAST_DUE} and self.held_since is None

    def standing(self, unpaid: tuple[Unpaid, ...]) -> Standing:
        """What dunning looks at."""
        return Standing(
            status=self.status,
            past_due_since=self.past_due_since,
            suspended_since=self.suspended_since,
            notices=self.notices,
            write_off=self.write_off,
            unpaid=unpaid,
        )


def closed(before: Row, after: Row) -> Span | None:
    """The span that a change ends, where it is to be kept: None where it goes on, or has no invoice."""
    same = replace(after.terms, payment_method=before.terms.payment_method) == before.terms
    return None if same or before.span.is_empty else before.span


def _with_span(row: Row, span: Span) -> Row:
    after = replace(row, terms=span.terms, next_period=span.next_period)
    if span != row.span:
        after = replace(after, catch_up_until=None)  # a number of the span before
    return _scheduled(after)


def _scheduled(row: Row) -> Row:
    return replace(row, next_invoice_at=row.span.next_begins_at if row.is_invoiced else None)


def followed(row: Row, after: Standing, look_again_at: datetime | None, now: datetime) -> Row:
    """The row after a course of dunning.

    Of a suspension no period is invoiced, not even the one that runs when it is lifted: invoicing goes on with the next one that
    begins. One that is held stays held.
    """
    lifted = row.status is Status.SUSPENDED and after.status is Status.ACTIVE
    changed_row = replace(
        row,
        status=after.status,
        past_due_since=after.past_due_since,
        suspended_since=after.suspended_since,
        notices=after.notices,
        write_off=after.write_off,
        next_dunning_at=look_again_at,
    )
    if lifted and row.held_since is None:
        return _with_span(changed_row, skipped(row.span, first_period_after(row.span, now)))
    return _scheduled(changed_row) if after.status is not row.status else changed_row


def updated(row: Row, change: Change, now: datetime) -> Row:
    """New terms from the next period on. Raises `NotPossible`, `InvalidInput`."""
    if row.status is Status.CANCELED:
        raise NotPossible("the subscription is canceled")
    if row.held_since is not None:
        raise NotPossible("the subscription is held: say first what becomes of the periods it missed (catch-up)")
    if change.currency not in {None, row.terms.currency} and change.amount is None:
        raise InvalidInput("amount", f"is needed in the new currency {change.currency}")
    span = row.span
    if row.status is Status.SUSPENDED:
        span = skipped(span, first_period_after(span, now))
    elif span.next_begins_at <= now:
        raise NotPossible(f"the period of {span.next_day} has begun, and has no invoice yet: try again when it has")
    after = changed(span, change)
    if replace(after.terms, first_period=row.terms.first_period) == row.terms:
        raise InvalidInput("update", "changes nothing")
    return _with_span(row, after)


def canceled(row: Row, now: datetime, *, at_period_end: bool, write_off: bool) -> Row:
    """The end, now or when the period that runs now is over. Raises `NotPossible`, `InvalidInput`."""
    if row.status is Status.CANCELED:
        raise NotPossible("the subscription is canceled already")
    if not at_period_end:
        return replace(
            row,
            status=Status.CANCELED,
            next_invoice_at=None,
            held_since=None,
            write_off=write_off,
            next_dunning_at=now if write_off else None,
        )
    if write_off:
        raise InvalidInput("write-off", "goes with a cancellation that takes place now")
    if not row.is_invoiced:
        raise NotPossible("no period is running (the subscription is suspended or held): cancel it now")
    return replace(row, cancel_at=row.terms.first_day(first_period_after(row.span, now)))


def with_method(row: Row, method: str, now: datetime) -> Row:
    """Another payment method. Dunning looks at once: it brings the method to jobs that could not be reached now."""
    if row.status is Status.CANCELED and row.write_off:
        raise NotPossible("the subscription is canceled, and its debt written off")
    if row.terms.payment_method == method:
        raise InvalidInput("payment method", "is the one that it has already")
    return replace(row, terms=replace(row.terms, payment_method=method), next_dunning_at=now)


def caught_up(row: Row, now: datetime, *, periods: int | None = None, skip_to: date | None = None) -> Row:
    """The word for one that is held: invoice so many missed periods, or leave out those before a day. Raises as above."""
    if row.held_since is None:
        raise NotPossible("the subscription is not held")
    free = replace(row, held_since=None)
    if periods is not None:
        return _scheduled(replace(free, catch_up_until=row.next_period + periods))
    if skip_to is None:
        raise InvalidInput("catch-up", "say how many periods to invoice, or to which day to skip")
    period = first_period_from(row.terms, skip_to, earliest=row.next_period)
    if period > first_period_after(row.span, now):
        raise InvalidInput("skip-to", "would leave out periods that have not begun yet")
    return _with_span(free, skipped(row.span, period))
