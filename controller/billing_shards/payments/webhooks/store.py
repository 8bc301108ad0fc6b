"""The SQL of webhooks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection

from billing_shards.db import Rows, queries
from billing_shards.jobs.model import Status, attempt_key, job_key
from billing_shards.payments.model import AttemptOutcome, WebhookEvent, WebhookKind
from billing_shards.payments.webhooks.model import AttemptReference, AttemptState, Stored
from billing_shards.shards.transactions import ShardTransaction

_q = queries("webhooks")

KEPT_SECONDS = 7 * 86_400
"""How long a webhook is kept that is done with: longer than providers send one again (Stripe: three days)."""
_PAID = 2  # invoice.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The attempt that a webhook tells of, with its job and its invoice, which are locked."""

    invoice: int
    subscription: str
    service: str
    payment_method: str
    """What the customer pays with today."""
    job_key: bytes
    job: int
    attempt_no: int
    last_attempt_no: int
    provider_ref: str | None
    state: AttemptState


def insert(transaction: ShardTransaction, provider: str, event: WebhookEvent, *, body: bytes | None, result: str | None) -> None:
    """Keep a webhook, unless it is there already. With a `result` there is nothing to apply."""
    params = {
        "provider": provider,
        "event_id": event.id,
        "kind": event.kind,
        "reference": event.reference,
        "provider_ref": event.provider_ref,
        "amount": event.amount,
        "currency": event.currency,
        "code": event.code,
        "body": body,
        "result": result,
        "kept_seconds": KEPT_SECONDS,
    }
    transaction.write(_q.store, params, table="webhook", keys=[(provider, event.id)])


def due_shards(connection: Connection, shards: Collection[int]) -> list[int]:
    """Those of `shards`, all of one database, with a webhook to be looked at."""
    return list(connection.exec_driver_sql(_q.due_shards, {"shards": tuple(shards)}).scalars())


def lock_due(transaction: ShardTransaction, limit: int) -> list[Stored]:
    """Webhooks to be looked at, but for those that another process holds."""
    return [
        Stored(
            provider=row[0],
            event_id=row[1],
            kind=cast("WebhookKind", row[2]),
            reference=row[3],
            amount=row[4],
            currency=row[5],
            code=row[6],
            tries=row[7],
        )
        for row in transaction.read(_q.due, {"limit": limit})
    ]


def finish(transaction: ShardTransaction, looked_at: Iterable[tuple[Stored, str | None, float]]) -> None:
    """Note what came of each webhook: the result and the seconds it is kept, or None and the seconds until the next look."""
    rows = [(webhook.provider, webhook.event_id, result, seconds) for webhook, result, seconds in looked_at]
    if rows:
        keys = [(row[0], row[1]) for row in rows]
        transaction.write(_q.finish, {"rows": Rows(rows)}, table="webhook", keys=keys)


def purgeable_shards(connection: Connection, shards: Collection[int]) -> list[int]:
    """Those of `shards` with webhooks that have been kept long enough."""
    return list(connection.exec_driver_sql(_q.purgeable_shards, {"shards": tuple(shards)}).scalars())


def purge(transaction: ShardTransaction, limit: int) -> int:
    """Delete webhooks that have been kept long enough; how many."""
    keys = [tuple(row) for row in transaction.read(_q.purgeable, {"limit": limit})]
    return transaction.write(_q.purge, {"keys": tuple(keys)}, table="webhook", keys=keys) if keys else 0


def count_waiting(connection: Connection, shards: Collection[int]) -> dict[int, int]:
    """Webhooks that are not done with, by shard; shards with none are left out."""
    return {row[0]: row[1] for row in connection.exec_driver_sql(_q.count_waiting, {"shards": tuple(shards)})}


def lock_cases(transaction: ShardTransaction, references: Collection[AttemptReference]) -> dict[AttemptReference, Case]:
    """The attempts of these references; those that are not there are left out. Jobs are locked first, then invoices."""
    invoices = {row[0]: row for row in _of_ids(transaction, _q.invoices, {reference.invoice for reference in references})}
    if not invoices:
        return {}
    keys = {invoice: job_key(row[1], row[2], row[3]) for invoice, row in invoices.items()}
    jobs = {bytes(row[1]): Status(row[2]) for row in transaction.read(_q.lock_jobs, {"keys": tuple(keys.values())})}
    statuses = {row[0]: row[1] for row in _of_ids(transaction, _q.lock_invoices, invoices)}
    refunds = {row[0]: (int(row[1]), int(row[2])) for row in _of_ids(transaction, _q.refunds, invoices)}
    attempts = _attempts(transaction, keys.values())
    found = {}
    for reference in references:
        if reference.invoice not in keys:
            continue
        key = keys[reference.invoice]
        of_job = attempts[attempt_key(key, 1)]
        attempt = of_job.get(reference.attempt)
        if attempt is not None:
            refunded, under_way = refunds.get(reference.invoice, (0, 0))
            found[reference] = Case(
                invoice=reference.invoice,
                subscription=invoices[reference.invoice][1],
                service=invoices[reference.invoice][4],
                payment_method=invoices[reference.invoice][5],
                job_key=key,
                job=attempt[1],
                attempt_no=reference.attempt,
                last_attempt_no=max(of_job),
                provider_ref=attempt[4],
                state=AttemptState(
                    provider=attempt[3],
                    outcome=AttemptOutcome(attempt[7]),
                    amount=attempt[5],
                    currency=attempt[6],
                    is_last=reference.attempt == max(of_job),
                    job_status=jobs.get(key),
                    is_paid=statuses[reference.invoice] == _PAID,
                    refunded=refunded,
                    refund_under_way=under_way > 0,
                ),
            )
    return found


def _of_ids(transaction: ShardTransaction, query: str, ids: Iterable[int]) -> Sequence[Sequence[Any]]:
    some = tuple(ids)
    return transaction.read(query, {"ids": some}) if some else ()


def _attempts(transaction: ShardTransaction, keys: Iterable[bytes]) -> Mapping[bytes, dict[int, Sequence[Any]]]:
    """Attempts by number, by the key of the job's first one."""
    found: defaultdict[bytes, dict[int, Sequence[Any]]] = defaultdict(dict)
    first_keys = tuple(attempt_key(key, 1) for key in keys)
    for row in transaction.read(_q.attempts, {"first_keys": first_keys}):
        found[bytes(row[0])][row[2]] = row
    return found


def ask_jobs(transaction: ShardTransaction, cases: Collection[Case], reopened: Collection[Case]) -> None:
    """Make the jobs of open attempts due now; those of `reopened` are opened again before."""
    if reopened:
        attempts = [(case.job, case.attempt_no) for case in reopened]
        transaction.write(_q.reopen_attempts, {"attempts": tuple(attempts)}, table="payment_attempt", keys=attempts)
    jobs = [(case.job,) for case in (*cases, *reopened)]
    if jobs:
        transaction.write(_q.ask_jobs, {"ids": tuple(job for (job,) in jobs)}, table="billing_job", keys=jobs)
