"""The drain benchmark: how fast due jobs go through claim, charge and settlement, all of it durable.

The provider is an instant one in the process, so that what is measured is ours, or the manifest's own over HTTP. The claimers are
those that run in production, each a process, against databases that hold nothing else: those that were ever set up are refused.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from billing_shards import process, schema, telemetry
from billing_shards.claimer import Claimer
from billing_shards.db import Database, Rows, queries, translated
from billing_shards.errors import InvalidInput
from billing_shards.payments.gateway import ChargesOnly, PaymentGateway
from billing_shards.payments.model import ChargeRequest, Found, NotFound, Outcome, Succeeded
from billing_shards.payments.providers import Providers
from billing_shards.run import set_up
from billing_shards.settings import Manifest
from billing_shards.shards import shardset
from billing_shards.shards.map import ShardMap
from billing_shards.shards.shardset import ManifestSecrets
from billing_shards.shards.transactions import Body, Committed, ShardRouter

_q = queries("bench")

T = TypeVar("T")

_FILL_BATCH = 5000
_LOOK_SECONDS = 0.005
_LONG_AGO = datetime(2026, 1, 1)  # noqa: DTZ001 - as the database has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When and where synthetic jobs fall due: by default all at once, one after the other on each shard."""

    lane: int = 0
    first_due: datetime = _LONG_AGO
    """UTC, by the server's clock."""
    burst: int = 1
    """This many in a row are of one shard and fall due together."""
    gap_seconds: float = 0.0
    """From one burst to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What one claimer process used, start-up left out of its time."""

    cpu_seconds: float = 0.0
    memory_mb: int = 0
    """The largest resident set it reached."""
    claims: tuple[tuple[int, float], ...] = ()
    """Jobs and seconds of each claim's transaction that found any, reruns and COMMIT included."""


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


class Claimers:
    """Claimer processes over a manifest's databases, started and waiting until `go`."""

    def __init__(self, manifest_path: Path, processes: int, *, over_http: bool = False) -> None:
        self._gateways = len(Manifest.read(manifest_path).spec.all_gateways)
        context = multiprocessing.get_context("spawn")
        self._counts = context.Array("L", processes * self._gateways, lock=True)
        self._tell, self._go, self._stop = context.Queue(), context.Event(), context.Event()
        signals = (self._counts, self._tell, self._go, self._stop)
        self._workers = [
            context.Process(target=_work, args=(manifest_path, over_http, n * self._gateways, *signals)) for n in range(processes)
        ]

    def go(self) -> None:
        """Let them claim."""
        self._go.set()

    def charged(self) -> list[int]:
        """Charges that were answered so far, for each provider in the manifest's order."""
        return [sum(self._counts[gateway :: self._gateways]) for gateway in range(self._gateways)]

    @property
    def pids(self) -> list[int]:
        """Their process ids."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def alive(self) -> bool:
        """Whether all of them still run."""
        return all(worker.is_alive() for worker in self._workers)

    def finish(self) -> list[Used]:
        """Have them settle what they hold, and end."""
        self._stop.set()
        used = [self._tell.get(timeout=120) for _ in self._workers]
        for worker in self._workers:
            worker.join()
        return used

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        for _ in self._workers:
            self._tell.get(timeout=120)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
            worker.join()


class _Counting:
    """A provider, and a count of the charges it answered."""

    def __init__(self, gateway: PaymentGateway, count: Callable[[], None]) -> None:
        self._gateway = gateway
        self._count = count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gateway, name)

    async def charge(self, request: ChargeRequest) -> Outcome:
        """See `PaymentGateway`."""
        outcome = await self._gateway.charge(request)
        self._count()
        return outcome


class InstantGateway(ChargesOnly):
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


class _TimedRouter(ShardRouter):
    """Notes how long each claim's transaction takes: the one that returns the jobs it took."""

    def __init__(self, router: ShardRouter, shard_map: ShardMap) -> None:
        super().__init__(router.databases, {shard: shard_map.database_of(shard) for shard in range(len(shard_map))})
        self.claims: list[tuple[int, float]] = []

    def run(self, shard: int, body: Body[T], *, committed: Committed[T] | None = None) -> T:
        """See `ShardRouter`."""
        start = time.perf_counter()
        result = super().run(shard, body, committed=committed)
        if isinstance(result, list) and result:
            self.claims.append((len(result), time.perf_counter() - start))
        return result


def drain(manifest_path: Path, *, jobs: int, processes: int, over_http: bool = False) -> DrainReport:
    """Set up the manifest's databases, fill them with `jobs` due jobs and drain them with that many claimer processes.

    `over_http`: charge through the manifest's provider, which must take every charge, instead of the instant one.

    Raises `InvalidInput` where a database was set up before, and all that opening one raises.
    """
    manifest = Manifest.read(manifest_path)
    set_up_new(manifest)
    fill(manifest, jobs)
    with verified(manifest, jobs):
        return drain_timed(manifest_path, jobs=jobs, processes=processes, over_http=over_http)


@contextmanager
def verified(manifest: Manifest, jobs: int) -> Iterator[None]:
    """Prove by what is written meanwhile that `jobs` jobs were charged. Raises `AssertionError`."""
    before = _settled(manifest)
    yield
    wrong = {name: count - before[name] for name, count in _settled(manifest).items() if count - before[name] != jobs}
    if wrong:
        raise AssertionError(f"of {jobs} jobs, the drain left {wrong}")


