"""What every benchmark does with its rounds: take CPU time along, draw a table, save a plot, end with one line of JSON.

Results go to `bench-results/` (or where `BENCH_RESULTS` says): `<name>.json` and `<name>.png`.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

_ROOT = Path(__file__).resolve().parents[2]
_DOTS_PER_INCH = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measured run."""

    jobs: int
    rate: float
    """Jobs a second."""
    clients: float
    """CPU seconds of the draining processes, start-up left out where it can be told apart."""
    server: float
    """CPU seconds of mysqld meanwhile; not a number where that runs in a container."""
    memory_mb: int = 0
    """The largest resident set of any of our processes."""


def cpu_of_children() -> float:
    """CPU seconds of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_of(pid: int | None) -> float:
    """CPU seconds of a process of this machine."""
    if pid is None:
        return float("nan")
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def median_rate(rounds: Iterable[Round]) -> float:
    """Jobs a second."""
    return statistics.median(one.rate for one in rounds)


def cpu_per_job(rounds: Iterable[Round]) -> float:
    """CPU seconds of clients and server together for a job: what the rate comes from, and no neighbour changes it much."""
    return statistics.median((one.clients + one.server) / one.jobs for one in rounds)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Draw a table on standard error; figures get their thousands apart."""
    drawn = Table(*columns, title=title)
    for row in rows:
        drawn.add_row(*(_cell(value) for value in row))
    Console(stderr=True, width=None if os.isatty(2) else 140).print(drawn)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def drains(title: str, rounds: Mapping[str, Sequence[Round]]) -> None:
    """The table of drains: rates, and CPU time a job."""
    columns = ("", "jobs/s, median", "rounds", "client CPU µs a job", "server CPU µs a job")
    rows = [
        (
            name,
            median_rate(of_one),
            " ".join(f"{one.rate:,.0f}" for one in of_one),
            statistics.median(1e6 * one.clients / one.jobs for one in of_one),
            statistics.median(1e6 * one.server / one.jobs for one in of_one),
        )
        for name, of_one in rounds.items()
    ]
    table(title, columns, rows)


def result(name: str, facts: Mapping[str, Any]) -> None:
    """The last line of output, kept in a file as well."""
    line = json.dumps({"benchmark": name, **facts})
    (results_folder() / f"{name}.json").write_text(line + "\n")
    print(line)


def results_folder() -> Path:
    """Where results go; it is made."""
    folder = Path(os.environ.get("BENCH_RESULTS") or _ROOT / "bench-results")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def figure(width: float = 8, height: float = 4) -> Figure:
    """An empty drawing, in inches; no window is ever opened."""
    drawing = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def save(drawing: Figure, name: str) -> Path:
    """Write `<name>.png`."""
    path = results_folder() / f"{name}.png"
    drawing.savefig(path, dpi=_DOTS_PER_INCH)
    return path


def bars(name: str, title: str, unit: str, rounds: Mapping[str, Sequence[Round]]) -> None:
    """One bar a label: the median, with each round as a dot."""
    values = {label: [one.rate for one in of_one] for label, of_one in rounds.items()}
    drawing = figure(height=1.2 + 0.5 * len(values))
    axes = drawing.add_subplot()
    labels = list(values)[::-1]
    for place, label in enumerate(labels):
        middle = statistics.median(values[label])
        axes.barh(place, middle, color="#4c78a8", height=0.6)
        axes.plot(values[label], [place] * len(values[label]), "k.", markersize=5)
        axes.annotate(f" {middle:,.0f}", (max(values[label]), place), va="center")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlim(0, 1.15 * max(max(rounds) for rounds in values.values()))
    axes.set_xlabel(unit)
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    save(drawing, name)
