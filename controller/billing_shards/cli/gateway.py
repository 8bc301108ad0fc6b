"""`billing-shards gateway check`: does a provider keep the protocol? For its team, and for whoever is about to trust it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from billing_shards.cli import output, source
from billing_shards.cli.codes import ExitCode
from billing_shards.errors import InvalidInput
from billing_shards.payments.conformance.model import Result, Trial, Verdict
from billing_shards.payments.conformance.run import check
from billing_shards.payments.conformance.webhooks import Listener

_MARK = {Verdict.KEPT: "ok  ", Verdict.BROKEN: "FAIL", Verdict.SKIPPED: "skip"}
_STYLE = {Verdict.KEPT: "", Verdict.BROKEN: "bold red", Verdict.SKIPPED: "dim"}
_AMOUNT_MIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Where it is, and the key to its door."""

    url: str
    api_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """Where its webhooks are listened for, and what signs them."""

    port: int
    secret: bytes


def of_url(url: str, api_key_file: Path | None) -> Provider:
    """A provider that no shard set knows. Raises `InvalidInput`."""
    if not url.startswith(("http://", "https://")):
        raise InvalidInput("--url", "must begin with http:// or https://")
    return Provider(url=url, api_key=None if api_key_file is None else _secret(api_key_file))


def hearing(port: int | None, secret_file: Path | None) -> Hearing | None:
    """Where to listen for webhooks; None: nowhere. Raises `InvalidInput`."""
    if port is None:
        return None
    if secret_file is None:
        raise InvalidInput("--webhook-secret-file", "is needed with --webhook-port")
    return Hearing(port=port, secret=_secret(secret_file).encode())


def _secret(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError) as error:
        raise InvalidInput(str(file), f"cannot be read ({type(error).__name__})") from error


def of_spec(found: source.Source, name: str | None) -> Provider:
    """A provider of a shard set: `gateway`, or the one of this name. Raises `InvalidInput`."""
    listed = {gateway.name: gateway for gateway in found.spec.all_gateways}
    spec = found.spec.gateway if name is None else listed.get(name)
    if spec is None:
        raise InvalidInput("--gateway", f"spec lists no gateway {name!r}")
    if spec.type != "http":
        raise InvalidInput("--gateway", f"{spec.name} speaks {spec.type}, not the protocol that is checked here")
    secret = spec.api_key_secret
    return Provider(url=spec.url, api_key=None if secret is None else found.secrets.value(secret.name, "apiKey"))


def run(provider: Provider, trial: Trial, hear: Hearing | None = None, *, as_json: bool) -> int:
    """Try every rule and report each. Raises `InvalidInput`."""
    if trial.amount < _AMOUNT_MIN:
        raise InvalidInput("--amount", f"must be {_AMOUNT_MIN} minor units at the least")
    results = asyncio.run(_run(provider, trial, hear, as_json=as_json))
    counts = Counter(result.verdict for result in results)
    if as_json:
        output.print_json(_document(results))
    else:
        output.print_line(", ".join(f"{verdict.value}: {counts[verdict]}" for verdict in Verdict), "bold")
    return ExitCode.PROBLEMS if counts[Verdict.BROKEN] else ExitCode.OK


async def _run(provider: Provider, trial: Trial, hear: Hearing | None, *, as_json: bool) -> list[Result]:
    if hear is None:
        return await _check(provider, trial, as_json=as_json)
    listener = Listener(hear.secret)
    try:
        async with listener.serve(hear.port):
            return await _check(provider, replace(trial, listener=listener), as_json=as_json)
    except OSError as error:
        raise InvalidInput("--webhook-port", f"cannot be listened on ({error.strerror})") from error


async def _check(provider: Provider, trial: Trial, *, as_json: bool) -> list[Result]:
    results = []
    async for result in check(provider.url, provider.api_key, trial):
        results.append(result)
        if not as_json:
            _print(result)
    return results


def _print(result: Result) -> None:
    output.print_line(f"{_MARK[result.verdict]}  {result.rule}: {output.visible(result.says)}", _STYLE[result.verdict])
    if result.detail:
        output.print_line(f"        {output.visible(result.detail)}")


def _document(results: list[Result]) -> dict[str, Any]:
    return {
        "rules": [
            {"name": result.rule, "says": result.says, "verdict": result.verdict.value, "detail": result.detail}
            for result in results
        ]
    }
