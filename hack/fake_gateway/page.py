"""The charges for the eye: grouped by what may be charged once, so that a double charge cannot be overlooked."""

import dataclasses
import html
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import iso4217

from hack.fake_gateway import parse
from hack.fake_gateway.model import ChargeStatus
from hack.fake_gateway.store import Group

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --bad: #c62828; --good: #2e7d32; --wait: #b26a00 }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1.5rem; max-width: 75rem }
h1 { font-size: 1.3rem; margin: 0 0 1rem }
.banner { padding: .7rem 1rem; border-radius: .4rem; color: #fff; font-weight: 600; margin-bottom: 1rem }
.banner a { color: #fff }
.banner.bad { background: var(--bad) } .banner.good { background: var(--good) }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 0 0 1rem }
dt { font-size: .8rem; opacity: .7 } dd { margin: 0; font-variant-numeric: tabular-nums; font-weight: 600 }
form { display: flex; flex-wrap: wrap; gap: .6rem; align-items: center; margin-bottom: 1rem }
input, select, button { font: inherit; padding: .25rem .5rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .7rem; white-space: nowrap; border-bottom: 1px solid var(--line) }
th { font-size: .8rem; opacity: .7 }
th:nth-child(5), td.number { text-align: right; font-variant-numeric: tabular-nums }
tr.group td { background: var(--soft); font-weight: 600; border-top: 2px solid var(--line) }
tbody.double tr td { background: #c6282822 } tbody.double tr.group td { background: var(--bad); color: #fff }
code { font-size: .85em }
.status { font-weight: 600 } .succeeded { color: var(--good) } .failed, .reversed { color: var(--bad) }
.pending, .requires_action { color: var(--wait) } .canceled { opacity: .7 }
nav { display: flex; gap: 1rem; margin-top: 1rem }
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the visitor asked for."""

    text: str
    status: str
    only_double: bool
    number: int

    def link(self, number: int) -> str:
        query = {"q": self.text, "status": self.status, "double": "1" if self.only_double else "", "page": str(number)}
        return "?" + urllib.parse.urlencode({name: value for name, value in query.items() if value})


def view(query: Mapping[str, str]) -> View:
    """Raises FieldError for a page or status that does not exist."""
    status = query.get("status", "")
    if status and status not in set(ChargeStatus):
        raise parse.FieldError("status", f"must be one of {', '.join(ChargeStatus)}")
    return View(
        text=query.get("q", "").strip(),
        status=status,
        only_double=query.get("double", "") == "1",
        number=parse.page_number(query.get("page", "1")),
    )


def render(view: View, groups: Sequence[Group], totals: Mapping[str, Any], *, has_more: bool) -> str:
    """A whole HTML page."""
    doubles = len(totals["double_charges"])
    title = f"{doubles} double · charges" if doubles else "Charges"
    parts = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body><h1>Fake payment provider</h1>",
        _banner(doubles),
        _totals(totals),
        _filters(view),
        _table(groups),
        _pages(view, has_more=has_more),
        "</body></html>",
    )
    return "".join(parts)


def money(amount: int, currency: str) -> str:
    """In the currency's major unit: 1234 USD is 12.34, 1234 JPY is 1,234. Unknown currencies stay in minor units."""
    try:
        exponent = iso4217.Currency(currency).exponent or 0
    except ValueError:
        return f"{amount:,} minor units {_text(currency)}"
    whole, fraction = divmod(amount, 10**exponent)
    decimals = f".{fraction:0{exponent}}" if exponent else ""
    return f"{whole:,}{decimals} {currency}"


def _text(value: object) -> str:
    return html.escape(str(value))


def _banner(doubles: int) -> str:
    if not doubles:
        return '<p class="banner good">No double charge.</p>'
    noun = "double charge" if doubles == 1 else "double charges"
    return f'<p class="banner bad">{doubles:,} {noun}. <a href="?double=1">Show only these</a></p>'


def _totals(totals: Mapping[str, Any]) -> str:
    figures = {status.replace("_", " "): f"{count:,}" for status, count in sorted(totals["charges"].items())}
    for currency, figure in sorted(totals["succeeded_by_currency"].items()):
        figures[f"{currency}, {figure['count']:,} charges"] = money(figure["amount"], currency)
    for kind, times in sorted(totals["faults"].items()):
        figures[f"fault: {kind.replace('_', ' ')}"] = f"{times:,}"
    entries = "".join(f"<div><dt>{_text(name)}</dt><dd>{figure}</dd></div>" for name, figure in figures.items())
    return f"<dl>{entries}</dl>"


def _filters(view: View) -> str:
    options = "".join(_option(status, view.status) for status in ("", *ChargeStatus))
    checked = " checked" if view.only_double else ""
    return (
        f'<form><input name="q" value="{_text(view.text)}" placeholder="reference, method or charge id" size="36">'
        f'<select name="status" aria-label="status">{options}</select>'
        f'<label><input type="checkbox" name="double" value="1"{checked}> only double charges</label>'
        '<button>Filter</button> <a href="?">all</a></form>'
    )


def _option(status: str, chosen: str) -> str:
    selected = " selected" if status == chosen else ""
    return f'<option value="{status}"{selected}>{status.replace("_", " ") or "any status"}</option>'


def _table(groups: Sequence[Group]) -> str:
    if not groups:
        return "<p>No charges here.</p>"
    names = ("Reference", "Charge", "Status", "Decline", "Amount", "Payment method", "Created")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{"".join(map(_group, groups))}</table></div>'


def _group(group: Group) -> str:
    double = group.succeeded > 1
    note = f"charged {group.succeeded} times" if double else _counted(group.charges)
    head = f'<tr class="group"><td>{_text(group.name)}</td><td colspan="6">{note}</td></tr>'
    css = ' class="double"' if double else ""
    return f"<tbody{css}>{head}{''.join(map(_charge, group.charges))}</tbody>"


def _counted(charges: Iterable[object]) -> str:
    count = len(list(charges))
    return "1 charge" if count == 1 else f"{count} charges"


def _charge(charge: Mapping[str, Any]) -> str:
    status, failure = charge["status"], charge["failure"]
    return (
        f"<tr><td>{_text(charge['reference'])}</td><td><code>{_text(charge['id'])}</code></td>"
        f'<td class="status {status}">{status.replace("_", " ")}</td>'
        f"<td>{_text(failure['decline_code']) if failure else ''}</td>"
        f'<td class="number">{money(charge["amount"], charge["currency"])}</td>'
        f"<td>{_text(charge['payment_method'])}</td><td>{_text(charge['created'])}</td></tr>"
    )


def _pages(view: View, *, has_more: bool) -> str:
    earlier = f'<a href="{_text(view.link(view.number - 1))}">← previous</a>' if view.number > 1 else ""
    later = f'<a href="{_text(view.link(view.number + 1))}">next →</a>' if has_more else ""
    return f"<nav>{earlier}<span>page {view.number}</span>{later}</nav>"
