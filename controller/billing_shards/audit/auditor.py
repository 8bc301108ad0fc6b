"""The audit itself: every rule on every shard, a few shards at a time, with memory that does not grow with the rows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Connection

from billing_shards.audit import decide, rules, store
from billing_shards.audit.charges import ChargeList
from billing_shards.audit.model import Attempt, AuditReport, Findings, Offender, ProviderCharge, ProviderResult, RuleResult
from billing_shards.db import translated
from billing_shards.errors import ShardUnknown
from billing_shards.settings import ShardSetSpec
from billing_shards.shards.store import read_owners
from billing_shards.shards.transactions import ShardRouter

OnProgress = Callable[[int, int], None]
"""Called with (shards done, shards in all)."""

MARGIN_SECONDS = 900
_THREADS_MAX = 8
_CONNECTIONS_PER_DATABASE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What every shard is audited with."""

    router: ShardRouter
    spec: ShardSetSpec
    charges: ChargeList | None
    listed_at: datetime | None
    margin_seconds: int
    examples_max: int

    def findings(self) -> Findings:
        return Findings(examples_max=self.examples_max)


def audit(
    router: ShardRouter,
    spec: ShardSetSpec,
    *,
    provider_charges: Iterable[ProviderCharge] | None = None,
    listed_at: datetime | None = None,
    on_progress: OnProgress = lambda _done, _total: None,
    margin_seconds: int = MARGIN_SECONDS,
    examples_max: int = 10,
) -> AuditReport:
    """Prove `rules.RULES` over all shards, while they go on working: each shard is read in one snapshot of it.

    `provider_charges` is read to its end before the first shard, so that every charge in it finds its attempt written.
    `listed_at` (UTC, by the databases' clock): when that list was taken; attempts that succeeded later are not missed in it.
    A lease or a due period is given `margin_seconds` before it counts as stuck.
    Raises `DatabaseError`s, and `InvalidInput` where the list cannot be read.
    """
    with ExitStack() as stack:
        charges = None
        if provider_charges is not None:
            folder = stack.enter_context(TemporaryDirectory(prefix="billing-shards-"))
            charges = ChargeList(Path(folder) / "charges.sqlite", provider_charges, spec.shard_count)
        task = _Task(
            router=router,
            spec=spec,
            charges=charges,
            listed_at=listed_at,
            margin_seconds=margin_seconds,
            examples_max=examples_max,
        )
        return _report(task, _all_findings(task, on_progress))


def server_time(router: ShardRouter) -> datetime:
    """The earliest of the databases' clocks (UTC, naive): all that they note from now on is later. Raises `DatabaseError`s."""
    return min(store.server_time(database) for database in router.databases.values())


def _all_findings(task: _Task, on_progress: OnProgress) -> Findings:
    found = task.findings()
    for offender in _owners(task):
        found.add(offender)
    shards = range(task.spec.shard_count)
    threads = min(_THREADS_MAX, _CONNECTIONS_PER_DATABASE * len(task.router.databases))
    with ThreadPoolExecutor(threads) as pool:
        for done, part in enumerate(pool.map(lambda shard: _of_shard(task, shard), shards), 1):
            found.merge(part)
            on_progress(done, len(shards))
    for offender in decide.unbalanced(found.balances):
        found.add(offender)
    for charge in task.charges.of_shard(None) if task.charges is not None else ():
        where = {"charge": charge.id, "reference": charge.reference, "reason": "the reference is none of ours"}
        found.add(Offender(rule=rules.CHARGE_ATTEMPT.name, where=where))
    return found


def _owners(task: _Task) -> Iterator[Offender]:
    owners = {}
    filled = []
    for database in task.router.databases.values():
        with translated(database.name), database.engine.connect() as connection:
            owners[database.name] = read_owners(connection)
        filled += [(database.name, table, shard) for table, shard in store.shards_with_rows(database)]
    return decide.owner_offenders(task.spec.shard_count, owners, filled)


def _of_shard(task: _Task, shard: int) -> Findings:
    found = task.findings()
    try:
        database = task.router.owner(shard)
    except ShardUnknown:  # rule `one_owner` has it already
        return found
    with store.snapshot(database) as connection:
        found.sizes.update(store.sizes(connection, shard))
        found.balances.update(store.balances(connection, shard))
        for offender in _offenders(task, connection, shard):
            found.add(offender)
        if task.charges is not None:
            _compare(task, task.charges, connection, shard, found)
    return found


def _offenders(task: _Task, connection: Connection, shard: int) -> Iterator[Offender]:
    params = {"shard": shard, "shard_count": task.spec.shard_count, "margin_seconds": task.margin_seconds}
    for rule in rules.SHARD_RULES:
        yield from store.offenders(connection, rule.name, params)
    if not task.spec.paused:
        yield from store.offenders(connection, rules.DUE_PERIODS.name, params)
    for schedule in store.schedules(connection, shard):
        offender = decide.wrong_schedule(shard, schedule)
        if offender is not None:
            yield offender


def _compare(task: _Task, charges: ChargeList, connection: Connection, shard: int, found: Findings) -> None:
    """Walk our attempts and the provider's charges side by side, an invoice at a time."""
    ours = ((attempt.invoice, attempt) for attempt in store.attempts(connection, shard, task.spec.gateway.name))
    theirs = ((int(charge.reference.split("/")[1]), charge) for charge in charges.of_shard(shard))
    both: Iterable[tuple[int, Attempt | ProviderCharge]] = heapq.merge(ours, theirs, key=lambda pair: pair[0])
    for invoice, pairs in groupby(both, key=lambda pair: pair[0]):
        items = [item for _, item in pairs]
        decide.compare(
            found,
            shard=shard,
            invoice=invoice,
            attempts=[item for item in items if isinstance(item, Attempt)],
            charges=[item for item in items if isinstance(item, ProviderCharge)],
            listed_at=task.listed_at,
        )


def _report(task: _Task, found: Findings) -> AuditReport:
    checked = rules.RULES if task.charges is not None else tuple(r for r in rules.RULES if r not in rules.PROVIDER_RULES)
    results = tuple(
        RuleResult(rule=rule, offenders=found.counts[rule.name], examples=tuple(found.examples.get(rule.name, ())))
        for rule in checked
    )
    return AuditReport(
        rules=results,
        shards=task.spec.shard_count,
        sizes=dict(found.sizes),
        balances=dict(found.balances),
        provider=None if task.charges is None else _provider_result(task.charges, found),
    )


def _provider_result(charges: ChargeList, found: Findings) -> ProviderResult:
    return ProviderResult(
        charges=charges.succeeded,
        double=found.counts[rules.DOUBLE_CHARGES.name],
        missing=found.counts[rules.MISSING_CHARGES.name],
        in_doubt=found.in_doubt,
        too_new=found.too_new,
    )
