"""`make bench-peak`: 500,000 subscriptions due at one midnight.

With a window of an hour: the real scheduler writes their invoices and jobs, and the report tells how even the rate is at which
they fall due: the χ² of seconds and of minutes against an even spread. Without: all fall due at once, claimers drain the backlog,
and its rate is compared with that of a drain of a tenth of it in the same run. A plot shows both. The bytes that a charge leaves
on disk and in the binary log, from its invoice to its settlement, are what docs/capacity.md counts with.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from billing_shards import bench, process
from billing_shards.billing.scheduler import schedule_shard
from billing_shards.db import queries
from billing_shards.jobs.lanes import Lanes
from billing_shards.settings import Manifest
from billing_shards.shards.shardset import ManifestSecrets
from hack.bench import figures, site
from hack.mysql import MySQLServer

_q = queries("bench")

_WINDOW_SECONDS = 3600
_SHARDS = 16
_BATCH = 500
_FILL_BATCH = 50_000
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How even counts are: χ² against the same number in each cell, and the chance of one as large or larger by luck."""

    cells: int
    chi_squared: float
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Smoothed:
    """The set with a window."""

    per_second: list[int]
    """Jobs that fall due in each second of the window."""
    scheduled: figures.Round
    bytes_by_table: dict[str, int]
    binlog_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backlog:
    """The set without a window."""

    left: list[tuple[float, int]]
    """Seconds since the claimers began, jobs not charged yet."""
    drained: figures.Round
    bytes_by_table: dict[str, int]
    binlog_bytes: int


def main() -> None:
    """Run both, print a table, save a plot and, last, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscriptions", type=int, default=500_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    count, processes = options.subscriptions, options.processes
    with site.server() as (mysql, folder):
        smoothed = _with_window(mysql, folder, count, processes)
        usual = _without_window(mysql, folder, count // 10, processes).drained
        backlog = _without_window(mysql, folder, count, processes)
    seconds, minutes = spread(smoothed.per_second), spread(per_minute(smoothed.per_second))
    facts: dict[str, Any] = {
        "subscriptions": count,
        "processes": processes,
        "due_per_second_mean": round(count / _WINDOW_SECONDS, 1),
        "due_per_second_max": max(smoothed.per_second),
        **{f"{name}_chi_squared": round(one.chi_squared, 1) for name, one in (("second", seconds), ("minute", minutes))},
        **{f"{name}_p_value": round(one.p_value, 4) for name, one in (("second", seconds), ("minute", minutes))},
        "scheduled_per_s": round(smoothed.scheduled.rate),
        "schedule_client_us": round(1e6 * smoothed.scheduled.clients / count, 1),
        "schedule_server_us": round(1e6 * smoothed.scheduled.server / count, 1),
        **_drained("backlog", backlog.drained),
        **_drained("drain", usual),
        "backlog_to_drain": round(backlog.drained.rate / usual.rate, 3),
        **_bytes(smoothed, backlog, count),
    }
    figures.table("One midnight", ("", ""), [(name.replace("_", " "), value) for name, value in facts.items()])
    _plot(smoothed, backlog, usual.rate)
    figures.result("peak", facts)


def _drained(name: str, drained: figures.Round) -> dict[str, float]:
    """The rate, and CPU microseconds a job."""
    return {
        f"{name}_jobs_per_s": round(drained.rate),
        f"{name}_client_us": round(1e6 * drained.clients / drained.jobs, 1),
        f"{name}_server_us": round(1e6 * drained.server / drained.jobs, 1),
    }


def spread(counts: Sequence[int]) -> Spread:
    """Test counts against an even spread. The p-value is Wilson and Hilferty's approximation, good to 0.001 from 30 cells on."""
    mean = sum(counts) / len(counts)
    chi_squared = sum((count - mean) ** 2 for count in counts) / mean
    freedom = len(counts) - 1
    share = 2 / (9 * freedom)
    deviation = ((chi_squared / freedom) ** (1 / 3) - (1 - share)) / math.sqrt(share)
    return Spread(cells=len(counts), chi_squared=chi_squared, p_value=math.erfc(deviation / math.sqrt(2)) / 2)


def per_minute(per_second: Sequence[int]) -> list[int]:
    """Sums of sixty."""
    return [sum(per_second[start : start + 60]) for start in range(0, len(per_second), 60)]


def _set(window_seconds: int) -> dict[str, Any]:
    claimer = {"batch": _BATCH, "workers": 2 * _BATCH}
    smoothing = {"windowSeconds": window_seconds}
    return {"shards": _SHARDS, "url": "http://127.0.0.1:9", "claimer": claimer, "smoothing": smoothing}


def _with_window(mysql: MySQLServer, folder: Path, count: int, processes: int) -> _Smoothed:
    with site.manifest(mysql, folder, **_set(_WINDOW_SECONDS)) as path:
        manifest = Manifest.read(path)
        bench.set_up_new(manifest)
        midnight = _last_midnight(mysql)
        _fill_subscriptions(mysql, manifest, count, midnight)
        binlog = site.binlog_bytes(mysql)
        scheduled = _schedule_all(mysql, path, count, processes)
        binlog = site.binlog_bytes(mysql) - binlog
        per_second = _due_per_second(mysql, manifest, midnight)
        return _Smoothed(
            per_second=[per_second.get(second, 0) for second in range(_WINDOW_SECONDS)],
            scheduled=scheduled,
            bytes_by_table=site.table_bytes(mysql, manifest),
            binlog_bytes=binlog,
        )


