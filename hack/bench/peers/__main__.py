"""`make bench-peers`: our queue beside db-scheduler 16.12 and killbill-queue 0.27.2, each in its best configuration.

The same server, the same number of due jobs, rounds that alternate. The peers do nothing for a job but claim and complete it;
ours is measured both ways: the whole flow of a charge, and claim and complete alone. The peers connect without TLS, which is
faster; ours as always, with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from billing_shards import bench
from billing_shards.settings import Manifest
from hack.bench import figures, runs, site
from hack.bench.figures import Round
from hack.bench.peers import bare, java
from hack.errors import run_command
from hack.mysql import MySQLServer

_PASSWORD = "bench"
_FLOW, _BARE, _DB_SCHEDULER, _KILLBILL = "ours: whole flow", "ours: claim and complete", "db-scheduler", "killbill-queue"
_WORDS = {_FLOW: "flow", _BARE: "bare", _DB_SCHEDULER: "db_scheduler", _KILLBILL: "killbill_queue"}
_JDBC = (
    "rewriteBatchedStatements=true&cachePrepStmts=true&prepStmtCacheSize=500&prepStmtCacheSqlLimit=16384&useLocalSessionState=true"
    "&cacheServerConfiguration=true&elideSetAutoCommits=true&useServerPrepStmts="
)
_BEST: dict[str, tuple[str, dict[str, object]]] = {
    # Two instances fetch as one empties its queue; a fetch of twice the threads at the least, forty times at the most.
    _DB_SCHEDULER: ("DbSchedulerBench", {"instances": 2, "threads": 32, "lower": 2, "upper": 40, "jdbc": _JDBC + "true"}),
    # Each node takes what it posted itself: faster by three than its mode for several nodes, POLLING.
    _KILLBILL: ("KillbillQueueBench", {"mode": "STICKY_POLLING", "claimed": 500, "complete-threads": 8, "jdbc": _JDBC + "false"}),
}


def main() -> None:
    """Run the rounds, print a table, save a plot and, last, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50_000, help="due jobs of a round, for each")
    parser.add_argument("--warmup", type=int, default=20_000, help="jobs that a Java machine drains before, for its compiler")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2, help="of ours")
    parser.add_argument("--batch", type=int, default=500, help="of ours")
    options = parser.parse_args()
    jdk = java.newest_jdk()
    java.built(jdk)
    with site.server() as (mysql, folder):
        _let_in(mysql)
        queues = _queues(mysql, folder, jdk, options)
        rounds: dict[str, list[Round]] = {name: [] for name in queues}
        for _ in range(options.rounds):
            for name, drain in queues.items():
                rounds[name].append(drain())
    _report(rounds, jdk, options)


def _let_in(mysql: MySQLServer) -> None:
    with mysql.client(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL require_secure_transport = OFF")
        cursor.execute(f"CREATE USER bench@'%' IDENTIFIED BY '{_PASSWORD}'")
        cursor.execute("GRANT ALL ON *.* TO bench@'%'")


def _queues(mysql: MySQLServer, folder: Path, jdk: java.Jdk, options: argparse.Namespace) -> dict[str, Callable[[], Round]]:
    queues: dict[str, Callable[[], Round]] = {
        _FLOW: partial(_ours, mysql, folder, options, runs.flow),
        _BARE: partial(_ours, mysql, folder, options, bare.drain),
    }
    queues[_DB_SCHEDULER] = partial(_peer, _DB_SCHEDULER, mysql, folder, jdk, options)
    if jdk.runs_killbill:
        queues[_KILLBILL] = partial(_peer, _KILLBILL, mysql, folder, jdk, options)
    return queues


def _ours(mysql: MySQLServer, folder: Path, options: argparse.Namespace, drain: Callable[..., Round]) -> Round:
    claimer = {"batch": options.batch, "workers": 2 * options.batch}
    with site.manifest(mysql, folder, shards=8, url="http://127.0.0.1:9", claimer=claimer) as path:
        bench.set_up_new(Manifest.read(path))
        return drain(mysql, path, jobs=options.jobs, processes=options.processes)


def _peer(name: str, mysql: MySQLServer, folder: Path, jdk: java.Jdk, options: argparse.Namespace) -> Round:
    program, best = _BEST[name]
    where = {"host": mysql.host, "port": mysql.port, "user": "bench", "password": _PASSWORD, "db": "peers"}
    how = {"jobs": options.jobs, "warmup": options.warmup, "repeat": 1, "timeout-s": 600, "log": folder / "peer.log"}
    server = {} if mysql.pid is None else {"mysqld-pid": mysql.pid}
    report: dict[str, Any] = java.drain(jdk, program, {**where, **how, **server, **best})
    run = report["runs"][0]
    if run["left"] or run["duplicates"] or run["not_run"]:
        raise AssertionError(f"{name}: {run}")
    return Round(jobs=options.jobs, rate=run["jobs_per_s"], clients=run["cpu_s_jvm"], server=run["cpu_s_mysqld"])


def _report(rounds: dict[str, list[Round]], jdk: java.Jdk, options: argparse.Namespace) -> None:
    figures.drains("Job queues on one MySQL server", rounds)
    figures.bars("peers", "Job queues on one MySQL", "jobs/s", rounds)
    rate = {name: figures.median_rate(of_one) for name, of_one in rounds.items()}
    cpu = {name: figures.cpu_per_job(of_one) for name, of_one in rounds.items()}
    facts: dict[str, Any] = {name: getattr(options, name) for name in ("jobs", "processes", "batch")}
    facts |= {"java": jdk.version} | {f"{_WORDS[name]}_jobs_per_s": round(value) for name, value in rate.items()}
    for ours, peer in ((_FLOW, _DB_SCHEDULER), (_BARE, _DB_SCHEDULER), (_BARE, _KILLBILL)):
        if peer in rate:
            facts[f"{_WORDS[ours]}_to_{_WORDS[peer]}"] = round(rate[ours] / rate[peer], 2)
            facts[f"{_WORDS[ours]}_to_{_WORDS[peer]}_by_cpu"] = round(cpu[peer] / cpu[ours], 2)
    figures.result("peers", facts)


if __name__ == "__main__":
    run_command(main)
