"""`make bench-http`: one claimer process against a provider over HTTP that takes its time to answer.

Two figures. The rate and memory of one process while each charge takes 200 ms; and, with two services that have lanes and
providers of their own, the rate of one while the other's provider answers nothing, against its rate alone. Provider and server
share the machine's cores with the claimer, so the rate is a lower bound; the claimer's own CPU time a charge says what a core of
its own would carry.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from billing_shards import bench
from billing_shards.settings import Manifest
from hack.bench import figures, runs, site
from hack.bench.figures import Round
from hack.bench.responder import Running, responder
from hack.mysql import MySQLServer

_SHARDS = 16
_MUSIC, _VIDEO = 1, 2
_WEIGHT = 10
"""Of a service's renewals, where retries and the common lanes have 1: more than a third of the workers are sure for each."""
_HELD_SECONDS = 300
"""Longer than any round: what hangs holds its share of the claimer all the while."""
_ALONE, _BESIDE = "music alone", "music while video's provider hangs"


def main() -> None:
    """Run the rounds, print a table, save a plot and, last, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=30_000, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=600)
    options = parser.parse_args()
    rounds: dict[str, list[Round]] = {"one claimer": [], _ALONE: [], _BESIDE: []}
    with site.server() as (mysql, folder):
        for _ in range(options.rounds):
            rounds["one claimer"].append(_one_claimer(mysql, folder, options))
            rounds[_ALONE].append(_music(mysql, folder, options, videos=0))
            rounds[_BESIDE].append(_music(mysql, folder, options, videos=6 * options.workers))
    figures.drains(f"One claimer process, {options.workers} workers, a provider that takes {options.delay_ms:.0f} ms", rounds)
    figures.bars("http", "One claimer process over HTTP", "charges/s", rounds)
    rate = {name: figures.median_rate(of_one) for name, of_one in rounds.items()}
    facts: dict[str, Any] = {name: getattr(options, name) for name in ("jobs", "delay_ms", "workers")}
    facts["charges_per_s"] = round(rate["one claimer"])
    facts["claimer_cpu_us_per_charge"] = round(statistics.median(1e6 * one.clients / one.jobs for one in rounds["one claimer"]))
    facts["claimer_memory_mb"] = max(one.memory_mb for one in rounds["one claimer"])
    facts["rate_beside_a_hang"] = round(rate[_BESIDE] / rate[_ALONE], 3)
    figures.result("http", facts)


def _one_claimer(mysql: MySQLServer, folder: Path, options: argparse.Namespace) -> Round:
    with (
        responder(options.delay_ms) as provider,
        site.manifest(mysql, folder, shards=_SHARDS, url=provider.url, claimer=_claimer(options.workers)) as path,
    ):
        bench.set_up_new(Manifest.read(path))
        bench.fill(Manifest.read(path), options.jobs)
        one = runs.drained(mysql, path, jobs=options.jobs, processes=1, over_http=True)
        _verify(provider, options.jobs)
    return one


def _music(mysql: MySQLServer, folder: Path, options: argparse.Namespace, *, videos: int) -> Round:
    """The rate of music's charges while as many of video's as given hang."""
    lanes = (("music", _MUSIC), ("video", _VIDEO))
    services = [{"name": name, "lane": lane, "gateway": name, "renewalWeight": _WEIGHT} for name, lane in lanes]
    with responder(options.delay_ms) as music, responder(None) as video:
        patience = {"timeoutSeconds": _HELD_SECONDS, "readTimeoutSeconds": _HELD_SECONDS}
        gateways = [{"name": "music", "url": music.url}, {"name": "video", "url": video.url, **patience}]
        others = {"gateways": gateways, "services": services}
        # Enough for a share to be rate times latency at least, also where the machine is fast.
        claimer = _claimer(3 * options.workers) | {"renewalWeight": 1, "retryWeight": 1}
        with site.manifest(mysql, folder, shards=_SHARDS, url=music.url, claimer=claimer, **others) as path:
            manifest = Manifest.read(path)
            bench.set_up_new(manifest)
            for lane, jobs, first in ((_VIDEO, videos, options.jobs), (_MUSIC, options.jobs, 0)):
                bench.fill(manifest, jobs, bench.Arrivals(lane=2 * lane), first=first)
            one = _drain_music(mysql, path, options.jobs)
        _verify(music, options.jobs)
    return one


def _drain_music(mysql: MySQLServer, path: Path, jobs: int) -> Round:
    with bench.Claimers(path, 1, over_http=True) as claimers:
        (claimer,) = claimers.pids
        clients, server, start = figures.cpu_of(claimer), figures.cpu_of(mysql.pid), time.perf_counter()
        claimers.go()
        while claimers.charged()[1] < jobs and claimers.alive:
            time.sleep(0.005)
        seconds = time.perf_counter() - start
        clients, server = figures.cpu_of(claimer) - clients, figures.cpu_of(mysql.pid) - server
        if claimers.charged() != [0, jobs, 0]:
            raise AssertionError(f"of {jobs} charges of music, these were answered: {claimers.charged()}")
    return Round(jobs=jobs, rate=jobs / seconds, clients=clients, server=server)


def _claimer(workers: int) -> dict[str, Any]:
    return {"batch": min(500, workers), "workers": workers}


def _verify(provider: Running, jobs: int) -> None:
    counts = provider.counts()
    if counts != {"charges": jobs, "repeated": 0}:
        raise AssertionError(f"of {jobs} charges, the provider saw {counts}")


if __name__ == "__main__":
    main()
