"""`events`: what the broker does not take, and what a person does about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from billing_shards.cli import acting, output
from billing_shards.cli.codes import ExitCode
from billing_shards.cli.source import Source
from billing_shards.errors import InvalidInput
from billing_shards.outbox import manual, store
from billing_shards.shards.transactions import ShardRouter

_BY_NUMBER = re.compile(r"([0-9]{1,5})/([0-9]{1,18})")
_COLUMNS = ("event", "type", "subscription", "problem", "details", "tried", "since", "next try", "waiting")

Act = Callable[[ShardRouter, int, int], object]


def parse(text: str, shard_count: int) -> tuple[int, int]:
    """Read `SHARD/NUMBER`. Raises `InvalidInput`."""
    found = _BY_NUMBER.fullmatch(text)
    if found is None:
        raise InvalidInput("EVENT", f"{text} is not of the form SHARD/NUMBER")
    shard = int(found[1])
    if shard >= shard_count:
        raise InvalidInput("EVENT", f"shard {shard} is not below shardCount {shard_count}")
    return shard, int(found[2])


def show_blocked(source: Source, *, limit: int, as_json: bool) -> int:
    """Print what is blocked, the oldest first. Raises `DatabaseError`s."""
    rows: list[Mapping[str, Any]] = []
    with source.router(pool_size=1) as router:
        for database, shards in router.by_database(range(source.spec.shard_count)).items():
            with router.connect(database) as connection:
                rows += store.blocked(connection, shards, limit)
    rows.sort(key=lambda row: row["since"])
    if as_json:
        output.print_json({"blocked": rows})
    else:
        output.print_table(_COLUMNS, [_line(row) for row in rows], right=("tried", "waiting"))
    return ExitCode.OK


def _line(row: Mapping[str, Any]) -> Sequence[object]:
    name = f"{row['shard_id']}/{row['event_id']}"
    rest = ("type", "subscription_id", "problem", "details", "failures", "since", "next_try_at", "waiting")
    return (name, *(row[column] for column in rest))


def skip(source: Source, events: Sequence[str], *, actor: str | None, reason: str, as_json: bool) -> int:
    """Skip each in turn, up to the first that is refused. Raises `InvalidInput`, `NotFound`, `NotPossible`, `DatabaseError`s."""
    who = acting.actor(actor)
    return _each(source, events, partial(manual.skip, actor=who, reason=reason), said="skipped", as_json=as_json)


def retry(source: Source, events: Sequence[str], *, actor: str | None, reason: str, as_json: bool) -> int:
    """Have each tried at once, up to the first that is refused. Raises what `skip` raises."""
    who = acting.actor(actor)
    return _each(source, events, partial(manual.retry, actor=who, reason=reason), said="tried at once", as_json=as_json)


def _each(source: Source, events: Sequence[str], act: Act, *, said: str, as_json: bool) -> int:
    named = [parse(text, source.spec.shard_count) for text in events]
    with source.router(pool_size=1) as router:
        for shard, number in named:
            act(router, shard, number)
            if not as_json:
                output.print_line(f"event {shard}/{number}: {said}")
    if as_json:
        output.print_json({"events": [f"{shard}/{number}" for shard, number in named], "result": said})
    return ExitCode.OK
