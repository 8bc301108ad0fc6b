"""`subscription`: look at one, and act upon it by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from billing_shards.accounts.money import format_amount, parse_amount
from billing_shards.billing import rows, subscriptions
from billing_shards.billing.model import describe
from billing_shards.billing.rowstore import Owed
from billing_shards.billing.state import Row
from billing_shards.billing.subscriptions import By, Subject, View
from billing_shards.billing.terms import Change, Span
from billing_shards.cli import acting, output
from billing_shards.cli.codes import ExitCode
from billing_shards.cli.source import Source
from billing_shards.errors import InvalidInput
from billing_shards.shards.transactions import ShardRouter

_Act = Callable[[ShardRouter, Subject, By], Row]


def show(source: Source, subscription: str, *, as_json: bool) -> int:
    """All about it. Raises `NotFound`."""
    with source.router() as router:
        view = subscriptions.show(router, _subject(source, subscription))
    if as_json:
        output.print_json(document(view))
    else:
        _print(view)
    return ExitCode.OK


def update(
    source: Source, subscription: str, changes: Mapping[str, str | None], *, actor: str | None, reason: str, as_json: bool
) -> int:
    """New terms. Raises `InvalidInput` that names the option."""
    given = {name: text for name, text in changes.items() if text is not None}
    if not given:
        raise InvalidInput("update", "needs one of --amount, --currency, --service, --interval")

    def act(router: ShardRouter, subject: Subject, by: By) -> Row:
        currency = given.get("currency")
        if "amount" in given and currency is None:
            currency = subscriptions.show(router, subject).row.terms.currency
        return subscriptions.update(router, subject, _change(given, currency), by=by)

    return _act(source, subscription, act, actor=actor, reason=reason, as_json=as_json)


def _change(given: Mapping[str, str], currency: str | None) -> Change:
    """`currency` is the one that an amount is read in; it is always named along with an amount, which is nothing without it."""
    if currency is not None:
        rows.parse_cell("currency", currency)
    return Change(
        amount=parse_amount(given["amount"], currency) if "amount" in given and currency is not None else None,
        currency=currency,
        service=rows.parse_cell("service", given["service"]) if "service" in given else None,
        interval=rows.parse_cell("interval", given["interval"]) if "interval" in given else None,
    )


def cancel(
    source: Source, subscription: str, *, at_period_end: bool, write_off: bool, actor: str | None, reason: str, as_json: bool
) -> int:
    """End it."""

    def act(router: ShardRouter, subject: Subject, by: By) -> Row:
        return subscriptions.cancel(router, subject, at_period_end=at_period_end, write_off=write_off, by=by)

    return _act(source, subscription, act, actor=actor, reason=reason, as_json=as_json)


def payment_method(source: Source, subscription: str, method: str, *, actor: str | None, reason: str, as_json: bool) -> int:
    """Another payment method."""
    token: str = rows.parse_cell("payment_method", method)
    grace_seconds = source.spec.retry.grace_seconds

    def act(router: ShardRouter, subject: Subject, by: By) -> Row:
        return subscriptions.change_payment_method(router, subject, token, grace_seconds=grace_seconds, by=by)

    return _act(source, subscription, act, actor=actor, reason=reason, as_json=as_json)


def catch_up(
    source: Source,
    subscription: str,
    *,
    periods: int | None,
    skip_to: str | None,
    actor: str | None,
    reason: str,
    as_json: bool,
) -> int:
    """The word for one that is held."""
    if (periods is None) == (skip_to is None):
        raise InvalidInput("catch-up", "needs one of --periods and --skip-to")
    day = None if skip_to is None else rows.parse_cell("skip-to", skip_to, like="start_date")

    def act(router: ShardRouter, subject: Subject, by: By) -> Row:
        return subscriptions.catch_up(router, subject, periods=periods, skip_to=day, by=by)

    return _act(source, subscription, act, actor=actor, reason=reason, as_json=as_json)


def _act(source: Source, subscription: str, act: _Act, *, actor: str | None, reason: str, as_json: bool) -> int:
    by = By(actor=acting.actor(actor), reason=reason)
    with source.router() as router:
        row = act(router, _subject(source, subscription), by)
    if as_json:
        output.print_json(_row(row))
    else:
        output.print_line(f"subscription {output.visible(row.terms.id)}: {_line(row)}")
    return ExitCode.OK


def _subject(source: Source, subscription: str) -> Subject:
    return Subject(id=subscription, shard_count=source.spec.shard_count)


def _status(row: Row) -> str:
    held = ", held" if row.held_since is not None else ""
    ends = f", ends on {row.cancel_at}" if row.cancel_at is not None and row.is_invoiced else ""
    return row.status.name.lower().replace("_", " ") + held + ends


def _price(terms_of: Span) -> str:
    terms = terms_of.terms
    return f"{format_amount(terms.amount, terms.currency)} every {terms.interval} for {output.visible(terms.service)}"


def _line(row: Row) -> str:
    when = "no next invoice" if row.next_invoice_at is None else f"next invoice {output.moment(row.next_invoice_at)}"
    return f"{_status(row)}; {_price(row.span)}; {when}"


def _row(row: Row) -> dict[str, Any]:
    return {
        "subscription": row.terms.id,
        "status": row.status.name.lower(),
        **describe(row.terms),
        "next_period_start": row.span.next_day,
        "next_invoice_at": row.next_invoice_at,
        "held_since": row.held_since,
        "catch_up_until": row.catch_up_until,
        "cancel_at": row.cancel_at,
        "past_due_since": row.past_due_since,
        "suspended_since": row.suspended_since,
        "notices": row.notices,
        "write_off": row.write_off,
        "next_dunning_at": row.next_dunning_at,
    }


def _owed(one: Owed) -> dict[str, Any]:
    return {
        "invoice": one.unpaid.invoice,
        "period_start": one.period_start,
        "amount": one.unpaid.amount,
        "currency": one.unpaid.currency,
        "late": one.unpaid.late,
        "given_up": one.unpaid.given_up,
        "attempt_open": one.unpaid.attempt_open,
        "job": one.job,
        "job_status": None if one.job_status is None else one.job_status.name.lower(),
        "due_at": one.due_at,
    }


def document(view: View) -> dict[str, Any]:
    """All about it as JSON."""
    return {
        "shard_id": view.shard,
        **_row(view.row),
        "now": view.now,
        "unpaid": [_owed(one) for one in view.owed],
        "terms_before": [{**describe(span.terms), "until": span.next_day} for span in view.spans],
        "acts": [dict(act) for act in view.acts],
    }


def _print(view: View) -> None:
    row = view.row
    terms = row.terms
    output.print_line(f"subscription {output.visible(terms.id)} on shard {view.shard}: {_status(row)}", "bold")
    output.print_line(f"customer {output.visible(terms.customer_id)}; {_price(row.span)}")
    output.print_line(f"periods count from {terms.start_date}, {output.visible(terms.time_zone)}; next one {row.span.next_day}")
    moments = {
        "next invoice": row.next_invoice_at,
        "held since": row.held_since,
        "past due since": row.past_due_since,
        "suspended since": row.suspended_since,
        "next look of dunning": row.next_dunning_at,
    }
    for name, moment in moments.items():
        if moment is not None:
            output.print_line(f"{name} {output.moment(moment)}")
    for span in view.spans:
        until = span.next_day
        output.print_line(f"before: from {span.terms.first_day(span.terms.first_period)} until {until}: {_price(span)}")
    columns = ("invoice", "period", "owed", "state", "job", "due")
    if view.owed:
        output.print_table(columns, [_cells(one) for one in view.owed], right=("invoice", "owed"))
    for act in view.acts:
        by = f"{output.moment(act['created_at'])} {output.visible(act['act'])} by {output.visible(act['actor'])}"
        output.print_line(f"{by}: {output.visible(act['reason'])}")


def _cells(one: Owed) -> tuple[object, ...]:
    state = "given up" if one.unpaid.given_up else "late" if one.unpaid.late else "open"
    job = "deleted" if one.job_status is None else one.job_status.name.lower().replace("_", " ")
    owed = format_amount(one.unpaid.amount, one.unpaid.currency)
    return one.unpaid.invoice, one.period_start, owed, state, job, one.due_at
