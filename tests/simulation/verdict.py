"""What a run came to: the product's own audit, and an account of our own that shares no line with it.

`double`: an invoice for which more than once money was taken. `lost`: a job that never ended, a period that has begun and has no
invoice, a charge that we do not have, a number that is missing, or anything else that the audit finds wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from billing_shards.audit.auditor import audit
from billing_shards.audit.model import ProviderCharge
from billing_shards.audit.rules import DOUBLE_CHARGES
from billing_shards.payments.refunds.model import RefundStatus
from tests.mysql.shard_set import NAME
from tests.simulation.provider import Charge, State
from tests.simulation.refunding import Refund, RefundState
from tests.simulation.world import World

_JOBS = """
SELECT i.shard_id, i.id, COALESCE(j.status, 6), COALESCE(j.attempt_no, 0), COALESCE(j.attempt_open, 0),
       COALESCE(j.lost_leases, 0), i.status, a.provider_ref,
       (SELECT GROUP_CONCAT(JSON_UNQUOTE(JSON_EXTRACT(o.payload, '$.reason')) ORDER BY o.id) FROM outbox AS o
        WHERE o.shard_id = i.shard_id AND o.type = 'payment.review' AND JSON_EXTRACT(o.payload, '$.invoice') = i.id)
FROM invoice AS i
LEFT JOIN billing_job AS j ON j.shard_id = i.shard_id AND j.invoice_id = i.id
LEFT JOIN payment_attempt AS a ON a.shard_id = j.shard_id AND a.job_id = j.id AND a.attempt_no = j.attempt_no
ORDER BY i.shard_id, i.id
"""
SUCCEEDED, FAILED, AWAITING, REVIEW, PURGED = 2, 3, 4, 5, 6
PAID, VOID = 2, 4


_REFUNDS = """
SELECT r.shard_id, r.invoice_id, r.id, r.status, r.provider_ref,
       EXISTS (SELECT 1 FROM outbox AS o WHERE o.shard_id = r.shard_id AND o.type = 'refund.review'
                 AND JSON_UNQUOTE(JSON_EXTRACT(o.payload, '$.refund')) = CONCAT(r.shard_id, '/', r.invoice_id, '/r', r.id))
FROM refund AS r WHERE r.source = 1
ORDER BY r.shard_id, r.id
"""

_DISPUTES = "SELECT shard_id, invoice_id, attempt_no, CAST(SUM(amount) AS SIGNED) FROM refund WHERE source = 2 GROUP BY 1, 2, 3"


@dataclass(slots=True, kw_only=True)
class Verdict:
    """Of one seed. Each entry says what is wrong, for a person."""

    seed: int
    double: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    jobs: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By status."""
    charges: int = 0
    refunds: int = 0
    """Those that the provider made and that did not fail."""

    @property
    def sound(self) -> bool:
        return not self.double and not self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    shard: int
    invoice: int
    status: int
    attempt_no: int
    attempt_open: int
    lost_leases: int
    invoice_status: int
    provider_ref: str | None
    reasons: str | None
    """Of all its reviews: a later one, or the word that a webhook contradicts it, does not undo an earlier one."""

    @property
    def name(self) -> str:
        return f"{self.shard}/{self.invoice}"


def judge(world: World) -> Verdict:
    """Look at what a finished run has left."""
    verdict = Verdict(seed=world.seed)
    verdict.lost += world.violations
    jobs = list(_jobs(world))
    for job in jobs:
        verdict.jobs[job.status] += 1
        if job.status == PURGED and job.invoice_status not in {PAID, VOID}:
            verdict.lost.append(f"job of {job.name} is gone, and its invoice is not settled: status {job.invoice_status}")
        if job.status not in {SUCCEEDED, FAILED, AWAITING, REVIEW, PURGED}:
            verdict.lost.append(f"job of {job.name} never ended: status {job.status}")
        if job.lost_leases and world.plan.quiet:
            verdict.lost.append(f"job of {job.name} has lost {job.lost_leases} leases, though nothing befell any host")
        if job.status == REVIEW and (why := _unfounded(world, job)):
            verdict.lost.append(f"job of {job.name} is in review without a reason: {why}")
    _money(world, jobs, verdict)
    _refunds(world, verdict)
    _disputes(world, jobs, verdict)
    _events(world, verdict)
    _audit(world, verdict)
    return verdict


def _jobs(world: World) -> Iterator[_Job]:
    fields = tuple(_Job.__dataclass_fields__)
    for database in world.shard_set.owners.values():
        with database.engine.connect() as connection:
            for row in connection.exec_driver_sql(_JOBS):
                yield _Job(**dict(zip(fields, row, strict=True)))


def _unfounded(world: World, job: _Job) -> str | None:
    """Why the model does not see that this review had to be; None where it had."""
    reference = f"{job.name}/{job.attempt_no}"
    founded = {
        "workers_lost": job.lost_leases >= world.spec.claimer.lost_leases_max,
        "outcome_unknown": world.looks.open[reference] >= len(world.spec.retry.check_delays_seconds),
        "set_aside": job.name in world.set_aside,
    }
    # No event tells of a review where the charge was taken back: that of the reversal does.
    reversed_ = any(c.reference == reference and c.state is State.REVERSED for p in world.providers for c in p.charges)
    if reversed_ or any(founded.get(reason, False) for reason in (job.reasons or "").split(",")):
        return None
    return f"{job.reasons} ({world.looks.open[reference]} looks, {job.lost_leases} lost leases)"


