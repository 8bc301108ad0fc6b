"""`billing-shards jobs …`: what each command takes. What it does is in `cli.jobs`, imported only when it runs."""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from typing import Annotated, Any

import typer

from billing_shards.cli.options import PLAIN, ActorOption, JsonOption, ManifestOption, ReasonOption

app = typer.Typer(help="Jobs: what waits to be charged.", **PLAIN)


@app.command("list")
def list_jobs(
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help="ready, processing, awaiting-customer, review, succeeded or failed; may be given several times. "
            "Left out: the first four.",
        ),
    ] = None,
    lane: Annotated[
        str | None, typer.Option(metavar="LANE", help="renewal, retry, a service, 'SERVICE retry', or a number.")
    ] = None,
    shard: Annotated[int | None, typer.Option(min=0, metavar="SHARD")] = None,
    subscription: Annotated[str | None, typer.Option(metavar="ID")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Jobs shown, those that are due first.")] = 50,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """List jobs by when they are due."""
    from billing_shards.cli import jobs, source

    which: dict[str, Any] = {"statuses": status, "lane": lane, "shard": shard, "subscription": subscription, "limit": limit}
    return jobs.show_list(source.find(manifest), **which, as_json=as_json)


@app.command("show")
def show_job(
    job: Annotated[str, typer.Argument(metavar="JOB", help="SHARD/ID.")],
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show a job, what it waits for, and its invoice's story."""
    from billing_shards.cli import jobs, source

    return jobs.show(source.find(manifest), job, as_json=as_json)


JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB...", help="SHARD/ID, one or several.")]


@app.command("retry")
def retry_jobs(
    job: JobsArgument,
    reason: ReasonOption,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make jobs due now, whatever they wait for.

    An attempt whose outcome is unknown is asked for first, and never begun anew. The invoice of a failed job is owed again.
    """
    from billing_shards.cli import jobs, source
    from billing_shards.jobs.manual import Verb

    return jobs.act(source.find(manifest), job, Verb.RETRY, actor=actor, reason=reason, as_json=as_json)


@app.command("release")
def release_jobs(
    job: JobsArgument,
    reason: ReasonOption,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Take jobs back from a dead worker now.

    Without it they come back when their leases end. A worker that lives finds its lease lost and writes nothing.
    """
    from billing_shards.cli import jobs, source
    from billing_shards.jobs.manual import Verb

    return jobs.act(source.find(manifest), job, Verb.RELEASE, actor=actor, reason=reason, as_json=as_json)


@app.command("set-aside")
def set_jobs_aside(
    job: JobsArgument,
    reason: ReasonOption,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Leave jobs to a person: nothing is tried until they are retried."""
    from billing_shards.cli import jobs, source
    from billing_shards.jobs.manual import Verb

    return jobs.act(source.find(manifest), job, Verb.SET_ASIDE, actor=actor, reason=reason, as_json=as_json)


@app.command("close-attempt")
def close_attempts(
    job: JobsArgument,
    reason: ReasonOption,
    actor: ActorOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say that the open attempts of jobs in review took no money.

    For where the provider cannot tell any more, and a person knows it otherwise. A new attempt, under a new key, is due now: a
    wrong word charges the customer twice.
    """
    from billing_shards.cli import jobs, source
    from billing_shards.jobs.manual import Verb

    return jobs.act(source.find(manifest), job, Verb.CLOSE_ATTEMPT, actor=actor, reason=reason, as_json=as_json)
