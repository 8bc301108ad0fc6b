"""`jobs`: look for jobs, tell one's story, and act upon them by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from billing_shards.accounts.money import format_amount
from billing_shards.cli import acting, invoice, output
from billing_shards.cli.codes import ExitCode
from billing_shards.cli.source import Source
from billing_shards.errors import InvalidInput, NotFound
from billing_shards.jobs import inspect, store
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.manual import Verb
from billing_shards.jobs.model import Lane, Status, known_due
from billing_shards.payments import manual
from billing_shards.shards.model import shard_of
from billing_shards.shards.transactions import ShardRouter

Row = Mapping[str, Any]

_BY_ID = re.compile(r"([0-9]{1,5})/([0-9]{1,18})")
_UNFINISHED = (Status.READY, Status.PROCESSING, Status.AWAITING_CUSTOMER, Status.REVIEW)
_SAID = {
    Verb.RETRY: "due now",
    Verb.RELEASE: "taken back",
    Verb.SET_ASIDE: "set aside",
    Verb.CLOSE_ATTEMPT: "attempt closed, due now",
}


def parse(text: str, shard_count: int) -> tuple[int, int]:
    """Read `SHARD/ID`. Raises `InvalidInput`."""
    found = _BY_ID.fullmatch(text)
    if found is None:
        raise InvalidInput("JOB", f"{text} is not of the form SHARD/ID")
    shard = int(found[1])
    if shard >= shard_count:
        raise InvalidInput("JOB", f"shard {shard} is not below shardCount {shard_count}")
    return shard, int(found[2])


def name_of(status: Status) -> str:
    """As it is written on the command line: `awaiting-customer`."""
    return status.name.lower().replace("_", "-")


def _statuses(names: Sequence[str] | None) -> tuple[Status, ...]:
    known = {name_of(status): status for status in Status}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise InvalidInput("--status", f"{unknown[0]} is none of {', '.join(known)}")
    return tuple(known[name] for name in names or ()) or _UNFINISHED


def _only(lane: str | None, in_use: Sequence[int], lanes: Lanes) -> list[Lane]:
    """The lanes that are asked for: all, or those of a label or a number."""
    everyone = {Lane(number) for number in in_use} | set(lanes)
    if lane is None:
        return sorted(everyone)
    found = [one for one in everyone if lane in (lanes.label(one), str(int(one)))]
    if not found:
        raise InvalidInput("--lane", f"{lane} is none of {', '.join(lanes.label(one) for one in sorted(everyone))}")
    return found


def show_list(
    source: Source,
    *,
    statuses: Sequence[str] | None,
    lane: str | None,
    shard: int | None,
    subscription: str | None,
    limit: int,
    as_json: bool,
) -> int:
    """Print jobs by when they are due. Raises `InvalidInput`, `DatabaseError`s."""
    wanted, lanes = _statuses(statuses), Lanes(source.spec)
    if shard is not None and shard >= source.spec.shard_count:
        raise InvalidInput("--shard", f"{shard} is not below shardCount {source.spec.shard_count}")
    if subscription is not None and shard not in (None, shard_of(subscription, source.spec.shard_count)):
        raise InvalidInput("--shard", f"{shard} does not have subscription {subscription}")
    with source.router(pool_size=1) as router:
        rows = _find(router, source, wanted, lanes, lane, shard, subscription, limit)
    if as_json:
        output.print_json({"jobs": [document(row, lanes) for row in rows]})
    else:
        _print_list(rows, lanes, limit)
    return ExitCode.OK


def _find(
    router: ShardRouter,
    source: Source,
    statuses: tuple[Status, ...],
    lanes: Lanes,
    lane: str | None,
    shard: int | None,
    subscription: str | None,
    limit: int,
) -> list[Row]:
    if subscription is not None:
        shard = shard_of(subscription, source.spec.shard_count)
    shards = list(range(source.spec.shard_count)) if shard is None else [shard]
    groups = router.by_database(shards)
    in_use: set[int] = set()
    for database, mine in groups.items():
        with router.connect(database) as connection:
            in_use.update(store.lanes_in_use(connection, mine))
    only = _only(lane, sorted(in_use), lanes)
    rows: list[Row] = []
    for database, mine in groups.items():
        with router.connect(database) as connection:
            if subscription is None:
                rows += inspect.find(connection, mine, lanes=only, statuses=statuses, limit=limit)
            else:
                rows += inspect.of_subscription(connection, mine[0], subscription, lanes=only, statuses=statuses, limit=limit)
    return sorted(rows, key=lambda row: (row["due_at"], row["shard_id"], row["id"]))[:limit]


def document(row: Row, lanes: Lanes) -> dict[str, Any]:
    """A job as JSON: amounts in minor units, status and lane by name."""
    job = {name: value for name, value in row.items() if name != "now"}
    names = {"status": name_of(row["status"]), "lane": lanes.label(row["lane"])}
    return {**job, **names, "due_at": known_due(row["due_at"]), "attempt_open": bool(row["attempt_open"])}


def _print_list(rows: Sequence[Row], lanes: Lanes, limit: int) -> None:
    if not rows:
        output.print_line("no such jobs")
        return
    cells = [
        (
            f"{row['shard_id']}/{row['id']}",
            name_of(row["status"]),
            lanes.label(row["lane"]),
            "" if (due := known_due(row["due_at"])) is None else output.moment(due),
            row["subscription_id"],
            f"{row['shard_id']}/{row['invoice_id']}",
            format_amount(row["amount"], row["currency"]),
            row["attempt_no"],
            waits_for(row),
        )
        for row in rows
    ]
    columns = ["job", "status", "lane", "due (UTC)", "subscription", "invoice", "amount", "attempts", "waits for"]
    output.print_table(columns, cells, right=["amount", "attempts"])
    if len(rows) == limit:
        output.print_line(f"the first {limit}; --limit shows more")


def waits_for(row: Row) -> str:
    """What comes next, and what there is to know about it."""
    due: float = (row["due_at"] - row["now"]).total_seconds()
    look = "a look at its open attempt" if row["attempt_open"] else "an attempt"
    lost = f"; lost {row['lost_leases']} workers" if row["lost_leases"] else ""
    match row["status"]:
        case Status.READY:
            when = f"in {output.age(due)}" if due > 0 else f"overdue for {output.age(-due)}"
            return f"{look}, {when}{lost}"
        case Status.PROCESSING:
            return f"its worker, {f'{output.age(due)} left' if due > 0 else f'whose lease ended {output.age(-due)} ago'}{lost}"
        case Status.AWAITING_CUSTOMER:
            return "the customer" if known_due(row["due_at"]) is None else f"the customer; a look in {output.age(due)}"
        case Status.REVIEW:
            why = "its attempt's outcome is unknown" if row["attempt_open"] else "it was set aside"
            return f"a person: {why}{lost}"
        case _:
            return "nothing"


def show(source: Source, text: str, *, as_json: bool) -> int:
    """Print a job and its invoice's story. Raises `InvalidInput`, `NotFound`, `DatabaseError`s."""
    shard, number = parse(text, source.spec.shard_count)
    lanes = Lanes(source.spec)
    with source.router(pool_size=1) as router:
        with router.read(shard) as connection:
            row = inspect.one(connection, shard, number)
        if row is None:
            raise NotFound(f"job {text}: is not there; one that finished long ago is deleted, its invoice tells of it")
        facts = invoice.read(router, invoice.Which(shard=shard, id=row["invoice_id"]))
    if as_json:
        story = {} if facts is None else {name: value for name, value in invoice.document(facts).items() if name != "job"}
        output.print_json({"job": document(row, lanes), **story})
        return ExitCode.OK
    output.print_line(f"job {text}: {name_of(row['status'])}, lane {lanes.label(row['lane'])}", "bold")
    output.print_line(f"waits for {waits_for(row)}; {row['attempt_no']} attempts, {row['checks']} looks at the last one")
    if facts is not None:
        invoice.print_story(facts)
    return ExitCode.OK


def act(source: Source, texts: Sequence[str], verb: Verb, *, actor: str | None, reason: str, as_json: bool) -> int:
    """Act upon each job in turn, up to the first that cannot be. Raises `InvalidInput`, `NotFound`, `NotPossible`."""
    who = acting.actor(actor)
    jobs = [parse(text, source.spec.shard_count) for text in texts]
    done: list[dict[str, Any]] = []
    try:
        with source.router(pool_size=1) as router:
            for shard, number in jobs:
                result = manual.act(router, shard, number, verb, actor=who, reason=reason)
                done.append({"shard_id": shard, "id": number, "before": result.before, "after": result.after})
                if not as_json:
                    output.print_line(f"job {shard}/{number}: {_SAID[verb]}")
    finally:
        if as_json:
            output.print_json({"jobs": done})
    return ExitCode.OK
