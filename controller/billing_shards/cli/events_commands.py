"""`billing-shards events …`: what each command takes. What it does is in `cli.events`, imported only when it runs."""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from typing import Annotated

import typer

from billing_shards.cli.options import PLAIN, ActorOption, JsonOption, ManifestOption, ReasonOption

app = typer.Typer(help="Events: what the broker does not take.", **PLAIN)

EventsArgument = Annotated[list[str], typer.Argument(metavar="EVENT...", help="SHARD/NUMBER, one or several.")]


@app.command("blocked")
def list_blocked(
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Of each database.")] = 100,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """List events that the broker does not take.

    Later events of the same subscription wait behind each; all others go on.
    """
    from billing_shards.cli import events, source

    return events.show_blocked(source.find(manifest), limit=limit, as_json=as_json)


@app.command("retry")
def retry_events(
    event: EventsArgument,
    reason: ReasonOption,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Try blocked events again at once, without waiting for their time."""
    from billing_shards.cli import events, source

    return events.retry(source.find(manifest), event, actor=actor, reason=reason, as_json=as_json)


@app.command("skip")
def skip_events(
    event: EventsArgument,
    reason: ReasonOption,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Never send these blocked events, and let those behind them go on.

    Consumers see a number that is missing.
    """
    from billing_shards.cli import events, source

    return events.skip(source.find(manifest), event, actor=actor, reason=reason, as_json=as_json)
