"""Claim and complete alone: the product's queue without its billing, which is all that the peers do.

The transactions are the product's (fence, READ COMMITTED, rerun as a whole), and so are the statements that find the candidates
and mark them, and completion needs the lease's token. Left out is what makes a charge of a job: the attempt before the
send, the attempt's outcome, invoice, ledger entry, event, and the claimer's asyncio between claim and settlement. The peers'
handlers do nothing either.
"""

from __future__ import annotations

import multiprocessing
import secrets
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

from billing_shards import bench, process
from billing_shards.db import queries
from billing_shards.settings import Manifest
from billing_shards.shards.shardset import ManifestSecrets
from billing_shards.shards.transactions import ShardRouter, ShardTransaction
from hack.bench.figures import Round, cpu_of
from hack.mysql import MySQLServer

_jobs = queries("jobs")
_bench = queries("bench")

_TOKEN_BITS = 63


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
        tell.get(timeout=120)
    server, start = cpu_of(mysql.pid), time.perf_counter()
    go.set()
    done = [tell.get(timeout=600) for _ in workers]
    seconds, server = time.perf_counter() - start, cpu_of(mysql.pid) - server
    for worker in workers:
        worker.join()
    if (completed := sum(one.jobs for one in done)) != jobs:
        raise AssertionError(f"{completed} of {jobs} jobs were completed")
    return Round(jobs=jobs, rate=jobs / seconds, clients=sum(one.cpu_seconds for one in done), server=server)


def _work(manifest_path: Path, number: int, processes: int, tell: multiprocessing.Queue[_Done], go: Event) -> None:
    manifest = Manifest.read(manifest_path)
    count = manifest.spec.shard_count
    first = number * count // processes
    shard_set = process.ShardSet(name=manifest.name, spec=manifest.spec, secrets=ManifestSecrets(manifest.secrets))
    router = process.router(shard_set, pool_size=1)
    tell.put(_Done())
    go.wait()
    before = time.process_time()
    claimer = manifest.spec.claimer
    done = 0
    for shard in (*range(first, count), *range(first)):
        while ids := _claim(router, shard, batch=claimer.batch, lease_seconds=claimer.lease_seconds):
            done += len(ids)
    tell.put(_Done(jobs=done, cpu_seconds=time.process_time() - before))
    router.close()


def _claim(router: ShardRouter, shard: int, *, batch: int, lease_seconds: int) -> tuple[int, ...]:
    """Claim a batch in one transaction and complete it in another; the jobs' ids."""
    token = secrets.randbits(_TOKEN_BITS)
    ids: tuple[int, ...] = ()

    def claim(transaction: ShardTransaction) -> tuple[int, ...]:
        nonlocal ids
        ids = tuple(row[0] for row in transaction.read(_jobs.claim_candidates, {"lane": 0, "limit": batch, "since": "1970-01-01"}))
        if ids:
            mark = {"ids": ids, "token": token, "lease_seconds": lease_seconds}
            transaction.write(_jobs.claim, mark, table="billing_job", keys=[(job,) for job in ids])
        return ids

    def complete(transaction: ShardTransaction) -> int:
        found = transaction.write(
            _bench.complete, {"ids": ids, "token": token}, table="billing_job", keys=[(job,) for job in ids]
        )
        if found != len(ids):
            raise AssertionError(f"shard {shard}: {len(ids) - found} of {len(ids)} leases were lost")
        return found

    if router.run(shard, claim):
        router.run(shard, complete)
    return ids
