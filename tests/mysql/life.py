"""A subscription's life in virtual time: scheduled, charged, dunned, day by day."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from billing_shards.audit.auditor import audit
from billing_shards.billing import dunner, scheduler, subscriptions
from billing_shards.billing.model import Status
from billing_shards.billing.state import Row
from billing_shards.billing.subscriptions import By, Subject
from billing_shards.jobs import store
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Job
from billing_shards.payments.model import DeclineClass, Declined, Outcome, Succeeded
from billing_shards.payments.settle import Result, settle
from tests.mysql.shard_set import ShardSet

START = datetime(2024, 1, 31)
SOFT = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds", provider_ref="ch_no")
HARD = Declined(decline_class=DeclineClass.HARD, code="stolen_card", provider_ref="ch_no")
NEW_METHOD = Declined(decline_class=DeclineClass.NEW_METHOD, code="expired_card", provider_ref="ch_no")
PAID = Succeeded(provider_ref="ch_yes")
BY = By(actor="anna", reason="asked for by the customer")


class Life:
    """One subscription `sub-1`, by default of the last day of each month; `day` 0 is its first."""

    def __init__(self, shard_set: ShardSet, **columns: Any) -> None:
        self.shard_set = shard_set
        self.id = "sub-1"
        self.subject = Subject(id=self.id, shard_count=shard_set.spec.shard_count)
        self.at(0)
        self.shard = shard_set.add_subscription(self.id, **columns)

    def at(self, day: float) -> None:
        """Move the clock."""
        self.now = START + timedelta(days=day)
        self.shard_set.set_clock(self.now)

    def schedule(self, **options: Any) -> int:
        count = 0
        while self.shard in scheduler.due_shards(self.shard_set.router, [self.shard]):
            count += scheduler.schedule_shard(
                self.shard_set.router,
                self.shard,
                **{"lanes": Lanes(self.shard_set.spec), "grace_seconds": self.shard_set.spec.retry.grace_seconds, **options},
            )
        return count

    def claim(self) -> list[Job]:
        lanes = Lanes(self.shard_set.spec)
        return [
            job
            for lane in lanes
            for job in store.claim(self.shard_set.router, self.shard, lane, limit=10, lease_seconds=60, provider="http").jobs
        ]

    def settle(self, jobs: list[Job], outcome: Outcome) -> None:
        results = [Result(job=job, outcome=outcome, draw=0.0) for job in jobs]
        assert settle(self.shard_set.router, self.shard, results, policy=self.shard_set.spec.retry) == []

    def charge(self, outcome: Outcome) -> int:
        """All that is due."""
        jobs = self.claim()
        if jobs:
            self.settle(jobs, outcome)
        return len(jobs)

    def dun(self) -> int:
        count = 0
        spec = self.shard_set.spec
        while shards := dunner.due_shards(self.shard_set.router, self.shard_set.router.owner(self.shard).name, [self.shard]):
            for shard in shards:
                count += dunner.dun_shard(self.shard_set.router, shard, spec.dunning, grace_seconds=spec.retry.grace_seconds)
        return count

    @property
    def row(self) -> Row:
        return subscriptions.show(self.shard_set.router, self.subject).row

    def status(self) -> Status:
        return self.row.status

    def events(self, *, skip: tuple[str, ...] = ("invoice.issued", "payment.failed")) -> list[str]:
        """Types of all events, in order."""
        rows = self.shard_set.rows(self.shard, "SELECT type FROM outbox WHERE shard_id = %(shard)s ORDER BY id")
        return [row[0] for row in rows if row[0] not in skip]

    def told(self, kind: str) -> list[dict[str, Any]]:
        """What the events of a type hold."""
        rows = self.shard_set.rows(
            self.shard, "SELECT payload FROM outbox WHERE shard_id = %(shard)s AND type = %(kind)s ORDER BY id", kind=kind
        )
        return [json.loads(row[0]) for row in rows]

    def periods(self) -> list[tuple[str, str, int]]:
        """First day, day after, status of each invoice."""
        query = "SELECT period_start, period_end, status FROM invoice WHERE shard_id = %(shard)s ORDER BY period_start"
        return [(str(row[0]), str(row[1]), row[2]) for row in self.shard_set.rows(self.shard, query)]

    def jobs(self) -> list[tuple[int, int, str, int]]:
        """Status, lane, payment method, attempts of each job."""
        query = (
            "SELECT j.status, j.lane, j.payment_method, j.attempt_no FROM billing_job j JOIN invoice i"
            " ON i.shard_id = j.shard_id AND i.id = j.invoice_id WHERE j.shard_id = %(shard)s ORDER BY i.period_start"
        )
        return [tuple(row) for row in self.shard_set.rows(self.shard, query)]

    def entries(self, kind: int) -> list[tuple[str, str, int, str]]:
        query = (
            "SELECT debit_account, credit_account, amount, currency FROM ledger_entry"
            " WHERE shard_id = %(shard)s AND kind = %(kind)s ORDER BY id"
        )
        return [tuple(row) for row in self.shard_set.rows(self.shard, query, kind=kind)]

    def is_clean(self) -> bool:
        report = audit(self.shard_set.router, self.shard_set.spec)
        problems = [(result.rule.name, example.where) for result in report.rules for example in result.examples]
        assert problems == []
        return report.clean
