"""`make bench-http`: one claimer process against a provider over HTTP that takes its time to answer.

The provider (hack/fake_gateway) and the server share the machine's cores with the claimer, so the rate is a lower bound; the
claimer's own CPU time a charge says what a core of its own would carry.
"""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.table import Table

from billing_shards import bench
from hack.bench import site
from hack.fake_gateway import FakeGateway


def main() -> None:
    """Run once, print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--delay-ms", type=int, default=50)
    parser.add_argument("--workers", type=int, default=500)
    options = parser.parse_args()
    claimer = {"batch": min(500, options.workers), "workers": options.workers}
    with site.server() as (mysql, folder), FakeGateway.start(folder / "gateway", delay_ms=options.delay_ms) as provider:
        with site.manifest(mysql, folder, shards=16, url=provider.url, claimer=claimer) as path:
            report = bench.drain(path, jobs=options.jobs, processes=1, over_http=True)
        summary = provider.summary()
    table = Table("charges/s", "claimer CPU µs a charge", "claimer memory MB", "double charges", title="One claimer over HTTP")
    rate, cpu, memory = report.jobs_per_second, report.claimer_cpu_us_per_job, report.claimer_memory_mb
    table.add_row(f"{rate:,}", str(cpu), str(memory), str(summary["double_charges"]))
    Console(stderr=True).print(table)
    facts = {"charges_per_s": rate, "claimer_cpu_us_per_charge": cpu, "claimer_memory_mb": memory}
    print(json.dumps({"benchmark": "http", "delay_ms": options.delay_ms, "workers": options.workers, **facts}))


if __name__ == "__main__":
    main()
