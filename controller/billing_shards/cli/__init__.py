"""The command line `billing-shards`: for a person at a terminal, for scripts, and as the entry point of the pods.

Each command says what it takes here; what it does is in a module of its own, imported only when it runs, so that `--help` is
quick.
"""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from billing_shards.cli.codes import TEXT, ExitCode, code_of
from billing_shards.cli.events_commands import app as events_app
from billing_shards.cli.gateway_commands import app as gateway_app
from billing_shards.cli.jobs_commands import app as jobs_app
from billing_shards.cli.options import PLAIN, ActorOption, JsonOption, ManifestOption, ReasonOption
from billing_shards.cli.subscription_commands import app as subscription_app
from billing_shards.errors import BillingShardsError


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("billing-shards"))
        raise typer.Exit


app = typer.Typer(name="billing-shards", help="Subscription billing on sharded MySQL.", epilog=TEXT, **PLAIN)
schema_app = typer.Typer(help="The tables of each database.", **PLAIN)
invoice_app = typer.Typer(help="Invoices.", **PLAIN)


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")] = False,
) -> None:
    pass


app.add_typer(schema_app, name="schema")
app.add_typer(invoice_app, name="invoice")
app.add_typer(jobs_app, name="jobs")
app.add_typer(subscription_app, name="subscription")
app.add_typer(gateway_app, name="gateway")
app.add_typer(events_app, name="events")

DatabaseOption = Annotated[
    list[str] | None, typer.Option("--database", metavar="NAME", help="Only this database; may be given several times.")
]


@schema_app.command("upgrade")
def schema_upgrade(database: DatabaseOption = None, manifest: ManifestOption = None, as_json: JsonOption = False) -> int:
    """Create or upgrade the tables.

    The application's user is also given its rights.

    With --manifest and without --database, the shards are also placed on databases none of which was ever set up.
    """
    from billing_shards.cli import schema, source

    return schema.upgrade(source.find(manifest), database, place=manifest is not None, as_json=as_json)


@schema_app.command("status")
def schema_status(manifest: ManifestOption = None, as_json: JsonOption = False) -> int:
    """Show each database's revision."""
    from billing_shards.cli import schema, source

    return schema.status(source.find(manifest), as_json=as_json)


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file of subscriptions; see docs/cli.md for its columns.")],
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Import the other rows of a file with wrong ones.")
    ] = False,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Import subscriptions from CSV.

    A file with a wrong row imports nothing, unless --skip-invalid. Run again, it imports what is not there yet.
    """
    from billing_shards.cli import imports, source

    return imports.run(source.find(manifest), file, skip_invalid=skip_invalid, as_json=as_json)


@app.command("status")
def show_status(
    shards: Annotated[bool, typer.Option("--shards", help="One line a shard instead of one a range.")] = False,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show shards and what waits on them."""
    from billing_shards.cli import source, status

    return status.show(source.find(manifest), each=shards, as_json=as_json)


