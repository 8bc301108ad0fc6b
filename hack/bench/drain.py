"""`make bench-drain`: the whole durable flow with an instant provider in the process, against the raw floor in the same run.

Three figures. The drain of an empty database's due jobs against the floor; the same beside millions of finished and future
jobs; and, at half the drain's rate, how long a claim of 100 jobs takes. Rounds alternate, so that all meet the same moods of the
machine; ratios are those of the medians. CPU seconds are told for the clients and for the server: on a machine with two cores
they are what holds the rate back.
"""

from __future__ import annotations

import argparse
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from billing_shards import bench
from billing_shards.settings import Manifest
from hack.bench import figures, loaded, runs, site
from hack.bench.figures import Round
from hack.mysql import MySQLServer

_NOWHERE = "http://127.0.0.1:9"
_CLAIM = 100
_LEAD_SECONDS = 2.0
"""Between the last row written and the first job due."""


def main() -> None:
    """Run the rounds, print a table, save a plot and, last, print one line of JSON."""
    options = _options()
    rounds: dict[str, list[Round]] = {"raw floor": [], "billing-shards": []}
    sizes: dict[str, float] = {}
    with site.server() as (mysql, folder), site.manifest(mysql, folder, **_set(options, options.batch)) as beside:
        if options.finished or options.future:
            rounds[_loaded_name(options)] = []
            loaded.fill(mysql, beside, finished=options.finished, future=options.future)
        for number in range(options.rounds):
            same = {name: getattr(options, name) for name in ("jobs", "processes")}
            rounds["raw floor"].append(runs.floor(mysql, batch=options.batch, shards=options.shards, **same))
            rounds["billing-shards"].append(_drain(mysql, folder, options, sizes))
            if options.finished or options.future:
                beside_rounds = rounds[_loaded_name(options)]
                beside_rounds.append(runs.flow(mysql, beside, first=number * options.jobs, **same))
        rates = {name: figures.median_rate(of_one) for name, of_one in rounds.items()}
        claims = _claims_at(mysql, folder, options, rates["billing-shards"] / 2) if options.paced_seconds else []
    _print(rounds, claims)
    facts: dict[str, Any] = {name: getattr(options, name) for name in ("jobs", "processes", "batch", "finished", "future")}
    facts |= {"floor_jobs_per_s": round(rates["raw floor"]), "jobs_per_s": round(rates["billing-shards"])}
    facts["ratio_to_floor"] = round(rates["billing-shards"] / rates["raw floor"], 3)
    cpu = {name: figures.cpu_per_job(of_one) for name, of_one in rounds.items()}
    facts["ratio_to_floor_by_cpu"] = round(cpu["raw floor"] / cpu["billing-shards"], 3)
    if _loaded_name(options) in rates:
        facts["jobs_per_s_loaded"] = round(rates[_loaded_name(options)])
        facts["ratio_loaded"] = round(rates[_loaded_name(options)] / rates["billing-shards"], 3)
        facts["ratio_loaded_by_cpu"] = round(cpu["billing-shards"] / cpu[_loaded_name(options)], 3)
    facts |= claim_facts(claims) | sizes
    figures.result("drain", facts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000, help="due jobs of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--finished", type=int, default=500_000, help="finished jobs beside them in the loaded rounds")
    parser.add_argument("--future", type=int, default=100_000, help="jobs of the future beside them in the loaded rounds")
    parser.add_argument("--paced-seconds", type=float, default=20.0, help="of arrivals at half the rate; 0: none")
    return parser.parse_args()


def _loaded_name(options: argparse.Namespace) -> str:
    return f"beside {options.finished:,} finished, {options.future:,} future"


def _set(options: argparse.Namespace, batch: int) -> dict[str, Any]:
    return {"shards": options.shards, "url": _NOWHERE, "claimer": {"batch": batch, "workers": 2 * batch}}


def _drain(mysql: MySQLServer, folder: Path, options: argparse.Namespace, sizes: dict[str, float]) -> Round:
    with site.manifest(mysql, folder, **_set(options, options.batch)) as path:
        manifest = Manifest.read(path)
        bench.set_up_new(manifest)
        bench.fill(manifest, options.jobs)
        binlog = site.binlog_bytes(mysql)
        one = runs.drained(mysql, path, jobs=options.jobs, processes=options.processes)
        sizes["binlog_bytes_per_job"] = round((site.binlog_bytes(mysql) - binlog) / options.jobs)
        sizes["disk_bytes_per_job"] = round(sum(site.table_bytes(mysql, manifest).values()) / options.jobs)
    return one


def _claims_at(mysql: MySQLServer, folder: Path, options: argparse.Namespace, rate: float) -> list[tuple[int, float]]:
    """Jobs and seconds of each claim while `rate` jobs a second fall due, 100 of a shard at once, whatever the claimers do."""
    jobs = round(rate * options.paced_seconds)
    with site.manifest(mysql, folder, **_set(options, _CLAIM)) as path:
        manifest = Manifest.read(path)
        bench.set_up_new(manifest)
        # Written before the first is due: filling must not compete with the claims. Ten thousand rows a second is slow.
        first_due = site.now(mysql) + timedelta(seconds=jobs / 10_000 + _LEAD_SECONDS)
        arrivals = bench.Arrivals(first_due=first_due, burst=_CLAIM, gap_seconds=_CLAIM / rate)
        bench.fill(manifest, jobs, arrivals)
        with bench.Claimers(path, options.processes) as claimers:
            claimers.go()
            while sum(claimers.charged()) < jobs and claimers.alive:
                time.sleep(0.05)
            used = claimers.finish()
    return [claim for one in used for claim in one.claims]


def claim_facts(claims: list[tuple[int, float]]) -> dict[str, float]:
    """Percentiles of the claims that took 100 jobs, in milliseconds."""
    whole = [1000 * seconds for jobs, seconds in claims if jobs == _CLAIM]
    if len(whole) < 2:
        return {}
    cuts = statistics.quantiles(whole, n=100, method="inclusive")
    return {
        "claims_of_100": len(whole),
        "claims": len(claims),
        "claim_p50_ms": round(cuts[49], 1),
        "claim_p99_ms": round(cuts[98], 1),
        "claim_max_ms": round(max(whole), 1),
    }


def _print(rounds: dict[str, list[Round]], claims: list[tuple[int, float]]) -> None:
    figures.drains("Drain: claim, charge, settle; durable", rounds)
    if facts := claim_facts(claims):
        figures.table("Claims of 100 jobs at half the rate", tuple(facts), [tuple(facts.values())])
    figures.bars("drain", "Drain: claim, charge, settle; durable", "jobs/s", rounds)


if __name__ == "__main__":
    main()
