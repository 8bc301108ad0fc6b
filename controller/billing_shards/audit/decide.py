"""What the audit makes of what it is shown. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from billing_shards.audit import rules
from billing_shards.audit.model import REVERSED, SUCCEEDED, UNDECIDED, Attempt, Findings, Offender, ProviderCharge, Schedule
from billing_shards.billing.periods import begins_at, first_day
from billing_shards.shards.model import Owner, OwnerState

LEDGER_SORTS = ("receivable", "revenue", "refunds", "clearing", "bad-debt")


def compare(
    findings: Findings,
    *,
    shard: int,
    invoice: int,
    attempts: Sequence[Attempt],
    charges: Sequence[ProviderCharge],
    listed_at: datetime | None,
) -> None:
    """Compare our attempts at one invoice with the provider's succeeded charges of it.

    `listed_at` (UTC): the list cannot hold what succeeded later.
    """
    of_attempt: defaultdict[int, list[ProviderCharge]] = defaultdict(list)
    for charge in charges:
        of_attempt[int(charge.reference.rpartition("/")[2])].append(charge)
    ours = {attempt.number: attempt for attempt in attempts}
    reversed_ = {attempt.number for attempt in attempts if attempt.outcome == REVERSED}
    kept = [charge.id for number, made in of_attempt.items() if number not in reversed_ for charge in made]
    if len(kept) > 1:
        findings.add(_offender(rules.DOUBLE_CHARGES.name, shard, invoice, charges=kept))
    for number, made in of_attempt.items():
        _compare_attempt(findings, shard, invoice, number, ours.get(number), made)
    for attempt in attempts:
        if attempt.outcome == SUCCEEDED and attempt.number not in of_attempt:
            if listed_at is not None and attempt.finished_at is not None and attempt.finished_at > listed_at:
                findings.too_new += 1
            else:
                where = {"attempt": attempt.number, "provider_ref": attempt.provider_ref}
                findings.add(_offender(rules.MISSING_CHARGES.name, shard, invoice, **where))


def _compare_attempt(
    findings: Findings, shard: int, invoice: int, number: int, attempt: Attempt | None, made: Sequence[ProviderCharge]
) -> None:
    """`made` are the charges under the reference of one attempt; where there are two, a double charge is reported already."""
    charge = next((c for c in made if attempt is not None and c.id == attempt.provider_ref), made[0])
    if attempt is not None and attempt.outcome in UNDECIDED and _mismatch(attempt, charge) is None:
        findings.in_doubt += 1
        return
    reason = "no such attempt here" if attempt is None else _mismatch(attempt, charge) or _unexpected(attempt)
    if reason is not None:
        findings.add(_offender(rules.CHARGE_ATTEMPT.name, shard, invoice, attempt=number, charge=charge.id, reason=reason))


def _mismatch(attempt: Attempt, charge: ProviderCharge) -> str | None:
    if (charge.amount, charge.currency) != (attempt.amount, attempt.currency):
        return f"{charge.amount} {charge.currency} there, {attempt.amount} {attempt.currency} here"
    if attempt.provider_ref is not None and attempt.provider_ref != charge.id:
        return f"charge {attempt.provider_ref} here"
    return None


def _unexpected(attempt: Attempt) -> str | None:
    # A provider may keep a charge as succeeded that was taken back in a dispute.
    return None if attempt.outcome in {SUCCEEDED, REVERSED} else f"succeeded there, outcome {attempt.outcome} here"


def _offender(rule: str, shard: int, invoice: int, **where: Any) -> Offender:
    return Offender(rule=rule, where={"shard": shard, "invoice": invoice, **where})


def owner_offenders(
    shard_count: int, owners: Mapping[str, Mapping[int, Owner]], filled: Collection[tuple[str, str, int]]
) -> Iterator[Offender]:
    """Shards without exactly one owner, and tables that hold rows of a shard that their database does not own.

    `owners`: the fence rows of each database; `filled`: (database, table, shard) of every table that has rows.
    """
    for shard in range(shard_count):
        found = [name for name, fences in owners.items() if _owns(fences.get(shard))]
        if len(found) != 1:
            yield Offender(rule=rules.ONE_OWNER.name, where={"shard": shard, "owners": found})
    for database, table, shard in filled:
        if shard >= shard_count or not _owns(owners[database].get(shard)):
            yield Offender(rule=rules.ROWS_ON_OWNER.name, where={"shard": shard, "database": database, "table": table})


def _owns(owner: Owner | None) -> bool:
    """A fenced shard is still owned: it is about to be handed over."""
    return owner is not None and owner.state in {OwnerState.OWNER, OwnerState.FENCED}


def unbalanced(balances: Mapping[tuple[str, str], int]) -> Iterator[Offender]:
    """Currencies in which receivables, revenue and clearing do not sum to zero."""
    for currency in sorted({currency for currency, _ in balances}):
        sums = {sort: balances.get((currency, sort), 0) for sort in LEDGER_SORTS}
        if sum(sums.values()) != 0:
            yield Offender(rule=rules.LEDGER_ZERO.name, where={"currency": currency, **sums})


def wrong_schedule(shard: int, schedule: Schedule) -> Offender | None:
    """A subscription whose next invoice is not due just when its next period begins, or that has one though it has ended."""
    due = None
    if schedule.active:
        day = first_day(schedule.start, schedule.interval, schedule.next_period, schedule.anchor_day)
        due = begins_at(day, schedule.time_zone)
    if schedule.next_invoice_at == due:
        return None
    where = {"subscription": schedule.subscription, "next_invoice_at": schedule.next_invoice_at, "wanted": due}
    return Offender(rule=rules.NEXT_INVOICE.name, where={"shard": shard, **where})
