"""`billing-shards subscription …`: what each command takes. What it does is in `cli.subscription`, imported only when it runs."""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from typing import Annotated

import typer

from billing_shards.cli.options import PLAIN, ActorOption, JsonOption, ManifestOption, ReasonOption

app = typer.Typer(help="Subscriptions.", **PLAIN)

SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Its id.")]


@app.command("show")
def show(subscription: SubscriptionArgument, manifest: ManifestOption = None, as_json: JsonOption = False) -> int:
    """Show its terms, what it owes and when each of its invoices is tried again."""
    from billing_shards.cli import source
    from billing_shards.cli import subscription as command

    return command.show(source.find(manifest), subscription, as_json=as_json)


@app.command("update")
def update(
    subscription: SubscriptionArgument,
    reason: ReasonOption,
    amount: Annotated[str | None, typer.Option(metavar="AMOUNT", help="Of one period, in major units: 9.90.")] = None,
    currency: Annotated[str | None, typer.Option(metavar="CODE", help="ISO 4217; needs --amount.")] = None,
    service: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    interval: Annotated[str | None, typer.Option(metavar="INTERVAL", help="'1 month', '2 weeks', '30 days', '1 year'.")] = None,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Change its terms from the next period on.

    Periods that are invoiced stay as they are: nothing is prorated.
    """
    from billing_shards.cli import source
    from billing_shards.cli import subscription as command

    changes = {"amount": amount, "currency": currency, "service": service, "interval": interval}
    return command.update(source.find(manifest), subscription, changes, actor=actor, reason=reason, as_json=as_json)


@app.command("cancel")
def cancel(
    subscription: SubscriptionArgument,
    reason: ReasonOption,
    at_period_end: Annotated[bool, typer.Option("--at-period-end", help="When the period that runs now is over.")] = False,
    write_off: Annotated[
        bool,
        typer.Option("--write-off", help="Stop collecting what it owes: bad debt. Left out: go on collecting."),
    ] = False,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """End it, now or at the end of its period."""
    from billing_shards.cli import source
    from billing_shards.cli import subscription as command

    found = source.find(manifest)
    return command.cancel(
        found, subscription, at_period_end=at_period_end, write_off=write_off, actor=actor, reason=reason, as_json=as_json
    )


@app.command("payment-method")
def payment_method(
    subscription: SubscriptionArgument,
    method: Annotated[str, typer.Argument(metavar="TOKEN", help="The provider's token; never a card number.")],
    reason: ReasonOption,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Charge it by another payment method.

    What waits for a retry or the customer, or was given up, is tried with it at once. An open attempt keeps its method.
    """
    from billing_shards.cli import source
    from billing_shards.cli import subscription as command

    return command.payment_method(source.find(manifest), subscription, method, actor=actor, reason=reason, as_json=as_json)


@app.command("catch-up")
def catch_up(
    subscription: SubscriptionArgument,
    reason: ReasonOption,
    periods: Annotated[int | None, typer.Option(min=1, max=10_000, metavar="N", help="Invoice so many of them.")] = None,
    skip_to: Annotated[str | None, typer.Option(metavar="DATE", help="Leave out those that begin before this day.")] = None,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what becomes of the periods that a held subscription missed."""
    from billing_shards.cli import source
    from billing_shards.cli import subscription as command

    found = source.find(manifest)
    return command.catch_up(found, subscription, periods=periods, skip_to=skip_to, actor=actor, reason=reason, as_json=as_json)
