"""`make bench-drain`: the whole durable flow with an instant provider in the process, against the raw floor in the same run.

Rounds alternate, so that both meet the same moods of the machine; the ratio is that of the medians. CPU seconds are
told for the clients and for the server: on a machine with two cores they are what holds the rate back.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from billing_shards import bench
from hack.bench import site
from hack.mysql import MySQLServer

_FLOOR = Path(__file__).with_name("raw_flow.py")


def main() -> None:
    """Run the rounds, print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--shards", type=int, default=8)
    options = parser.parse_args()
    floor: list[dict[str, float]] = []
    ours: list[dict[str, float]] = []
    with site.server() as (mysql, folder):
        for _ in range(options.rounds):
            floor.append(_measured(mysql, lambda: _raw_flow(mysql, options)))
            ours.append(_measured(mysql, lambda: _drain(mysql, folder, options)))
    _print(floor, ours)
    rates = {name: round(statistics.median(r["rate"] for r in rounds)) for name, rounds in (("floor", floor), ("ours", ours))}
    print(
        json.dumps(
            {
                "benchmark": "drain",
                "jobs": options.jobs,
                "processes": options.processes,
                "batch": options.batch,
                "floor_jobs_per_s": rates["floor"],
                "jobs_per_s": rates["ours"],
                "ratio_to_floor": round(rates["ours"] / rates["floor"], 3),
            }
        )
    )


def _raw_flow(mysql: MySQLServer, options: argparse.Namespace) -> float:
    words = {"host": mysql.host, "port": mysql.port, "password": mysql.root_password}
    words |= {name: getattr(options, name) for name in ("processes", "batch", "jobs", "shards")}
    command = [sys.executable, str(_FLOOR), *(f"--{name}={value}" for name, value in words.items())]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return float(answer["jobs_per_s"])


def _drain(mysql: MySQLServer, folder: Path, options: argparse.Namespace) -> float:
    claimer = {"batch": options.batch, "workers": 2 * options.batch}
    with site.manifest(mysql, folder, shards=options.shards, url="http://127.0.0.1:9", claimer=claimer) as path:
        return float(bench.drain(path, jobs=options.jobs, processes=options.processes).jobs_per_second)


def _measured(mysql: MySQLServer, run: Callable[[], float]) -> dict[str, float]:
    clients, server = _cpu_of_children(), _cpu_of(mysql.pid)
    rate = run()
    return {"rate": rate, "clients": _cpu_of_children() - clients, "server": _cpu_of(mysql.pid) - server}


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_of(pid: int | None) -> float:
    if pid is None:
        return float("nan")
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _print(floor: list[dict[str, float]], ours: list[dict[str, float]]) -> None:
    table = Table("", "jobs/s, median", "rounds", "client CPU s", "server CPU s", title="Drain: claim, charge, settle; durable")
    for name, rounds in (("raw floor", floor), ("billing-shards", ours)):
        rates = [r["rate"] for r in rounds]
        cpu = [f"{statistics.median(r[who] for r in rounds):.1f}" for who in ("clients", "server")]
        table.add_row(name, f"{statistics.median(rates):,.0f}", " ".join(f"{rate:,.0f}" for rate in rates), *cpu)
    Console(stderr=True).print(table)


if __name__ == "__main__":
    main()
