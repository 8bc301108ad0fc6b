"""`billing-shards gateway …`: what each command takes. What it does is in `cli.gateway`, imported only when it runs."""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from billing_shards.cli.options import PLAIN, JsonOption, ManifestOption

app = typer.Typer(help="Payment providers.", **PLAIN)


@app.callback()
def _group() -> None:
    """Payment providers."""


@app.command("check")
def gateway_check(
    succeeds: Annotated[
        str, typer.Option("--succeeds", metavar="METHOD", help="A payment method of its sandbox that is charged at once.")
    ],
    declines: Annotated[str | None, typer.Option("--declines", metavar="METHOD", help="One that is always declined.")] = None,
    pending: Annotated[str | None, typer.Option("--pending", metavar="METHOD", help="One whose charges are pending.")] = None,
    requires_action: Annotated[
        str | None, typer.Option("--requires-action", metavar="METHOD", help="One that waits for the customer.")
    ] = None,
    currency: Annotated[str, typer.Option("--currency", metavar="CODE")] = "USD",
    amount: Annotated[int, typer.Option("--amount", min=3, metavar="MINOR", help="Of each charge, in minor units.")] = 1999,
    refunds: Annotated[bool, typer.Option("--refunds/--no-refunds", help="Whether it refunds.")] = True,
    webhook_port: Annotated[
        int | None,
        typer.Option("--webhook-port", min=1, max=65535, metavar="PORT", help="Listen here for the provider's webhooks."),
    ] = None,
    webhook_secret_file: Annotated[
        Path | None, typer.Option("--webhook-secret-file", metavar="FILE", help="What it signs them with.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Its address, where no manifest names it.")] = None,
    api_key_file: Annotated[Path | None, typer.Option("--api-key-file", metavar="FILE", help="With --url.")] = None,
    gateway: Annotated[str | None, typer.Option("--gateway", metavar="NAME", help="Which one of the manifest's.")] = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check that a provider keeps the protocol of docs/gateway-protocol.md.

    It makes some dozens of charges and refunds, so give it a sandbox's payment methods. Exit code 1: a rule is broken.
    """
    from billing_shards.cli import gateway as command
    from billing_shards.cli import source
    from billing_shards.payments.conformance.model import Trial

    trial = Trial(
        succeeds=succeeds,
        declines=declines,
        pending=pending,
        requires_action=requires_action,
        currency=currency,
        amount=amount,
        refunds=refunds,
    )
    provider = command.of_spec(source.find(manifest), gateway) if url is None else command.of_url(url, api_key_file)
    hearing = command.hearing(webhook_port, webhook_secret_file)
    return command.run(provider, trial, hearing, as_json=as_json)