def drain_timed(manifest_path: Path, *, jobs: int, processes: int, over_http: bool = False) -> DrainReport:
    """Drain, and nothing else: what is charged is not verified."""
    with Claimers(manifest_path, processes, over_http=over_http) as claimers:
        start = time.perf_counter()
        claimers.go()
        while sum(claimers.charged()) < jobs and claimers.alive:
            time.sleep(_LOOK_SECONDS)
        used = claimers.finish()
        seconds = time.perf_counter() - start
    return DrainReport(
        processes=processes,
        batch=Manifest.read(manifest_path).spec.claimer.batch,
        jobs=jobs,
        seconds=round(seconds, 3),
        jobs_per_second=round(jobs / seconds),
        claimer_cpu_us_per_job=round(sum(one.cpu_seconds for one in used) / jobs * 1e6),
        claimer_memory_mb=max(one.memory_mb for one in used),
    )


def as_json(report: DrainReport) -> str:
    """One line."""
    return json.dumps(asdict(report))


def set_up_new(manifest: Manifest) -> None:
    """Set up databases that never were. Raises `InvalidInput` where one was, and all that opening one raises."""
    with _databases(manifest, role="schema") as databases:
        for database in databases:
            if schema.current_revision(database) is not None:
                raise InvalidInput(f"database {database.name}", "is not empty: the benchmark fills and drains new databases only")
    set_up(manifest)


def fill(manifest: Manifest, jobs: int, arrivals: Arrivals = Arrivals(), *, first: int = 0) -> None:
    """Write `jobs` jobs and their invoices, numbered from `first`, spread over the shards."""
    with _databases(manifest, role="schema") as databases:
        owners = shardset.read_owners(manifest.name, manifest.spec, {database.name: database for database in databases})
        for database in databases:
            shards = sorted(shard for shard, name in owners.items() if name == database.name)
            _fill_database(database, shards, jobs * len(shards) // manifest.spec.shard_count, arrivals, first)


def _fill_database(database: Database, shards: list[int], jobs: int, arrivals: Arrivals, first: int) -> None:
    with translated(database.name), database.engine.connect() as connection:
        connection.exec_driver_sql("SET SESSION cte_max_recursion_depth = 1000000")
        for start in range(0, jobs, _FILL_BATCH):
            params = {
                "start": start,
                "count": min(_FILL_BATCH, jobs - start),
                "first": first,
                "shards": Rows(shards),
                "lane": arrivals.lane,
                "burst": arrivals.burst,
                "first_due": arrivals.first_due,
                "gap_us": round(arrivals.gap_seconds * 1e6),
            }
            for query in (_q.fill_invoices, _q.fill_jobs):
                connection.exec_driver_sql(query, params)
            connection.commit()


@contextmanager
def _databases(manifest: Manifest, role: shardset.Role = "application") -> Iterator[list[Database]]:
    databases = shardset.open_databases(manifest.spec, ManifestSecrets(manifest.secrets), role=role)
    try:
        yield list(databases.values())
    finally:
        for database in databases.values():
            database.close()


def _settled(manifest: Manifest) -> Counter[str]:
    """What was written of jobs that succeeded: jobs, invoices, attempts, ledger entries, events."""
    totals: Counter[str] = Counter()
    with _databases(manifest) as databases:
        for database in databases:
            with translated(database.name), database.engine.connect() as connection:
                totals.update(dict(connection.exec_driver_sql(_q.settled).all()))
    return totals


def _work(
    manifest_path: Path,
    over_http: bool,
    slot: int,
    counts: SynchronizedArray[int],
    tell: multiprocessing.Queue[Used],
    go: Event,
    stop: Event,
) -> None:
    telemetry.configure_logs("warning")
    tell.put(asyncio.run(_drain_until(Manifest.read(manifest_path), over_http, slot, counts, tell, go, stop)))


async def _drain_until(
    manifest: Manifest,
    over_http: bool,
    slot: int,
    counts: SynchronizedArray[int],
    tell: multiprocessing.Queue[Used],
    go: Event,
    stop: Event,
) -> Used:
    """Drain from `go` until `stop` and the last settlement."""
    shard_set = process.ShardSet(name=manifest.name, spec=manifest.spec, secrets=ManifestSecrets(manifest.secrets))
    router = _TimedRouter(process.router(shard_set, pool_size=4), ShardMap.from_spec(manifest.spec))
    renewals = process.router(shard_set, pool_size=1)
    real = process.providers(shard_set)
    gateways = [real.get(spec.name) if over_http else InstantGateway(spec.name) for spec in manifest.spec.all_gateways]
    providers = Providers(_counting(gateway, counts, slot + number) for number, gateway in enumerate(gateways))
    claimer = Claimer(manifest.spec, router, renewals, providers, range(manifest.spec.shard_count))
    tell.put(Used())
    await asyncio.to_thread(go.wait)
    before = time.process_time()
    run = asyncio.create_task(claimer.run())
    await asyncio.to_thread(stop.wait)
    claimer.stop()
    await run
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    used = Used(cpu_seconds=time.process_time() - before, memory_mb=memory_mb, claims=tuple(router.claims))
    await real.close()
    router.close()
    renewals.close()
    return used


def _counting(gateway: PaymentGateway, counts: SynchronizedArray[int], slot: int) -> PaymentGateway:
    own: Any = counts.get_obj()  # each process writes its own slots alone: no lock

    def count() -> None:
        own[slot] += 1

    return cast("PaymentGateway", _Counting(gateway, count))