def _without_window(mysql: MySQLServer, folder: Path, count: int, processes: int) -> _Backlog:
    with site.manifest(mysql, folder, **_set(0)) as path:
        manifest = Manifest.read(path)
        bench.set_up_new(manifest)
        bench.fill(manifest, count, bench.Arrivals(first_due=_last_midnight(mysql)))
        site.rest(mysql, manifest.spec.databases[0].database)
        binlog = site.binlog_bytes(mysql)
        left: list[tuple[float, int]] = []
        with bench.Claimers(path, processes) as claimers:
            server, start = figures.cpu_of(mysql.pid), time.perf_counter()
            claimers.go()
            while (waiting := count - sum(claimers.charged())) and claimers.alive:
                left.append((time.perf_counter() - start, waiting))
                time.sleep(_LOOK_SECONDS)
            used = claimers.finish()
            seconds, server = time.perf_counter() - start, figures.cpu_of(mysql.pid) - server
        left.append((seconds, 0))
        clients = sum(one.cpu_seconds for one in used)
        return _Backlog(
            left=left,
            drained=figures.Round(jobs=count, rate=count / seconds, clients=clients, server=server),
            bytes_by_table=site.table_bytes(mysql, manifest),
            binlog_bytes=site.binlog_bytes(mysql) - binlog,
        )


def _last_midnight(mysql: MySQLServer) -> datetime:
    return datetime.combine(site.now(mysql), datetime.min.time())


def _fill_subscriptions(mysql: MySQLServer, manifest: Manifest, count: int, midnight: datetime) -> None:
    with mysql.client(database=manifest.spec.databases[0].database, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION cte_max_recursion_depth = 1000000, SESSION sql_log_bin = 0")
        for start in range(0, count, _FILL_BATCH):
            size = min(_FILL_BATCH, count - start)
            words = {"start": start, "count": size, "shards": manifest.spec.shard_count, "midnight": midnight}
            cursor.execute(_q.fill_subscriptions, words)


def _schedule_all(mysql: MySQLServer, path: Path, count: int, processes: int) -> figures.Round:
    """Invoice every subscription; start-up of the processes included."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_schedule, args=(path, n, processes)) for n in range(processes)]
    clients, server, start = figures.cpu_of_children(), figures.cpu_of(mysql.pid), time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise AssertionError(f"a scheduler ended with exit code {worker.exitcode}")
    return figures.Round(
        jobs=count,
        rate=count / (time.perf_counter() - start),
        clients=figures.cpu_of_children() - clients,
        server=figures.cpu_of(mysql.pid) - server,
    )


def _schedule(path: Path, number: int, processes: int) -> None:
    """What the housekeeper does, for every so-manieth shard."""
    manifest = Manifest.read(path)
    shard_set = process.ShardSet(name=manifest.name, spec=manifest.spec, secrets=ManifestSecrets(manifest.secrets))
    router, lanes = process.router(shard_set, pool_size=1), Lanes(manifest.spec)
    for shard in range(number, manifest.spec.shard_count, processes):
        while schedule_shard(router, shard, lanes=lanes, grace_seconds=manifest.spec.retry.grace_seconds):
            pass
    router.close()


def _due_per_second(mysql: MySQLServer, manifest: Manifest, midnight: datetime) -> dict[int, int]:
    with mysql.client(database=manifest.spec.databases[0].database) as connection, connection.cursor() as cursor:
        cursor.execute(_q.due_per_second, {"midnight": midnight})
        found = {int(row[0]): int(row[1]) for row in cursor.fetchall()}
    if outside := {second: jobs for second, jobs in found.items() if not 0 <= second < _WINDOW_SECONDS}:
        raise AssertionError(f"jobs outside the window: {outside}")
    return found


def _bytes(smoothed: _Smoothed, backlog: _Backlog, count: int) -> dict[str, int]:
    """Bytes of a charge. Ledger and outbox have two rows of it: one of the invoice, one of the payment."""
    issued, settled = smoothed.bytes_by_table, backlog.bytes_by_table
    once: Mapping[str, int] = {
        "billing_job": settled["billing_job"],
        "invoice": issued["invoice"],
        "payment_attempt": settled["payment_attempt"],
        "ledger_entry": issued["ledger_entry"] + settled["ledger_entry"],
        "outbox": issued["outbox"] + settled["outbox"],
    }
    per_charge = {f"{table}_bytes": round(size / count) for table, size in once.items()}
    return {
        **per_charge,
        "subscription_bytes": round(issued["subscription"] / count),
        "disk_bytes_per_charge": sum(per_charge.values()),
        "binlog_bytes_per_charge": round((smoothed.binlog_bytes + backlog.binlog_bytes) / count),
    }


def _plot(smoothed: _Smoothed, backlog: _Backlog, usual: float) -> None:
    drawing = figures.figure(width=10, height=4)
    window, drain = drawing.subplots(1, 2)
    minutes = [second / 60 for second in range(len(smoothed.per_second))]
    window.plot(minutes, smoothed.per_second, color="#bbbbbb", linewidth=0.4, label="each second")
    means = [total / 60 for total in per_minute(smoothed.per_second)]
    window.step(range(len(means)), means, where="post", color="#4c78a8", label="mean of a minute")
    window.set_ylim(bottom=0)
    window.set(title="With a one-hour window", xlabel="minutes after midnight", ylabel="jobs that fall due a second")
    window.legend(loc="lower right")
    seconds, left = zip(*backlog.left, strict=True)
    drain.plot(seconds, left, color="#e45756", label="not charged yet")
    drain.plot([0, left[0] / usual], [left[0], 0], "k:", label="at the drain's rate")
    drain.set(title="Without: all at once", xlabel="seconds after midnight", ylabel="jobs")
    drain.set_ylim(bottom=0)
    drain.legend()
    for axes in (window, drain):
        axes.spines[["top", "right"]].set_visible(False)
    figures.save(drawing, "peak")


if __name__ == "__main__":
    main()
