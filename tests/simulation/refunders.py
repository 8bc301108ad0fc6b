"""Simulated hosts that send refunds: in production a chore of the housekeeper."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from billing_shards.payments.model import Failed, RefundOutcome
from billing_shards.payments.recheck import take_back
from billing_shards.payments.refunds import store, work
from billing_shards.payments.refunds.model import Taken
from billing_shards.payments.refunds.push import push
from billing_shards.payments.webhooks.model import AttemptReference
from tests.simulation.adapter import at_once
from tests.simulation.hosts import Host, Option

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(slots=True)
class _Asking:
    """A refund that the provider is asked for, or about, and the world's time from which that can go on."""

    taken: Taken
    work: Coroutine[float, None, RefundOutcome]
    at: float


class Refunder(Host):
    """Takes due refunds, asks the provider, writes what it said."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        self._asking: list[_Asking] = []
        super().__init__(world, name, skew)

    def start(self) -> None:
        super().start()
        for one in self._asking:
            one.work.close()
        self._asking = []
        self._answered: list[tuple[Taken, RefundOutcome]] = []
        self._failed: list[Taken] = []

    def wakes_at(self) -> float | None:
        return min((one.at for one in self._asking), default=None)

    def options(self) -> Iterator[Option]:
        if any(one.at <= self.world.now for one in self._asking):
            yield 6, self._go_on
        if self._answered:
            yield self.world.plan.haste, self._settle
        if self._failed:
            yield 4, self._look_at_charge
        if not self._asking and any(due.refunds for due in self.world.due().values()):
            yield 3, self._take

    def disasters(self) -> Iterator[Option]:
        if self._asking or self._answered:
            yield from super().disasters()

    def _take(self) -> None:
        world = self.world
        database = world.rng.choice([name for name, due in world.due().items() if due.refunds])

        def take() -> list[Taken]:
            with world.router.connect(database) as connection:
                due = sorted(store.due_shards(connection, world.shards_of(database)))
            return work.take(world.router, world.rng.choice(due)) if due else []

        for taken in world.act(self, f"takes refunds on {database}", take) or ():
            gateway = world.gateways.named(taken.refund.provider)
            world.note(self, f"has refund {taken.refund.reference}")
            self._asking.append(_Asking(taken, push(gateway, taken), world.now))

    def _go_on(self) -> None:
        world = self.world
        one = world.rng.choice([one for one in self._asking if one.at <= world.now])
        try:
            with world.acting(self):
                one.at = one.work.send(None)
        except StopIteration as ended:
            self._asking.remove(one)
            world.note(self, f"hears of refund {one.taken.refund.reference}: {ended.value}")
            self._answered.append((one.taken, ended.value))

    def _settle(self) -> None:
        """What fails is taken again when its lease has ended."""
        taken, outcome = self._answered.pop(self.world.rng.randrange(len(self._answered)))
        settle = partial(work.settle, self.world.router, taken, outcome, policy=self.spec.retry)
        self.world.act(self, f"settles refund {taken.refund.reference}", settle)
        if isinstance(outcome, Failed):
            self._failed.append(taken)

    def _look_at_charge(self) -> None:
        """It may have been taken back, and its webhook be on its way."""
        world, refund = self.world, self._failed.pop().refund
        gateway = world.gateways.named(refund.provider)
        assert gateway is not None
        attempt = AttemptReference(shard=refund.shard, invoice=refund.invoice, attempt=refund.attempt_no)
        found = at_once(gateway.find(str(attempt)))
        reverse = partial(take_back, world.router, self.spec, attempt, found, draw=world.rng.random())
        world.act(self, f"looks at charge {attempt}: {found}", reverse)
