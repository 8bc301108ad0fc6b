"""The closing tables, for a person."""

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from billing_shards.accounts.money import exponent
from hack.demo import verdict
from hack.demo.charging import Charged
from hack.demo.faults import Kill
from hack.demo.verdict import Check, Evidence

_COUNTS = ("subscriptions", "invoices", "paid", "retry", "customer", "gave_up")
_COLUMNS = {
    "subscriptions": "subscriptions",
    "invoices": "invoices",
    "amount": "amount due",
    "paid": "paid",
    "paid_amount": "amount paid",
    "retry": "wait for\nretry",
    "customer": "await\ncustomer",
    "gave_up": "given\nup",
}


def by_currency(evidence: Evidence) -> Table:
    """Counts and amounts of each currency."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_footer=True)
    table.add_column("currency", footer="all")
    for name, title in _COLUMNS.items():
        footer = f"{evidence.figures.total(name):,}" if name in _COUNTS else ""
        table.add_column(title, footer=footer, justify="right", no_wrap=True)
    for currency, figures in evidence.figures.currencies.items():
        cells = [
            f"{getattr(figures, name):,}" if name in _COUNTS else major_units(getattr(figures, name), currency)
            for name in _COLUMNS
        ]
        table.add_row(currency, *cells)
    return table


def major_units(amount: int, currency: str) -> str:
    """`1,234.50` for 123450 USD, `1,234` for 1234 JPY."""
    decimals = exponent(currency)
    whole, fraction = divmod(amount, 10**decimals)
    return f"{whole:,}.{fraction:0{decimals}}" if decimals else f"{whole:,}"


def facts(evidence: Evidence, charged: Charged) -> Table:
    """What happened on the way."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    figures, provider = evidence.figures, evidence.provider
    faults = provider["faults"]
    asked = provider["requests"]
    rows = {
        "charges a second": f"{figures.attempts / figures.seconds:.0f} over {figures.seconds:.0f} s with all outages, "
        f"{charged.best_rate:.0f} at best",
        "provider": f"{asked:,} requests; {provider['charges']['failed']:,} declined, "
        f"{faults.get('lost_answer', 0):,} answers lost, {faults.get('in_flight_conflict', 0):,} conflicts in flight",
        "killed by SIGKILL": "; ".join(_kill(kill) for kill in evidence.kills) or "nothing",
        "leases reaped": f"{verdict.leases_reaped(evidence):,}",
        "lost answers resolved": f"{verdict.resolved(evidence):,} of {verdict.lost_answers(evidence):,}, "
        f"by {verdict.lookups(evidence):,} questions to the provider",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _kill(kill: Kill) -> str:
    back = "not back" if kill.recovered_seconds is None else f"back after {kill.recovered_seconds:.1f} s"
    return f"{kill.what} ({back})"


def closing(evidence: Evidence, checks: list[Check]) -> RenderableType:
    """The three lines, after what is wrong."""
    wrong = [Text(f"✗ {check.name}: {check.problem}", "bold red") for check in checks if check.problem]
    style = "bold red" if wrong else "bold green"
    return Group(*wrong, *(Text(line, style) for line in verdict.closing_lines(evidence)))
