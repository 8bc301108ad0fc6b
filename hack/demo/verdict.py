"""Whether all of it is right. Pure: what was expected and what was seen go in, checks come out.

Nothing is taken from one witness alone: the audit, the provider's own counts, and a comparison made here must agree.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hack.demo.faults import KILLED, Kill
from hack.demo.figures import Comparison, Figures
from hack.demo.subscriptions import Expected

_REAPED = "billing_shards_jobs_reaped_total"
_FOUND = "billing_shards_gateway_seconds_count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the verdict rests on."""

    expected: Expected
    figures: Figures
    audit: Mapping[str, Any]
    """`billing-shards audit --json`."""
    provider: Mapping[str, Any]
    """`GET /admin/summary` of the provider."""
    comparison: Comparison
    kills: Sequence[Kill]
    kills_wanted: Mapping[str, int]
    """How many of each kind."""
    counters: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must be so."""

    name: str
    problem: str | None
    """What is wrong; None where it is as it must be."""


def checks(evidence: Evidence) -> list[Check]:
    """All checks, whether they hold or not."""
    found = [
        ("subscriptions imported", _imported(evidence)),
        ("invoices written", _invoiced(evidence)),
        ("invoices settled", _settled(evidence)),
        ("outcomes known", _known(evidence)),
        ("faults met", _faults(evidence)),
        ("processes killed", _killed(evidence)),
        ("leases reaped", None if leases_reaped(evidence) else "no job of a killed claimer was taken back"),
        ("money", _money(evidence)),
        ("double charges", _agreed(double_charges(evidence))),
        ("missing charges", _agreed(missing_charges(evidence))),
        ("audit", _audited(evidence)),
    ]
    return [Check(name=name, problem=problem) for name, problem in found]


def double_charges(evidence: Evidence) -> dict[str, int]:
    """By who counted them."""
    return {
        "audit": _of_provider(evidence, "double_charges"),
        "provider": int(evidence.provider["double_charges"]),
        "comparison": evidence.comparison.double,
    }


def missing_charges(evidence: Evidence) -> dict[str, int]:
    """By who counted them. The provider itself can tell of none that it does not have."""
    return {"audit": _of_provider(evidence, "missing_charges"), "comparison": evidence.comparison.missing}


def closing_lines(evidence: Evidence) -> list[str]:
    """The three lines that it all comes down to."""
    return [
        f"double charges: {_told(double_charges(evidence))}",
        f"missing charges: {_told(missing_charges(evidence))}",
        f"audit: {_audited(evidence) or 'clean'}",
    ]


def leases_reaped(evidence: Evidence) -> int:
    """Jobs that were taken back from claimers that were lost."""
    return sum(count for name, count in evidence.counters.items() if name.startswith(_REAPED))


def lookups(evidence: Evidence) -> int:
    """Questions to the provider about attempts of unknown outcome."""
    return evidence.counters[f'{_FOUND}{{operation="find"}}']


def lost_answers(evidence: Evidence) -> int:
    """Charges that the provider made without answering."""
    return int(evidence.provider["faults"].get("lost_answer", 0))


def resolved(evidence: Evidence) -> int:
    """Of those, the ones whose outcome is known here by now."""
    return lost_answers(evidence) - min(lost_answers(evidence), evidence.figures.open_attempts)


def _of_provider(evidence: Evidence, name: str) -> int:
    """-1 where the audit was given no list."""
    provider = evidence.audit.get("provider")
    return -1 if provider is None else int(provider[name])


def _told(counts: Mapping[str, int]) -> str:
    if len(set(counts.values())) == 1:
        return str(next(iter(counts.values())))
    return "in dispute, " + ", ".join(f"{who} says {count}" for who, count in counts.items())


def _agreed(counts: Mapping[str, int]) -> str | None:
    return None if set(counts.values()) == {0} else _told(counts)


def _imported(evidence: Evidence) -> str | None:
    found = {currency: figures.subscriptions for currency, figures in evidence.figures.currencies.items()}
    return _difference(evidence.expected.subscriptions, found)


def _invoiced(evidence: Evidence) -> str | None:
    currencies = evidence.figures.currencies
    counts = _difference(evidence.expected.invoices, {name: one.invoices for name, one in currencies.items()})
    return counts or _difference(evidence.expected.amounts, {name: one.amount for name, one in currencies.items()})


def _difference(wanted: Mapping[str, int], found: Mapping[str, int]) -> str | None:
    wrong = [name for name in sorted({*wanted, *found}) if wanted.get(name, 0) != found.get(name, 0)]
    parts = [f"{name}: {found.get(name, 0):,} instead of {wanted.get(name, 0):,}" for name in wrong]
    return ", ".join(parts) or None


def _settled(evidence: Evidence) -> str | None:
    figures = evidence.figures
    ended = sum(figures.total(name) for name in ("paid", "retry", "customer", "gave_up"))
    left = figures.total("invoices") - ended
    return f"{left} are neither settled nor wait for a retry" if left else None


def _known(evidence: Evidence) -> str | None:
    doubtful = evidence.figures.open_attempts
    return f"{doubtful} attempts have no known outcome" if doubtful else None


def _faults(evidence: Evidence) -> str | None:
    """A run in which nothing went wrong would prove nothing."""
    faults, charges = evidence.provider["faults"], evidence.provider["charges"]
    met = {
        "declines": charges["failed"],
        "lost answers": faults.get("lost_answer", 0),
        "conflicts": faults.get("in_flight_conflict", 0),
    }
    absent = [name for name, count in met.items() if not count]
    return f"no {', no '.join(absent)}" if absent else None


def _killed(evidence: Evidence) -> str | None:
    done = Counter(kill.kind for kill in evidence.kills if kill.exit_code == KILLED and kill.recovered_seconds is not None)
    return _difference(evidence.kills_wanted, done)


def _money(evidence: Evidence) -> str | None:
    """What is paid is what was charged, in number and amount; and each charge is the provider's too."""
    currencies = evidence.figures.currencies
    for paid, charged in (("paid", "charged"), ("paid_amount", "charged_amount")):
        wanted, found = ({name: getattr(one, field) for name, one in currencies.items()} for field in (charged, paid))
        if wrong := _difference(wanted, found):
            return f"{paid.replace('_', ' ')}: {wrong}"
    unknown = evidence.comparison.unknown
    return f"{unknown} charges at the provider are not ours" if unknown else None


def _audited(evidence: Evidence) -> str | None:
    audit = evidence.audit
    if audit.get("clean") is True and audit.get("problems") == 0 and audit.get("provider") is not None:
        return None
    if audit.get("provider") is None:
        return "was given no list of the provider's charges"
    broken = [rule["name"] for rule in audit.get("rules", []) if rule["offenders"]]
    return f"not clean, {audit.get('problems')} problems ({', '.join(broken) or 'none named'})"
