"""What the databases say, as values: how far the charges are, and what has become of each invoice. Pure but for reading the SQL.

The figures are read in the database pods themselves, so that they do not depend on the program whose work they judge.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
PROGRESS_SQL = (_FOLDER / "progress.sql").read_text()
FIGURES_SQL = (_FOLDER / "figures.sql").read_text()
CHARGES_SQL = (_FOLDER / "charges.sql").read_text()
OWNERSHIP_SQL = (_FOLDER / "ownership.sql").read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the charges are, in jobs: there is one for each invoice."""

    not_invoiced: int = 0
    """Subscriptions of which a period has begun and is not invoiced."""
    jobs: int = 0
    paid: int = 0
    gave_up: int = 0
    customer: int = 0
    review: int = 0
    retry: int = 0
    """Declined, and waiting for the next attempt."""
    held: int = 0
    """Claimed by a claimer, or by one that was killed."""
    unknown: int = 0
    """Not claimed, and the outcome of the last attempt is not known yet."""
    held_by_range: Mapping[int, int] = field(default_factory=dict)
    """Held jobs by the first shard of the claimer Deployment that they belong to."""

    @property
    def settled(self) -> int:
        """Jobs that nothing is left to do for now."""
        return self.paid + self.gave_up + self.customer + self.review + self.retry

    @property
    def complete(self) -> bool:
        """Whether everything that is due has been dealt with."""
        return self.jobs > 0 and self.not_invoiced == 0 and self.settled == self.jobs


def progress(lines: Iterable[str]) -> Progress:
    """Add up the answers of all databases."""
    sums: Counter[str] = Counter()
    held: Counter[int] = Counter()
    for line in lines:
        document = json.loads(line)
        held.update({int(first): jobs for first, jobs in (document.pop("held_by_range") or {}).items()})
        sums.update(document)
    return Progress(held_by_range=held, **sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrencyFigures:
    """Subscriptions and invoices in one currency; amounts in minor units."""

    subscriptions: int = 0
    invoices: int = 0
    amount: int = 0
    paid: int = 0
    paid_amount: int = 0
    retry: int = 0
    """Declined, and waiting for the next attempt, or in it."""
    customer: int = 0
    gave_up: int = 0
    charged: int = 0
    """Attempts that succeeded."""
    charged_amount: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The end state."""

    currencies: Mapping[str, CurrencyFigures]
    attempts: int
    """First attempts alone, as in the next three. Later ones are retries, which may be under way at any moment."""
    open_attempts: int
    """Those whose outcome is not known."""
    first_attempt_at: float
    """Seconds since 1970, by the databases' clocks; so is the next one."""
    last_outcome_at: float

    @property
    def seconds(self) -> float:
        """From the first attempt to the last outcome, outages included."""
        return self.last_outcome_at - self.first_attempt_at

    def total(self, name: str) -> int:
        """One of the counts over all currencies."""
        return sum(getattr(figures, name) for figures in self.currencies.values())


def figures(lines: Iterable[str]) -> Figures:
    """Add up the answers of all databases."""
    documents = [json.loads(line) for line in lines]
    by_currency: dict[str, Counter[str]] = {}
    for document in documents:
        for row in document["currencies"]:
            by_currency.setdefault(row.pop("currency"), Counter()).update(row)
    return Figures(
        currencies={currency: CurrencyFigures(**sums) for currency, sums in sorted(by_currency.items())},
        attempts=sum(document["attempts"] for document in documents),
        open_attempts=sum(document["open_attempts"] for document in documents),
        first_attempt_at=min(document["first_attempt_at"] for document in documents),
        last_outcome_at=max(document["last_outcome_at"] for document in documents),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Our succeeded attempts beside the provider's succeeded charges, reference by reference."""

    charges: int
    double: int
    """Invoices that the provider charged more than once."""
    missing: int
    """Attempts that had succeeded here, and of which the provider's list has no charge of this amount."""
    unknown: int
    """Charges of the list that are not ours."""


def compare(before: Iterable[str], theirs: Iterable[str], after: Iterable[str]) -> Comparison:
    """Lines of `charges.sql` from before and after the provider's list (one JSON object a line) was taken.

    Retries may be charged at any moment: what succeeded here before must be in the list, and what is in the list must be here
    afterwards.
    """
    charges = [charge for charge in map(json.loads, filter(None, theirs)) if charge["status"] == "succeeded"]
    there = {_triple(charge) for charge in charges}
    invoices = Counter(charge["reference"].rpartition("/")[0] for charge in charges)
    return Comparison(
        charges=len(charges),
        double=sum(count > 1 for count in invoices.values()),
        missing=len(_triples(before) - there),
        unknown=len(there - _triples(after)),
    )


def _triples(lines: Iterable[str]) -> set[tuple[str, ...]]:
    return {tuple(line.split("\t")) for line in lines if line}


def _triple(charge: Mapping[str, Any]) -> tuple[str, ...]:
    return (charge["reference"], str(charge["amount"]), charge["currency"])


def ownership(lines: Mapping[str, str]) -> dict[int, tuple[str, int, int]]:
    """Each shard's database, epoch and number of invoices there, from the fences of all databases by name."""
    found: dict[int, tuple[str, int, int]] = {}
    for database, text in lines.items():
        for line in filter(None, text.splitlines()):
            shard, epoch, invoices = map(int, line.split("\t"))
            found[shard] = (database, epoch, invoices)
    return found
