"""A shard set whose charges, refunds and webhooks are worked step by step, against the real fake provider over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from billing_shards.audit.auditor import audit
from billing_shards.jobs import store
from billing_shards.jobs.model import RENEWAL, RETRY, Job, Lane
from billing_shards.payments.charge import charge
from billing_shards.payments.http import HttpGateway
from billing_shards.payments.model import Outcome, WebhookEvent, WebhookKind
from billing_shards.payments.providers import Providers
from billing_shards.payments.refunds import work
from billing_shards.payments.refunds.model import Taken
from billing_shards.payments.refunds.request import RefundOrder, request
from billing_shards.payments.settle import Result, settle
from billing_shards.payments.webhooks.apply import Applier
from billing_shards.payments.webhooks.model import parse_reference
from billing_shards.payments.webhooks.receive import Received, keep
from hack.fake_gateway import FakeGateway
from tests.mysql.shard_set import DueJob, ShardSet

T = TypeVar("T")
SHARD = 3
START = datetime.now(UTC).date() - timedelta(days=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What the claimer and the housekeeper do, one step at a time."""

    shard_set: ShardSet
    fake: FakeGateway

    @property
    def database(self) -> str:
        """The owner of `SHARD`."""
        return self.shard_set.router.owner(SHARD).name

    def with_providers(self, work_: Callable[[Providers], Coroutine[Any, Any, T]]) -> T:
        """Run something that asks the provider, in an event loop of its own."""

        async def main() -> T:
            providers = Providers([HttpGateway(self.shard_set.spec.gateway, lambda: None, connections_max=10)])
            try:
                return await work_(providers)
            finally:
                await providers.close()

        return asyncio.run(main())

    def due(self, name: str = "sub", payment_method: str = "pm_ok", **columns: Any) -> DueJob:
        """A job that is due, on `SHARD`."""
        number = 0
        while self.shard_set.shard_of(f"{name}-{number}") != SHARD:
            number += 1
        self.shard_set.add_subscription(
            f"{name}-{number}",
            payment_method=payment_method,
            interval_unit=1,
            interval_count=30,
            start_date=START,
            next_period=1,
            next_invoice_at=datetime.combine(START + timedelta(days=30), datetime.min.time()),
        )
        return self.shard_set.add_due_job(f"{name}-{number}", period_start=START, payment_method=payment_method, **columns)

    def claim(self, *lanes: Lane) -> list[Job]:
        """All that is due."""
        router = self.shard_set.router
        return [
            job
            for lane in lanes or (RENEWAL, RETRY)
            for job in store.claim(router, SHARD, lane, limit=100, lease_seconds=60, provider="http").jobs
        ]

    def ask(self, job: Job) -> Outcome:
        """Charge or look up a claimed job at the provider."""
        return self.with_providers(lambda providers: charge(providers.named(job.provider), job))

    def settle(self, job: Job, outcome: Outcome) -> None:
        """Write an outcome."""
        settle(self.shard_set.router, SHARD, [Result(job=job, outcome=outcome, draw=0.0)], policy=self.shard_set.spec.retry)

    def work(self, *lanes: Lane) -> int:
        """Claim, charge and settle all that is due; how many."""
        jobs = self.claim(*lanes)
        for job in jobs:
            self.settle(job, self.ask(job))
        return len(jobs)

    def paid(self, name: str = "sub", payment_method: str = "pm_ok", **columns: Any) -> DueJob:
        """A job whose invoice is paid."""
        due = self.due(name, payment_method, **columns)
        self.work()
        assert self.invoice(due) == 2
        return due

    def hear(self, kind: WebhookKind, reference: str, *, event_id: str = "", **fields: Any) -> None:
        """Store a webhook as the receiver does, verified already. Of 990 USD, where `fields` say nothing else."""
        known = {"provider_ref": None, "amount": 990, "currency": "USD", "code": None, **fields}
        event = WebhookEvent(id=event_id or f"ev_{kind}_{reference}", kind=kind, reference=reference, **known)
        named = parse_reference(reference, self.shard_set.spec.shard_count)
        keep(
            self.shard_set.router,
            "http",
            Received(event=event, body=b"{}", shard=SHARD if named is None else named.shard, result=None),
        )

    def apply(self, *, again: bool = False) -> bool:
        """Apply what is stored and due; with `again`, what waits is made due before."""
        if again:
            self.shard_set.change(SHARD, "UPDATE webhook SET due_at = NOW(6) WHERE shard_id = %(shard)s AND status = 0")
        return Applier(self.shard_set.spec, self.shard_set.router, draw=lambda: 0.0).apply(self.database, [SHARD])

    def refund(self, due: DueJob, amount: int | None = None, key: str = "k1") -> str:
        """Ask for a refund; its reference."""
        order = RefundOrder(shard=SHARD, invoice=due.invoice, amount=amount, key=key, actor="anna", reason="asked for it")
        return request(self.shard_set.router, order).reference

    def take(self, *, again: bool = True) -> list[Taken]:
        """Take due refunds; with `again`, all that are not finished."""
        if again:
            self.shard_set.change(
                SHARD,
                "UPDATE refund SET due_at = NOW(6) WHERE shard_id = %(shard)s AND due_at IS NOT NULL AND lease_token = 0",
            )
        return work.take(self.shard_set.router, SHARD)

    def push(self, *, again: bool = True) -> int:
        """Take due refunds, ask the provider, and write what it says; how many."""
        taken = self.take(again=again)
        outcomes = self.with_providers(lambda providers: work.ask(providers, taken))
        for one, outcome in zip(taken, outcomes, strict=True):
            assert work.settle(self.shard_set.router, one, outcome, policy=self.shard_set.spec.retry) is not None
        return len(taken)

    # What there is

    def one(self, query: str, **params: Any) -> Any:
        """The first column of the only row of a query."""
        ((value, *_),) = self.shard_set.rows(SHARD, query, **params)
        return value

    def invoice(self, due: DueJob) -> int:
        """The invoice's status."""
        status: int = self.one("SELECT status FROM invoice WHERE shard_id = %(shard)s AND id = %(id)s", id=due.invoice)
        return status

    def job(self, due: DueJob) -> Any:
        """What there is of its job."""
        query = (
            "SELECT status, lane, attempt_no, attempt_open, checks, lease_token, TIMESTAMPDIFF(SECOND, NOW(6), due_at) AS due_in,"
            " TIMESTAMPDIFF(SECOND, NOW(6), grace_until) AS grace FROM billing_job WHERE shard_id = %(shard)s AND id = %(id)s"
        )
        return self.shard_set.rows(SHARD, query, id=due.job)[0]

    def outcomes(self, due: DueJob) -> list[int]:
        """The outcomes of its attempts."""
        query = "SELECT outcome FROM payment_attempt WHERE shard_id = %(shard)s AND job_id = %(id)s ORDER BY attempt_no"
        return [row[0] for row in self.shard_set.rows(SHARD, query, id=due.job)]

    def entries(self, due: DueJob) -> list[tuple[str, str, int]]:
        """The invoice's ledger entries after that of its issue."""
        query = (
            "SELECT debit_account, credit_account, amount FROM ledger_entry"
            " WHERE shard_id = %(shard)s AND invoice_id = %(id)s AND kind > 1 ORDER BY id"
        )
        return [tuple(row) for row in self.shard_set.rows(SHARD, query, id=due.invoice)]

    def events(self, due: DueJob) -> list[tuple[str, dict[str, Any]]]:
        """Types and payloads of its events after that of its issue."""
        query = (
            "SELECT type, payload FROM outbox WHERE shard_id = %(shard)s AND subscription_id = %(id)s"
            " AND type NOT LIKE 'invoice.issued%%' ORDER BY id"
        )
        return [(row[0], json.loads(row[1])) for row in self.shard_set.rows(SHARD, query, id=due.subscription)]

    def told(self, due: DueJob) -> list[str]:
        """Types of its events after that of its issue."""
        return [kind for kind, _ in self.events(due)]

    def results(self) -> list[str | None]:
        """What came of each webhook; None of those that wait."""
        query = "SELECT result FROM webhook WHERE shard_id = %(shard)s ORDER BY received_at, event_id"
        return [row[0] for row in self.shard_set.rows(SHARD, query)]

    def refunds(self) -> list[int]:
        """The statuses of all refunds."""
        query = "SELECT status FROM refund WHERE shard_id = %(shard)s ORDER BY created_at, id"
        return [row[0] for row in self.shard_set.rows(SHARD, query)]

    def broken(self) -> dict[str, int]:
        """The rules of the audit that do not hold."""
        report = audit(self.shard_set.router, self.shard_set.spec)
        return {result.rule.name: result.offenders for result in report.rules if result.offenders}
