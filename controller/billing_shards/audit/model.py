"""Values of the audit: what it is given, and what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from billing_shards.billing.periods import Interval

SUCCEEDED = 1
"""`payment_attempt.outcome` of a charge that was made."""
REVERSED = 6
"""Of a charge that was made, and taken back by the bank."""
UNDECIDED = frozenset({0, 5, 7})
"""Outcomes of an open attempt: unknown so far, pending, to be canceled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold of every row."""

    name: str
    says: str
    """What holds, as a sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCharge:
    """A charge as the provider lists it; `amount` in minor units."""

    id: str
    reference: str
    status: str
    amount: int
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt as we have it, and the invoice it was for."""

    invoice: int
    number: int
    provider_ref: str | None
    amount: int
    currency: str
    outcome: int
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a subscription is to be invoiced next, and what that follows from. Instants are UTC and naive."""

    subscription: str
    interval: Interval
    start: date
    time_zone: str
    active: bool
    """Neither suspended, canceled nor held."""
    anchor_day: int | None = None
    next_period: int
    next_invoice_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offender:
    """A row that breaks a rule: where it is, and the columns that show it."""

    rule: str
    where: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Findings:
    """What was found so far; grows with what is looked at, but keeps only the first `examples_max` offenders a rule."""

    examples_max: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Offender]] = field(default_factory=dict)
    sizes: Counter[str] = field(default_factory=Counter)
    """Rows looked at, by table."""
    balances: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Debits less credits in minor units, by (currency, sort of account)."""
    in_doubt: int = 0
    """Charges that the provider made and whose attempt here is still open."""
    too_new: int = 0
    """Attempts that succeeded after the provider's list was taken, and are not in it."""

    def add(self, offender: Offender) -> None:
        """Count an offender, and keep it where it is among the first."""
        self.counts[offender.rule] += 1
        kept = self.examples.setdefault(offender.rule, [])
        if len(kept) < self.examples_max:
            kept.append(offender)

    def merge(self, other: Findings) -> None:
        """Add what was found elsewhere."""
        self.counts.update(other.counts)
        self.sizes.update(other.sizes)
        self.balances.update(other.balances)
        self.in_doubt += other.in_doubt
        self.too_new += other.too_new
        for rule, offenders in other.examples.items():
            kept = self.examples.setdefault(rule, [])
            kept.extend(offenders[: self.examples_max - len(kept)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """How one rule fared."""

    rule: Rule
    offenders: int
    examples: tuple[Offender, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderResult:
    """How the provider's list compares with ours."""

    charges: int
    """Succeeded charges in the list."""
    double: int
    """Invoices that were charged more than once."""
    missing: int
    """Attempts that succeeded here and are not in the list."""
    in_doubt: int
    """Charges of the list whose attempt here is still open: it will be resolved by asking."""
    too_new: int
    """Attempts that are not in the list because they succeeded after it was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit. `provider` is None where no list was given."""

    rules: tuple[RuleResult, ...]
    shards: int
    sizes: Mapping[str, int]
    balances: Mapping[tuple[str, str], int]
    provider: ProviderResult | None

    @property
    def problems(self) -> int:
        """Offenders of all rules."""
        return sum(result.offenders for result in self.rules)

    @property
    def clean(self) -> bool:
        """Whether every rule holds."""
        return self.problems == 0
