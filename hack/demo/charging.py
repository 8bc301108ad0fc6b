"""Watches the charges until every due invoice is dealt with, and kills processes on the way."""

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from hack.demo import resources
from hack.demo.faults import Kill, kill
from hack.demo.figures import PROGRESS_SQL, Progress, progress
from hack.demo.narrator import Step
from hack.demo.site import Pod, Site
from hack.errors import ToolError

_LONGEST_SECONDS = 900
_PAUSE_SECONDS = 2.0
_RATE_LOOKS = 5

PLAN = (("claimer", 0.15), ("claimer", 0.30), ("mysql", 0.45))
"""What is killed, and when: by the share of invoices that is settled."""
_MYSQL_VICTIM = "b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """What was seen while charges were under way."""

    kills: tuple[Kill, ...]
    counters: Counter[str]
    """Counters of all claimers added up, those of the killed ones included, up to shortly before they were killed."""
    best_rate: float
    """Invoices settled a second, in the best stretch of some seconds."""


@dataclass(slots=True, kw_only=True)
class Charging:
    """One watch."""

    site: Site
    step: Step
    invoices: int
    """How many there must be in the end."""
    kills: list[Kill] = field(default_factory=list)
    _counters_of_killed: Counter[str] = field(default_factory=Counter)
    _looks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RATE_LOOKS))
    _best_rate: float = 0.0

    def watch(self) -> Charged:
        """Until all is dealt with and everything that was killed is back. Raises ToolError where that takes too long."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        while True:
            answers = self.site.sql(PROGRESS_SQL)
            pods = {pod.name: pod for pod in self.site.pods()}
            self._look_after(pods, answers)
            now = progress(answers.values())
            if len(answers) == len(resources.DATABASES):
                self._show(now)
                if self._is_over(now):
                    return self._charged(pods)
                self._kill_next(now, pods)
            if time.monotonic() > deadline:
                raise ToolError(f"not all invoices are settled after {_LONGEST_SECONDS} s: {_words(now, self.invoices)}")
            time.sleep(_PAUSE_SECONDS)

    def _is_over(self, now: Progress) -> bool:
        recovered = all(one.recovered_seconds is not None for one in self.kills)
        return recovered and now.complete and now.jobs >= self.invoices

    def _show(self, now: Progress) -> None:
        self._looks.append((time.monotonic(), now.settled))
        rate = self._rate()
        self._best_rate = max(self._best_rate, rate)
        self.step.progress(now.settled, self.invoices, f"{_words(now, self.invoices)}, {rate:.0f}/s")

    def _rate(self) -> float:
        (first, before), (last, after) = self._looks[0], self._looks[-1]
        return max(0.0, (after - before) / (last - first)) if last - first > _PAUSE_SECONDS else 0.0

    def _kill_next(self, now: Progress, pods: dict[str, Pod]) -> None:
        if len(self.kills) == len(PLAN):
            return
        kind, share = PLAN[len(self.kills)]
        if now.settled < share * self.invoices:
            return
        victim = self._busiest_claimer(now, pods) if kind == "claimer" else pods.get(resources.mysql_pod(_MYSQL_VICTIM))
        if victim is not None and victim.ready:
            self._kill(kind, victim, now)

    def _busiest_claimer(self, now: Progress, pods: dict[str, Pod]) -> Pod | None:
        """One that holds jobs, and was not killed before."""
        spared = {one.pod for one in self.kills}
        claimers = [pod for pod in pods.values() if pod.component == "claimer" and pod.name not in spared]
        busy = [pod for pod in claimers if _held(now, pod)]
        return max(busy, key=lambda pod: _held(now, pod), default=None)

    def _kill(self, kind: str, victim: Pod, now: Progress) -> None:
        if kind == "claimer":
            what, held = f"claimer of shards {victim.shards}", _held(now, victim)
            self._counters_of_killed.update(self.site.metrics(victim.name))
        else:
            what, held = f"MySQL {_MYSQL_VICTIM}", now.held
        kill(self.site, victim)
        self.kills.append(
            Kill(
                what=what,
                kind=kind,
                pod=victim.name,
                restarts_before=victim.restarts,
                held=held,
                at=time.monotonic(),
            )
        )
        self.step.note(f"SIGKILL to the {what}, {held} jobs under way", "yellow")

    def _look_after(self, pods: dict[str, Pod], answers: dict[str, str]) -> None:
        for at, one in enumerate(self.kills):
            works = one.kind != "mysql" or _MYSQL_VICTIM in answers
            seen = one.seen(pods.get(one.pod), works=works, now=time.monotonic())
            if seen is not one:
                self.kills[at] = seen
                self.step.note(f"{seen.what} is back after {seen.recovered_seconds:.1f} s", "yellow")

    def _charged(self, pods: dict[str, Pod]) -> Charged:
        counters = Counter(self._counters_of_killed)
        for pod in pods.values():
            if pod.component == "claimer":
                counters.update(self.site.metrics(pod.name))
        return Charged(kills=tuple(self.kills), counters=counters, best_rate=self._best_rate)


def _held(now: Progress, claimer: Pod) -> int:
    return now.held_by_range.get(int(claimer.shards.partition("-")[0]), 0)


def _words(now: Progress, invoices: int) -> str:
    return f"{now.settled:,} of {invoices:,} invoices settled"
