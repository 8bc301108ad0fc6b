"""One measured drain each: the raw floor, ours, ours without billing. CPU time is that of the drain alone."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path

from billing_shards import bench
from billing_shards.settings import Manifest
from hack.bench import raw_flow
from hack.bench.figures import Round, cpu_of, cpu_of_children
from hack.mysql import MySQLServer


def floor(mysql: MySQLServer, *, jobs: int, processes: int, batch: int, shards: int) -> Round:
    """`raw_flow.py`, as its own main does it."""
    options = argparse.Namespace(
        host=mysql.host,
        port=mysql.port,
        user="root",
        password=mysql.root_password,
        processes=processes,
        batch=batch,
        jobs=jobs,
        shards=shards,
    )
    raw_flow.setup(options)
    context = multiprocessing.get_context("fork")
    ready, out, go = context.Queue(), context.Queue(), context.Event()
    workers = [context.Process(target=raw_flow.drain, args=(options, n, ready, go, out)) for n in range(processes)]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.get()
    clients, server, start = cpu_of_children(), cpu_of(mysql.pid), time.perf_counter()
    go.set()
    done = sum(out.get() for _ in workers)
    seconds, server = time.perf_counter() - start, cpu_of(mysql.pid) - server
    for worker in workers:
        worker.join()
    if done != jobs:
        raise AssertionError(f"{done} of {jobs} jobs were done")
    return Round(jobs=jobs, rate=jobs / seconds, clients=cpu_of_children() - clients, server=server)


def flow(mysql: MySQLServer, manifest_path: Path, *, jobs: int, processes: int, first: int = 0) -> Round:
    """Fill in due jobs, numbered from `first`, and drain them: the claimers as in production, with an instant provider."""
    bench.fill(Manifest.read(manifest_path), jobs, first=first)
    return drained(mysql, manifest_path, jobs=jobs, processes=processes)


def drained(mysql: MySQLServer, manifest_path: Path, *, jobs: int, processes: int, over_http: bool = False) -> Round:
    """Drain the due jobs that are there."""
    with bench.verified(Manifest.read(manifest_path), jobs):
        server = cpu_of(mysql.pid)
        report = bench.drain_timed(manifest_path, jobs=jobs, processes=processes, over_http=over_http)
        server = cpu_of(mysql.pid) - server
    return Round(
        jobs=jobs,
        rate=report.jobs_per_second,
        clients=report.claimer_cpu_us_per_job * jobs / 1e6,
        server=server,
        memory_mb=report.claimer_memory_mb,
    )
