"""The drain benchmark: how fast due jobs go through claim, charge and settlement, all of it durable.

The provider is an instant one in the process, so that what is measured is ours, or the manifest's own over HTTP. The claimer is
the one that runs in production, against databases that hold nothing else: those that were ever set up are refused.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from billing_shards import process, schema, telemetry
from billing_shards.claimer import Claimer
from billing_shards.db import Database, Rows, queries, translated
from billing_shards.errors import InvalidInput
from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.model import ChargeRequest, Found, NotFound, Outcome, Succeeded
from billing_shards.payments.providers import Providers
from billing_shards.run import set_up
from billing_shards.settings import Manifest
from billing_shards.shards import shardset
from billing_shards.shards.shardset import ManifestSecrets

_q = queries("bench")

_FILL_BATCH = 5000
_LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """What a drain reached."""

    processes: int
    batch: int
    jobs: int
    seconds: float
    jobs_per_second: int
    claimer_cpu_us_per_job: int
    """CPU time of the claimer processes, start-up left out."""
    claimer_memory_mb: int
    """The largest resident set that any claimer process reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """What one claimer process used."""

    cpu_seconds: float = 0.0
    memory_mb: int = 0


class _Counting:
    """A provider, and a count of the charges it answered."""

    def __init__(self, gateway: PaymentGateway, count: Callable[[], None]) -> None:
        self.name = gateway.name
        self.key_ttl_seconds = gateway.key_ttl_seconds
        self.find = gateway.find
        self.close = gateway.close
        self._gateway = gateway
        self._count = count

    async def charge(self, request: ChargeRequest) -> Outcome:
        """See `PaymentGateway`."""
        outcome = await self._gateway.charge(request)
        self._count()
        return outcome


class InstantGateway:
    """A provider that takes every charge at once."""

    key_ttl_seconds = 86_400.0

    def __init__(self, name: str) -> None:
        self.name = name

    async def charge(self, request: ChargeRequest) -> Outcome:
        """See `PaymentGateway`."""
        return Succeeded(provider_ref="ch_" + request.reference)

    async def find(self, reference: str) -> Found:  # noqa: ARG002
        """See `PaymentGateway`."""
        return NotFound()

    async def close(self) -> None:
        """See `PaymentGateway`."""


def drain(manifest_path: Path, *, jobs: int, processes: int, over_http: bool = False) -> DrainReport:
    """Set up the manifest's databases, fill them with `jobs` due jobs and drain them with that many claimer processes.

    `over_http`: charge through the manifest's provider, which must take every charge, instead of the instant one.

    Raises `InvalidInput` where a database was set up before, and all that opening one raises.
    """
    manifest = Manifest.read(manifest_path)
    _fill(manifest, jobs)
    context = multiprocessing.get_context("spawn")
    counts = context.Array("L", processes, lock=True)
    ready, go, stop = context.Queue(), context.Event(), context.Event()
    workers = [
        context.Process(target=_work, args=(manifest_path, over_http, number, counts, ready, go, stop))
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.get(timeout=60)
    start = time.perf_counter()
    go.set()
    while sum(counts[:]) < jobs and all(worker.is_alive() for worker in workers):
        time.sleep(_LOOK_SECONDS)
    stop.set()
    used: list[_Used] = [ready.get(timeout=120) for _ in workers]
    seconds = time.perf_counter() - start
    for worker in workers:
        worker.join()
    _verify(manifest, jobs)
    batch = manifest.spec.claimer.batch
    return DrainReport(
        processes=processes,
        batch=batch,
        jobs=jobs,
        seconds=round(seconds, 3),
        jobs_per_second=round(jobs / seconds),
        claimer_cpu_us_per_job=round(sum(one.cpu_seconds for one in used) / jobs * 1e6),
        claimer_memory_mb=max(one.memory_mb for one in used),
    )


def as_json(report: DrainReport) -> str:
    """One line."""
    return json.dumps(asdict(report))


def _fill(manifest: Manifest, jobs: int) -> None:
    databases = shardset.open_databases(manifest.spec, ManifestSecrets(manifest.secrets), role="schema")
    for database in databases.values():
        if schema.current_revision(database) is not None:
            raise InvalidInput(f"database {database.name}", "is not empty: the benchmark fills and drains new databases only")
    set_up(manifest)
    owners = shardset.read_owners(manifest.name, manifest.spec, databases)
    for database in databases.values():
        shards = sorted(shard for shard, name in owners.items() if name == database.name)
        _fill_database(database, shards, jobs * len(shards) // manifest.spec.shard_count)
        database.close()


def _fill_database(database: Database, shards: list[int], jobs: int) -> None:
    with translated(database.name), database.engine.connect() as connection:
        connection.exec_driver_sql("SET SESSION cte_max_recursion_depth = 1000000")
        for first in range(0, jobs, _FILL_BATCH):
            params = {"first": first, "count": min(_FILL_BATCH, jobs - first), "shards": Rows(shards)}
            for query in (_q.fill_invoices, _q.fill_jobs):
                connection.exec_driver_sql(query, params)
            connection.commit()


def _verify(manifest: Manifest, jobs: int) -> None:
    """Every job succeeded, and its invoice, attempt, ledger entry and event say so."""
    databases = shardset.open_databases(manifest.spec, ManifestSecrets(manifest.secrets))
    totals: dict[str, int] = {}
    for database in databases.values():
        with translated(database.name), database.engine.connect() as connection:
            for name, count in connection.exec_driver_sql(_q.drained).all():
                totals[name] = totals.get(name, 0) + count
        database.close()
    wrong = {name: count for name, count in totals.items() if count != jobs}
    if wrong:
        raise AssertionError(f"of {jobs} jobs, the drain left {wrong}")


def _work(
    manifest_path: Path,
    over_http: bool,
    number: int,
    counts: SynchronizedArray[int],
    ready: multiprocessing.Queue[_Used],
    go: Event,
    stop: Event,
) -> None:
    telemetry.configure_logs("warning")
    ready.put(asyncio.run(_drain_until(Manifest.read(manifest_path), over_http, number, counts, ready, go, stop)))


async def _drain_until(
    manifest: Manifest,
    over_http: bool,
    number: int,
    counts: SynchronizedArray[int],
    ready: multiprocessing.Queue[_Used],
    go: Event,
    stop: Event,
) -> _Used:
    """Drain from `go` until `stop` and the last settlement."""
    shard_set = process.ShardSet(name=manifest.name, spec=manifest.spec, secrets=ManifestSecrets(manifest.secrets))
    router, renewals = process.router(shard_set, pool_size=4), process.router(shard_set, pool_size=1)
    slot: Any = counts.get_obj()  # each process writes its own slot alone: no lock

    def count() -> None:
        slot[number] += 1

    real = process.providers(shard_set)
    providers = Providers(
        _Counting(real.get(gateway.name) if over_http else InstantGateway(gateway.name), count)
        for gateway in manifest.spec.all_gateways
    )
    claimer = Claimer(manifest.spec, router, renewals, providers, range(manifest.spec.shard_count))
    ready.put(_Used())
    await asyncio.to_thread(go.wait)
    before = time.process_time()
    run = asyncio.create_task(claimer.run())
    await asyncio.to_thread(stop.wait)
    claimer.stop()
    await run
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    used = _Used(cpu_seconds=time.process_time() - before, memory_mb=memory_mb)
    await real.close()
    router.close()
    renewals.close()
    return used
