"""`invoice show`: the whole story of one invoice, in one order of time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import IntEnum
from typing import Any

from sqlalchemy import Connection

from billing_shards import acts
from billing_shards.accounts import ledger
from billing_shards.accounts.money import format_amount
from billing_shards.cli import output
from billing_shards.cli.codes import ExitCode
from billing_shards.cli.source import Source
from billing_shards.db import queries
from billing_shards.errors import InvalidInput, NotFound
from billing_shards.jobs.model import Status, attempt_key, job_key, known_due
from billing_shards.payments.model import AttemptOutcome
from billing_shards.payments.refunds.model import RefundStatus
from billing_shards.payments.refunds.model import Source as RefundSource
from billing_shards.shards.model import shard_of
from billing_shards.shards.transactions import ShardRouter

_q = queries("inspect")

_BY_ID = re.compile(r"([0-9]{1,5})/([0-9]{1,18})")
_BY_DAY = re.compile(r"(.+)@([0-9]{4}-[0-9]{2}-[0-9]{2})")  # an id may hold an @ of its own
Row = Mapping[str, Any]


class InvoiceStatus(IntEnum):
    """`invoice.status`."""

    OPEN = 1
    PAID = 2
    UNCOLLECTIBLE = 3
    VOID = 4


class SubscriptionStatus(IntEnum):
    """`subscription.status`."""

    ACTIVE = 1
    PAST_DUE = 2
    SUSPENDED = 3
    CANCELED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """How an invoice is asked for: by number, or as a subscription's latest one or the one of a day."""

    shard: int
    id: int | None = None
    subscription: str | None = None
    day: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All rows about one invoice."""

    invoice: Row
    subscription: Row | None
    job: Row | None
    attempts: Sequence[Row]
    entries: Sequence[Row]
    refunds: Sequence[Row]
    events: Sequence[Row]
    acts: Sequence[Row]
    """Done by hand to the invoice or its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One line of the story."""

    at: datetime
    what: str
    details: str


def parse(text: str, shard_count: int) -> Which:
    """Read `SHARD/ID`, `SUBSCRIPTION` or `SUBSCRIPTION@DAY`. Raises `InvalidInput`."""
    by_id = _BY_ID.fullmatch(text)
    if by_id is not None:
        shard = int(by_id[1])
        if shard >= shard_count:
            raise InvalidInput("INVOICE", f"shard {shard} is not below shardCount {shard_count}")
        return Which(shard=shard, id=int(by_id[2]))
    by_day = _BY_DAY.fullmatch(text)
    if by_day is None:
        return Which(shard=shard_of(text, shard_count), subscription=text)
    try:
        day = date.fromisoformat(by_day[2])
    except ValueError:
        raise InvalidInput("INVOICE", f"{by_day[2]} is not a day of the calendar") from None
    return Which(shard=shard_of(by_day[1], shard_count), subscription=by_day[1], day=day)


def show(source: Source, text: str, *, as_json: bool) -> int:
    """Print the story. Raises `InvalidInput`, `NotFound`, `DatabaseError`s."""
    which = parse(text, source.spec.shard_count)
    with source.router(pool_size=1) as router:
        facts = read(router, which)
    if facts is None:
        raise NotFound(f"invoice {text}: is not on shard {which.shard}")
    if as_json:
        output.print_json(document(facts))
    else:
        print_story(facts)
    return ExitCode.OK


def read(router: ShardRouter, which: Which) -> Facts | None:
    """All that is known of the invoice, by eight queries, nine where its job is deleted; None where there is none."""
    with router.read(which.shard) as connection:
        found = _rows(connection, _q.invoice if which.id is not None else _q.invoice_of_day, which.shard, _asked(which))
        if not found:
            return None
        invoice = found[0]
        subscription: str = invoice["subscription_id"]
        key = job_key(subscription, invoice["period_start"], invoice["charge_type"])
        jobs = _rows(connection, _q.job, which.shard, {"key": key})
        job = jobs[0] if jobs else None
        number = job["id"] if job else _job_of_first_attempt(connection, which.shard, key)
        subjects = {f"invoice:{invoice['id']}", f"job:{number}"}
        account = {"account": "receivable:" + subscription, "invoice": invoice["id"]}
        of_subscription = {"subscription": subscription, "invoice": invoice["id"]}
        subscriptions = _rows(connection, _q.subscription, which.shard, of_subscription)
        return Facts(
            invoice=invoice,
            subscription=subscriptions[0] if subscriptions else None,
            job=job,
            attempts=_rows(connection, _q.attempts, which.shard, {"job": number}),
            entries=_rows(connection, _q.entries, which.shard, account),
            refunds=_rows(connection, _q.refunds, which.shard, account),
            events=_rows(connection, _q.events, which.shard, of_subscription),
            acts=[act for act in acts.of_subscription(connection, which.shard, subscription) if act["subject"] in subjects],
        )


def _job_of_first_attempt(connection: Connection, shard: int, key: bytes) -> int | None:
    """A finished job is deleted after a while; its attempts are found by the key of the first one."""
    number: int | None = connection.exec_driver_sql(_q.job_of_attempt, {"shard": shard, "key": attempt_key(key, 1)}).scalar()
    return number


def _asked(which: Which) -> Row:
    return {"id": which.id} if which.id is not None else {"subscription": which.subscription, "day": which.day}


def _rows(connection: Connection, query: str, shard: int, params: Row) -> Sequence[Row]:
    return [dict(row) for row in connection.exec_driver_sql(query, {"shard": shard, **params}).mappings()]


def story(facts: Facts) -> list[Happening]:
    """What happened and what comes next, by time; of one instant in the order of cause and effect."""
    told = [*_past(facts), *_next(facts)]
    return sorted(told, key=lambda one: one.at)


def _past(facts: Facts) -> Iterator[Happening]:
    invoice = facts.invoice
    if facts.subscription is not None:
        yield Happening(at=facts.subscription["created_at"], what="subscription created", details="")
    yield Happening(at=invoice["issued_at"], what="invoice issued", details=format_amount(invoice["amount"], invoice["currency"]))
    for attempt in facts.attempts:
        number = f"attempt {attempt['attempt_no']}"
        yield Happening(at=attempt["created_at"], what=f"{number} begun", details=f"provider {attempt['provider']}")
        if attempt["finished_at"] is not None:
            yield Happening(at=attempt["finished_at"], what=f"{number} {_outcome(attempt)}", details=_told(attempt))
    for entry in facts.entries:
        details = f"{entry['debit_account']} → {entry['credit_account']} {format_amount(entry['amount'], entry['currency'])}"
        yield Happening(at=entry["created_at"], what=f"ledger entry {entry['id']}", details=details)
    for refund in facts.refunds:
        money = format_amount(refund["amount"], refund["currency"])
        by = "" if refund["source"] == RefundSource.OURS else " by the bank"
        yield Happening(at=refund["created_at"], what=f"refund{by}", details=f"{money} by provider {refund['provider']}")
        if refund["finished_at"] is not None:
            yield Happening(at=refund["finished_at"], what=f"refund {_refund_status(refund)}", details=money)
    for event in facts.events:
        sent = "not sent" if event["sent_at"] is None else f"sent {output.moment(event['sent_at'])}"
        yield Happening(at=event["created_at"], what=f"event {event['id']}", details=f"{event['type']} ({sent})")

    for act in facts.acts:
        yield Happening(at=act["created_at"], what=f"{act['act']} by {act['actor']}", details=act["reason"])


def _refund_status(refund: Row) -> str:
    return RefundStatus(refund["status"]).name.lower()


def _outcome(attempt: Row) -> str:
    return AttemptOutcome(attempt["outcome"]).name.lower().replace("_", " ")


def _told(attempt: Row) -> str:
    parts = (("code", attempt["code"]), ("charge", attempt["provider_ref"]))
    return ", ".join(f"{name} {value}" for name, value in parts if value is not None)


def _next(facts: Facts) -> Iterator[Happening]:
    """What the job waits for. It is later than all that happened, even where it is overdue."""
    job, now = facts.job, facts.invoice["now"]
    if job is None:
        if facts.invoice["status"] == InvoiceStatus.OPEN:
            yield Happening(at=now, what="nothing", details="the invoice has no job: run the audit")
        return
    due: datetime = job["due_at"]
    overdue = f", overdue for {output.age((now - due).total_seconds())}" if due < now else ""
    at = max(due, now)
    match Status(job["status"]):
        case Status.READY:
            what = (
                f"attempt {job['attempt_no']} is {_asked_about(facts)}"
                if job["attempt_open"]
                else f"attempt {job['attempt_no'] + 1}"
            )
            details = f"due {output.moment(due)}{overdue}, until {output.moment(job['grace_until'])}"
            yield Happening(at=at, what=f"next: {what}", details=details)
        case Status.PROCESSING:
            yield Happening(at=at, what="in work", details=f"lease until {output.moment(due)}{overdue}")
        case Status.AWAITING_CUSTOMER:
            looked_at = "" if known_due(due) is None else f"looked at {output.moment(at)}"
            yield Happening(at=now, what="waits for the customer", details=looked_at)
        case Status.REVIEW:
            yield Happening(at=now, what="waits for review", details="a person must find out what became of the attempt")
        case Status.SUCCEEDED | Status.FAILED:
            pass


def _asked_about(facts: Facts) -> str:
    canceling = bool(facts.attempts) and facts.attempts[-1]["outcome"] == AttemptOutcome.CANCELING
    return "canceled, unless it was paid" if canceling else "looked up"


def document(facts: Facts) -> dict[str, Any]:
    """All of it as JSON: amounts in minor units, statuses by name."""
    invoice = {name: value for name, value in facts.invoice.items() if name != "now"}
    return {
        "invoice": {**invoice, "status": InvoiceStatus(invoice["status"]).name.lower()},
        "subscription": facts.subscription
        and {**facts.subscription, "status": SubscriptionStatus(facts.subscription["status"]).name.lower()},
        "job": facts.job
        and {**facts.job, "status": Status(facts.job["status"]).name.lower(), "due_at": known_due(facts.job["due_at"])},
        "attempts": [{**attempt, "outcome": AttemptOutcome(attempt["outcome"]).name.lower()} for attempt in facts.attempts],
        "ledger": [{**entry, "kind": _kind(entry["kind"])} for entry in facts.entries],
        "refunds": [
            {**refund, "status": _refund_status(refund), "source": RefundSource(refund["source"]).name.lower()}
            for refund in facts.refunds
        ],
        "events": [dict(event) for event in facts.events],
        "acts": [dict(act) for act in facts.acts],
    }


def _kind(kind: int) -> str:
    return ledger.Kind(kind).name.lower()


def print_story(facts: Facts) -> None:
    """For a person."""
    invoice, subscription = facts.invoice, facts.subscription
    amount = format_amount(invoice["amount"], invoice["currency"])
    status = InvoiceStatus(invoice["status"]).name.lower()
    output.print_line(f"invoice {invoice['shard_id']}/{invoice['id']}: {amount}, {status}", "bold")
    period = f"{invoice['period_start']} to {invoice['period_end']}"
    output.print_line(f"subscription {output.visible(invoice['subscription_id'])}, period {period} (the day after)")
    if subscription is not None:
        output.print_line(
            f"customer {output.visible(subscription['customer_id'])}, service {output.visible(subscription['service'])}, "
            f"subscription {SubscriptionStatus(subscription['status']).name.lower().replace('_', ' ')}"
        )
    rows = [(_clock(one.at), one.what, one.details) for one in story(facts)]
    output.print_table(["time (UTC)", "what", "details"], rows)


def _clock(at: datetime) -> str:
    return at.replace(tzinfo=UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
