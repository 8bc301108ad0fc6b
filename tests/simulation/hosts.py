"""Simulated hosts. Each keeps in memory what the real process keeps, and its steps are the product's own functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from billing_shards.jobs import store
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import Job
from billing_shards.payments import charge, reap, settle
from billing_shards.payments.model import Outcome
from billing_shards.payments.settle import Result

if TYPE_CHECKING:
    from tests.simulation.world import World

Option: TypeAlias = "tuple[float, Callable[[], None]]"

ROOM = 6
"""Jobs that a claimer holds at most."""


@dataclass(slots=True)
class Charging:
    """A charge under way: its coroutine, and the world's time from which it can go on."""

    job: Job
    work: Coroutine[float, None, Outcome]
    at: float


class Host:
    """A process on a machine with a clock of its own."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        self.world = world
        self.name = name
        self.skew = skew
        self.paused_until = 0.0
        """The world's time."""
        self.paused_turn = 0
        """Or the world's step: how long others take is no matter then, which meets more of what they are in the middle of."""
        self.charging: list[Charging] = []
        self.start()

    @property
    def now(self) -> float:
        """By its own clock."""
        return self.world.now + self.skew

    def start(self) -> None:
        """A new process, which remembers nothing and reads the spec of today."""
        for charging in self.charging:
            charging.work.close()
        self.charging = []
        self.spec = self.world.spec
        self.lanes = Lanes(self.spec)

    def wakes_at(self) -> float | None:
        """The world's time at which it has something to do by itself."""
        return None

    def options(self) -> Iterator[Option]:
        """What it could do now, each with a weight."""
        raise NotImplementedError

    def asides(self) -> Iterator[Option]:
        """What it does now and then though there is no need: then nothing may come of it."""
        return iter(())

    def disasters(self) -> Iterator[Option]:
        """What could befall it now."""
        yield self.world.plan.disaster, self._die
        yield self.world.plan.disaster, self._pause

    def _die(self) -> None:
        self.world.note(self, "dies")
        self.start()

    def _pause(self) -> None:
        if self.world.rng.random() < 0.5:
            self.paused_turn = self.world.steps + self.world.rng.randint(5, 60)
            self.world.note(self, f"stands still until step {self.paused_turn}")
        else:
            seconds = self.world.rng.choice((20, 400, 4000, self.world.pause_max))
            self.paused_until = self.world.now + seconds
            self.world.note(self, f"stands still for {seconds} s")


class Claimer(Host):
    """Claims, charges, settles, renews, reaps, gives back."""

    def start(self) -> None:
        super().start()
        self.claimed: list[Job] = []
        self.outcomes: defaultdict[int, list[Result]] = defaultdict(list)
        self.renewed_at = self.now

    @property
    def held(self) -> list[Job]:
        """All that it believes to hold."""
        settling = [result.job for results in self.outcomes.values() for result in results]
        return [*self.claimed, *(c.job for c in self.charging), *settling]

    def wakes_at(self) -> float | None:
        times = [c.at for c in self.charging]
        if self.held:
            times.append(self.renewed_at + self.spec.claimer.lease_seconds / 3 - self.skew)
        return min(times, default=None)

    def options(self) -> Iterator[Option]:
        held = self.held
        if self.claimed:
            yield 4, self._begin
        if any(c.at <= self.world.now for c in self.charging):
            yield 6, self._go_on
        if any(self.outcomes.values()):
            yield self.world.plan.haste, self._settle
        if held and self.now >= self.renewed_at + self.spec.claimer.lease_seconds / 3:
            yield 5, self._renew
        if len(held) < ROOM and any(due.ready for due in self.world.due().values()):
            yield 3, self.claim
        if any(due.expired for due in self.world.due().values()):
            yield 2, self._reap

    def asides(self) -> Iterator[Option]:
        if self.held:
            yield 0.2, self._reap

    def disasters(self) -> Iterator[Option]:
        yield from super().disasters()
        if self.held:
            yield self.world.plan.disaster, self._stop

    def claim(self) -> None:
        """Look what is due on a database, and claim some of one lane."""
        world = self.world
        database = world.rng.choice([name for name, due in world.due().items() if due.ready] or list(world.router.databases))
        shards = world.shards_of(database)

        def work() -> list[Job] | None:
            with world.router.connect(database) as connection:
                due = sorted(
                    ((d.shard, d.lane) for d in store.next_due(connection, shards) if d.in_seconds <= 0),
                    key=lambda d: (d[0], d[1]),
                )
            if not due:
                return None
            shard, lane = world.rng.choice(due)
            return store.claim(
                world.router,
                shard,
                lane,
                limit=world.rng.randint(1, ROOM - len(self.held)),
                lease_seconds=self.spec.claimer.lease_seconds,
                provider=self.lanes.provider(lane),
            ).jobs

        jobs = world.act(self, f"claims on {database}", work)
        if jobs:
            if not self.held:
                self.renewed_at = self.now
            self.claimed += jobs
            world.note(self, f"has {[(j.reference, 'again' if j.resumed else 'new') for j in jobs]}")

    def _begin(self) -> None:
        job = self.claimed.pop(self.world.rng.randrange(len(self.claimed)))
        gateway = self.world.gateways.named(job.provider)
        self.world.note(self, f"begins to charge {job.reference}")
        self.charging.append(Charging(job, charge.charge(gateway, job), self.world.now))

    def _go_on(self) -> None:
        world = self.world
        ready = [c for c in self.charging if c.at <= world.now]
        one = world.rng.choice(ready)
        try:
            with world.acting(self):
                one.at = one.work.send(None)
        except StopIteration as ended:
            self.charging.remove(one)
            world.note(self, f"hears of {one.job.reference}: {ended.value}")
            self.outcomes[one.job.shard].append(Result(job=one.job, outcome=ended.value, draw=world.rng.random()))

    def _settle(self) -> None:
        world = self.world
        shard = world.rng.choice([shard for shard, results in self.outcomes.items() if results])
        results = self.outcomes[shard]
        lost = world.act(
            self,
            f"settles {[r.job.reference for r in results]}",
            partial(settle.settle, world.router, shard, results, policy=self.spec.retry),
        )
        if lost is not None:
            self.outcomes[shard] = [r for r in self.outcomes[shard] if r not in results]
            if lost:
                world.note(self, f"has lost {[j.reference for j in lost]}")

    def _renew(self) -> None:
        held = self.held
        lease = self.spec.claimer.lease_seconds
        self.renewed_at = self.now
        self.world.act(self, f"renews {len(held)}", partial(store.renew, self.world.router, held, lease_seconds=lease))

    def _reap(self) -> None:
        world = self.world
        database = world.rng.choice([name for name, due in world.due().items() if due.expired] or list(world.router.databases))
        shards = world.shards_of(database)
        reaping = partial(reap.reap, world.router, database, shards, settings=self.spec.claimer)
        if world.act(self, f"reaps on {database}", reaping) and world.plan.quiet:
            world.violations.append(f"{self.name} has reaped, though nothing befell any host")

    def _stop(self) -> None:
        """A good end: what is held is given back, and a new process starts."""
        held = self.held
        self.world.act(self, f"gives back {len(held)} and ends", partial(store.release, self.world.router, held))
        self.start()