def _money(world: World, jobs: list[_Job], verdict: Verdict) -> None:
    """Our own account: each charge that succeeded is the one payment of its invoice, or waits for a person."""
    taken: defaultdict[str, list[Charge]] = defaultdict(list)
    for provider in world.providers:
        for charge in provider.charges:
            if charge.state is State.SUCCEEDED:
                taken[charge.reference.rpartition("/")[0]].append(charge)
    verdict.charges = sum(map(len, taken.values()))
    by_name = {job.name: job for job in jobs}
    for name, charges in taken.items():
        if len(charges) > 1:
            verdict.double.append(f"invoice {name} was charged {len(charges)} times: {[c.id for c in charges]}")
        if (wrong := _unbooked(by_name.get(name), charges)) is not None:
            verdict.lost.append(f"charge {charges[0].id} of {name}: {wrong}")
    for job in jobs:
        if job.invoice_status == PAID and job.name not in taken:
            verdict.lost.append(f"invoice {job.name} is paid, and the provider took nothing")


def _unbooked(job: _Job | None, charges: list[Charge]) -> str | None:
    """What is wrong with how we have an invoice's charges."""
    if job is None:
        return "we have no such invoice"
    if job.invoice_status == PAID:
        if job.status == PURGED:  # which attempt it was, the audit compares with the provider's list
            return None
        return None if job.provider_ref in {c.id for c in charges} else f"here the invoice is paid by {job.provider_ref}"
    in_review = job.status == REVIEW and job.attempt_open
    return None if in_review else f"not booked, job status {job.status}"


def _refunds(world: World, verdict: Verdict) -> None:
    """Each refund was made once, where we say that it succeeded; where we say that it failed, not, unless a person was called."""
    made: defaultdict[str, list[Refund]] = defaultdict(list)
    for provider in world.providers:
        for one in provider.refunds.made:
            if one.state is RefundState.SUCCEEDED:
                made[one.request.reference].append(one)
    verdict.refunds = sum(map(len, made.values()))
    for name, ones in made.items():
        if len(ones) > 1:
            verdict.double.append(f"refund {name} was made {len(ones)} times: {[one.id for one in ones]}")
    for database in world.shard_set.owners.values():
        with database.engine.connect() as connection:
            for shard, invoice, number, status, provider_ref, reviewed in connection.exec_driver_sql(_REFUNDS):
                name = f"{shard}/{invoice}/r{number}"
                wrong = _unlike(
                    world, name, status, provider_ref, [one.id for one in made.pop(name, ())], reviewed=bool(reviewed)
                )
                if wrong is not None:
                    verdict.lost.append(f"refund {name}: {wrong}")
    verdict.lost += [f"refund {name}: we have no such refund" for name in made]


def _disputes(world: World, jobs: list[_Job], verdict: Verdict) -> None:
    """What a bank took back of a charge is a refund that it made, unless a refund that nobody can tell of stands in its way."""
    called = {job.name for job in jobs if "reversed_more_than_left" in (job.reasons or "")}
    booked: dict[str, int] = {}
    for database in world.shard_set.owners.values():
        with database.engine.connect() as connection:
            for shard, invoice, attempt, amount in connection.exec_driver_sql(_DISPUTES):
                booked[f"{shard}/{invoice}/{attempt}"] = amount
    taken_back = {charge.reference: charge.taken_back for provider in world.providers for charge in provider.charges}
    for name in {*booked, *taken_back}:
        there, here = taken_back.get(name, 0), booked.get(name, 0)
        if there != here and name.rpartition("/")[0] not in called:
            verdict.lost.append(f"of charge {name}, the bank took back {there}, and {here} are booked")


def _unlike(world: World, name: str, status: int, provider_ref: str | None, made: list[str], *, reviewed: bool) -> str | None:
    """What is wrong with how we have a refund that the provider has made by these names."""
    match RefundStatus(status):
        case RefundStatus.SUCCEEDED:
            return None if provider_ref in made else f"succeeded here as {provider_ref}, the provider made {made}"
        case RefundStatus.FAILED:
            return f"failed here, the provider made {made}" if made and not reviewed else None
        case RefundStatus.REVIEW:
            looks = world.looks.open[name]
            return None if looks >= len(world.spec.retry.check_delays_seconds) else f"is in review after {looks} looks"
        case RefundStatus.REQUESTED | RefundStatus.PENDING | RefundStatus.UNKNOWN:
            return f"never ended: status {status}"


def _events(world: World, verdict: Verdict) -> None:
    """Where events were published: each was heard of, and of one subscription first in the order of its numbers."""
    if not world.plan.publishing:
        return
    for subscription, numbers in world.broker.by_subscription.items():
        if numbers != sorted(numbers):
            verdict.lost.append(f"events of {subscription} were first heard of in the order {numbers}")
    for database in world.shard_set.owners.values():
        with database.engine.connect() as connection:
            for shard, number in connection.exec_driver_sql("SELECT shard_id, id FROM outbox"):
                if f"{NAME}/{shard}/{number}" not in world.broker.seen:
                    verdict.lost.append(f"event {number} of shard {shard} was never heard of")


def _audit(world: World, verdict: Verdict) -> None:
    """The product's audit. It compares with the list of one provider, the spec's first: in every other seed that is the other."""
    which = world.seed % len(world.providers)
    listed = [
        ProviderCharge(id=c.id, reference=c.reference, status=c.state.value, amount=c.amount, currency=c.currency)
        for c in world.providers[which].charges
    ]
    spec = world.spec.model_copy(update={"gateway": world.spec.all_gateways[which]})
    with world.clock():
        report = audit(world.router, spec, provider_charges=listed)
    for result in report.rules:
        found = verdict.double if result.rule == DOUBLE_CHARGES else verdict.lost
        found += [f"audit {result.rule.name}: {dict(example.where)}" for example in result.examples]
