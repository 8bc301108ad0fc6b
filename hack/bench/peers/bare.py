"""Claim and complete alone: the product's queue without its billing, which is all that the peers do.

`jobs.store.claim` itself, in the product's transactions (fence, READ COMMITTED, rerun), whose writes to other tables than the
queue's are left out; then one statement that completes the claim's jobs, by the lease's token. So left out is what makes a charge
of a job: the attempt before the send and its outcome, invoice, ledger entry, event, and the claimer's asyncio between claim and
settlement. The peers' handlers do nothing either.
"""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TypeVar

from billing_shards import bench, process
from billing_shards.db import Ids, queries
from billing_shards.jobs import store
from billing_shards.jobs.model import RENEWAL, Job
from billing_shards.settings import Manifest, ShardSetSpec
from billing_shards.shards.map import ShardMap
from billing_shards.shards.shardset import ManifestSecrets
from billing_shards.shards.transactions import Body, Committed, Key, Params, ShardRouter, ShardTransaction
from hack.bench.figures import Round, cpu_of
from hack.mysql import MySQLServer

_q = queries("bench")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """What one process did."""

    jobs: int = 0
    cpu_seconds: float = 0.0


def drain(mysql: MySQLServer, manifest_path: Path, *, jobs: int, processes: int) -> Round:
    """Fill in `jobs` due jobs and drain them with that many processes."""
    bench.fill(Manifest.read(manifest_path), jobs)
    context = multiprocessing.get_context("spawn")
    tell, go = context.Queue(), context.Event()
    workers = [context.Process(target=_work, args=(manifest_path, n, processes, tell, go)) for n in range(processes)]
    for worker in workers:
        worker.start()
    for _ in workers:
        _told(tell, workers)
    server, start = cpu_of(mysql.pid), time.perf_counter()
    go.set()
    done = [_told(tell, workers) for _ in workers]
    seconds, server = time.perf_counter() - start, cpu_of(mysql.pid) - server
    for worker in workers:
        worker.join()
    if (completed := sum(one.jobs for one in done)) != jobs:
        raise AssertionError(f"{completed} of {jobs} jobs were completed")
    return Round(jobs=jobs, rate=jobs / seconds, clients=sum(one.cpu_seconds for one in done), server=server)


def _told(tell: multiprocessing.Queue[_Done], workers: Sequence[BaseProcess]) -> _Done:
    """What a worker tells next. Raises `AssertionError` where one has failed."""
    while True:
        try:
            return tell.get(timeout=1)
        except queue.Empty:
            if any(worker.exitcode for worker in workers):
                raise AssertionError("a process that drains has failed") from None


class _QueueRouter(ShardRouter):
    """A router whose transactions write to the queue's table alone."""

    def run(self, shard: int, body: Body[T], *, committed: Committed[T] | None = None) -> T:
        """See `ShardRouter`."""
        return super().run(shard, lambda transaction: body(_QueueTransaction(transaction)), committed=committed)


class _QueueTransaction(ShardTransaction):
    """Does what another one does, but leaves out every write to another table than the queue's."""

    __slots__ = ()

    def __init__(self, transaction: ShardTransaction) -> None:
        super().__init__(transaction._connection, transaction.shard, transaction.now)  # noqa: SLF001

    def write(self, query: str, params: Params, *, table: str, keys: Sequence[Key]) -> int:
        """See `ShardTransaction`."""
        return super().write(query, params, table=table, keys=keys) if table == "billing_job" else len(keys)


def _work(manifest_path: Path, number: int, processes: int, tell: multiprocessing.Queue[_Done], go: Event) -> None:
    manifest = Manifest.read(manifest_path)
    spec, count = manifest.spec, manifest.spec.shard_count
    first = number * count // processes
    shard_set = process.ShardSet(name=manifest.name, spec=spec, secrets=ManifestSecrets(manifest.secrets))
    shard_map = ShardMap.from_spec(spec)
    plain = process.router(shard_set, pool_size=1)
    router = _QueueRouter(plain.databases, {shard: shard_map.database_of(shard) for shard in range(count)})
    tell.put(_Done())
    go.wait()
    before = time.process_time()
    done = 0
    for shard in (*range(first, count), *range(first)):
        while jobs := _claim(router, shard, spec):
            _complete(router, shard, jobs)
            done += len(jobs)
    tell.put(_Done(jobs=done, cpu_seconds=time.process_time() - before))
    router.close()


def _claim(router: ShardRouter, shard: int, spec: ShardSetSpec) -> list[Job]:
    claimer = spec.claimer
    return store.claim(
        router, shard, RENEWAL, limit=claimer.batch, lease_seconds=claimer.lease_seconds, provider=spec.gateway.name
    ).jobs


def _complete(router: ShardRouter, shard: int, jobs: Sequence[Job]) -> None:
    ids = [job.id for job in jobs]
    params = {"ids": Ids(ids), "token": jobs[0].token}

    def complete(transaction: ShardTransaction) -> int:
        found = transaction.write(_q.complete, params, table="billing_job", keys=[(job,) for job in ids])
        if found != len(ids):
            raise AssertionError(f"shard {shard}: {len(ids) - found} of {len(ids)} leases were lost")
        return found

    router.run(shard, complete)