@invoice_app.command("show")
def show_invoice(
    which: Annotated[
        str,
        typer.Argument(metavar="INVOICE", help="SHARD/ID, SUBSCRIPTION (its latest), or SUBSCRIPTION@DAY (the one of that day)."),
    ],
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Tell the whole story of one invoice.

    Attempts, ledger entries and events in one order of time, and what comes next.
    """
    from billing_shards.cli import invoice, source

    return invoice.show(source.find(manifest), which, as_json=as_json)


@invoice_app.command("recheck")
def recheck_invoice(
    which: Annotated[str, typer.Argument(metavar="INVOICE", help="As for invoice show.")],
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Ask the provider whether the charge of a paid invoice still stands.

    Where the bank took it back and no webhook told of it, the payment is reversed: the invoice is open again.
    """
    from billing_shards.cli import recheck, source

    return recheck.run(source.find(manifest), which, as_json=as_json)


@invoice_app.command("close-refund")
def close_refund(
    which: Annotated[str, typer.Argument(metavar="REFUND", help="SHARD/INVOICE/rNUMBER, as invoice show has it.")],
    reason: ReasonOption,
    made: Annotated[
        str | None, typer.Option("--made", metavar="PROVIDER_REF", help="It was made, and the provider calls it so.")
    ] = None,
    not_made: Annotated[bool, typer.Option("--not-made", help="No money went.")] = False,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what became of a refund in review.

    For where the provider cannot tell any more, and a person knows it otherwise. It is booked as if the provider had said so.
    """
    from billing_shards.cli import refund, source

    found = source.find(manifest)
    return refund.close(found, which, made=made, not_made=not_made, actor=actor, reason=reason, as_json=as_json)


@app.command("refund")
def make_refund(
    which: Annotated[str, typer.Argument(metavar="INVOICE", help="As for invoice show.")],
    reason: ReasonOption,
    amount: Annotated[
        str | None, typer.Option("--amount", metavar="AMOUNT", help="E.g. 3.00, in its currency. Left out: all that is left.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="The same key is the same refund. Left out: a new one.")
    ] = None,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Give back money of a paid invoice.

    It is written down now, and sent by the housekeeper to the provider that took the money. Never more than was paid in all.
    """
    from billing_shards.cli import refund, source

    found = source.find(manifest)
    return refund.run(found, which, amount=amount, key=key, actor=actor, reason=reason, as_json=as_json)


@app.command("audit")
def run_audit(
    provider_charges: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="The provider's list of charges, one JSON object a line (id, reference, status, amount, currency); - is stdin.",
        ),
    ] = None,
    margin_seconds: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="How late a lease or a period may be before it counts as stuck.")
    ] = 900,
    examples: Annotated[int, typer.Option(min=0, metavar="N", help="Offenders shown of each rule.")] = 10,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Prove that all is whole and charged once.

    Every rule is checked on every shard, each shard in one snapshot of it, while claimers go on working.
    """
    from billing_shards.cli import audit, source

    found = source.find(manifest)
    return audit.run(found, provider_charges, margin_seconds=margin_seconds, examples_max=examples, as_json=as_json)


@app.command("claimer")
def run_claimer() -> int:
    """Run a pod's claimer until SIGTERM.

    It claims due jobs, charges them and settles them.
    """
    from billing_shards import claimer
    from billing_shards.cli import source

    return claimer.main(source.settings())


@app.command("housekeeper")
def run_housekeeper() -> int:
    """Run a pod's housekeeper until SIGTERM.

    It writes the invoices and jobs of periods that begin.
    """
    from billing_shards import housekeeper
    from billing_shards.cli import source

    return housekeeper.main(source.settings())


@app.command("run")
def run_all(
    manifest: Annotated[
        Path,
        typer.Option("--manifest", envvar="BILLING_SHARDS_MANIFEST", metavar="FILE", help="A BillingShardSet and its Secrets."),
    ],
) -> int:
    """Run all of it here, without a cluster.

    Scheduler, claimer and housekeeper work in this process until Ctrl-C or SIGTERM.
    """
    from billing_shards import run
    from billing_shards.cli import source

    return run.main(manifest, source.settings())


@app.command("bench")
def run_bench(
    manifest: Annotated[
        Path,
        typer.Option("--manifest", envvar="BILLING_SHARDS_MANIFEST", metavar="FILE", help="A set whose databases are empty."),
    ],
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Due jobs to fill in.")] = 100_000,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="Claimers that drain them.")] = 2,
    over_http: Annotated[bool, typer.Option("--over-http", help="Charge through the provider of the manifest.")] = False,
) -> int:
    """Measure how fast due jobs are drained.

    The databases of the manifest, which must be empty, are filled with due jobs, and drained durably, charging at an instant
    provider.
    The last line is the result as JSON.
    """
    from billing_shards import bench

    typer.echo(bench.as_json(bench.drain(manifest, jobs=jobs, processes=processes, over_http=over_http)))
    return ExitCode.OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. No expected error shows a traceback."""
    try:
        code = app(args=arguments, prog_name="billing-shards", standalone_mode=False)
    except typer.TyperException as error:  # wrong usage
        text = error.format_message()
        if "\n" in text:  # the help, where no command was given
            sys.stderr.write(text + "\n")
        else:
            _print_error(text)
        return ExitCode.BAD_INPUT
    except BillingShardsError as error:
        _print_error(str(error))
        return code_of(error)
    except Exception:  # noqa: BLE001 - 1 would say that an audit found problems
        traceback.print_exc()
        return ExitCode.CRASHED
    return code if isinstance(code, int) else ExitCode.OK


def _print_error(text: str) -> None:
    from billing_shards.cli import output

    output.print_error(text)
