"""`audit`: proves that what is written is whole, and compares it with the provider's list."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from billing_shards.accounts.money import format_amount
from billing_shards.audit.auditor import audit, server_time
from billing_shards.audit.charges import read_charges
from billing_shards.audit.model import AuditReport, ProviderCharge
from billing_shards.cli import output
from billing_shards.cli.codes import ExitCode
from billing_shards.cli.source import Source
from billing_shards.errors import InvalidInput

_OPTION = "--provider-charges"
_ANSWER_SECONDS = 60
_BLOCK = 1 << 16


def run(source: Source, provider_charges: str | None, *, margin_seconds: int, examples_max: int, as_json: bool) -> int:
    """Audit, print the report, and tell by the exit code whether it is clean."""
    with source.router() as router, output.progress("shards") as on_progress:
        report = audit(
            router,
            source.spec,
            provider_charges=None if provider_charges is None else _charges(source, provider_charges),
            listed_at=server_time(router) if provider_charges is not None and _is_url(provider_charges) else None,
            on_progress=on_progress,
            margin_seconds=margin_seconds,
            examples_max=examples_max,
        )
    if as_json:
        output.print_json(document(report))
    else:
        _print(report)
    return ExitCode.OK if report.clean else ExitCode.PROBLEMS


def _is_url(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _charges(source: Source, place: str) -> Iterator[ProviderCharge]:
    """The provider's list, read as it is asked for."""
    try:
        with _opened(source, place) as lines:
            yield from read_charges(lines)
    except (OSError, HTTPException, ValueError) as error:
        raise InvalidInput(_OPTION, f"{place} cannot be read ({error or type(error).__name__})") from error


@contextmanager
def _opened(source: Source, place: str) -> Iterator[Iterable[bytes]]:
    if place == "-":
        yield sys.stdin.buffer
    elif _is_url(place):
        with urllib.request.urlopen(_request(source, place), timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 - HTTP alone
            yield _lines(answer)
    else:
        with Path(place).open("rb") as file:
            yield file


def _request(source: Source, url: str) -> urllib.request.Request:
    """The API key goes to the provider's own address alone, and never along with a redirect."""
    request = urllib.request.Request(url, headers={"Accept": "application/x-ndjson"})  # noqa: S310 - HTTP alone
    gateway = source.spec.gateway
    asked, own = urlsplit(url), urlsplit(gateway.url)
    if gateway.api_key_secret is not None and (asked.scheme, asked.netloc) == (own.scheme, own.netloc):
        key = source.secrets.value(gateway.api_key_secret.name, "apiKey")
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    return request


def _lines(answer: HTTPResponse) -> Iterator[bytes]:
    """The lines of an answer. Its own iteration would take a connection that broke off for the end of the list."""
    rest = b""
    while block := answer.read(_BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if answer.length:
        raise IncompleteRead(rest, answer.length)
    yield rest


def document(report: AuditReport) -> dict[str, Any]:
    """The report as JSON; amounts in minor units."""
    provider = report.provider
    return {
        "clean": report.clean,
        "problems": report.problems,
        "shards": report.shards,
        "rows": dict(report.sizes),
        "balances": [
            {"currency": currency, "accounts": sort, "balance": balance}
            for (currency, sort), balance in sorted(report.balances.items())
        ],
        "rules": [
            {
                "name": result.rule.name,
                "says": result.rule.says,
                "offenders": result.offenders,
                "examples": [dict(example.where) for example in result.examples],
            }
            for result in report.rules
        ],
        "provider": provider
        and {
            "charges": provider.charges,
            "double_charges": provider.double,
            "missing_charges": provider.missing,
            "in_doubt": provider.in_doubt,
            "after_the_list": provider.too_new,
        },
    }


def _print(report: AuditReport) -> None:
    for result in report.rules:
        if result.offenders:
            output.print_line(f"FAIL  {result.rule.name}: {result.offenders} break the rule: {result.rule.says}", "bold red")
            for example in result.examples:
                output.print_line(f"        {output.where(example.where)}")
            if result.offenders > len(result.examples):
                output.print_line(f"        … and {result.offenders - len(result.examples)} more")
        else:
            output.print_line(f"ok    {result.rule.name}: {result.rule.says}")
    sizes = ", ".join(f"{count} {name}" for name, count in report.sizes.items())
    output.print_line(f"rows: {sizes} on {report.shards} shards")
    for (currency, sort), balance in sorted(report.balances.items()):
        output.print_line(f"balance: {output.visible(sort)} {_amount(balance, currency)}")
    _print_provider(report)
    output.print_line("audit: clean" if report.clean else f"audit: {report.problems} problems", "bold")


def _amount(amount: int, currency: str) -> str:
    try:
        return format_amount(amount, currency)
    except InvalidInput:  # an audit meets what should not be there
        return f"{amount} {output.visible(currency)}"


def _print_provider(report: AuditReport) -> None:
    provider = report.provider
    if provider is None:
        output.print_line("double charges: not checked (no provider's list)")
        output.print_line("missing charges: not checked (no provider's list)")
        return
    output.print_line(f"provider's charges: {provider.charges}")
    output.print_line(f"in doubt: {provider.in_doubt}")
    if provider.too_new:
        output.print_line(f"after the list: {provider.too_new}")
    output.print_line(f"double charges: {provider.double}")
    output.print_line(f"missing charges: {provider.missing}")
