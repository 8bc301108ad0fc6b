"""Simulated housekeepers, and the people around them: schedule, dunning, webhooks, events; cards that change, acts by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from billing_shards.billing import dunner, scheduler, subscriptions
from billing_shards.errors import BrokerUnavailable, EventRefused
from billing_shards.jobs.manual import Verb
from billing_shards.jobs.model import Status as JobStatus
from billing_shards.jobs.purge import Purge
from billing_shards.outbox import envelope, rounds, store
from billing_shards.outbox.decide import chains
from billing_shards.outbox.model import Answer, Batch, Leased, Problem, Refused, Sent, StoredEvent
from billing_shards.payments import customers, manual
from billing_shards.payments.model import Found, WebhookEvent
from billing_shards.payments.refunds.request import RefundOrder, request
from billing_shards.payments.webhooks import receive
from billing_shards.payments.webhooks.apply import Applier
from tests.mysql.shard_set import NAME
from tests.simulation.adapter import at_once
from tests.simulation.hosts import Host, Option
from tests.simulation.provider import Provider

if TYPE_CHECKING:
    from tests.simulation.world import World

_LEASE_SECONDS = 30.0
_MESSAGE_BYTES_MAX = 100_000
BY = subscriptions.By(actor="customer", reason="asked for")


@dataclass(slots=True, kw_only=True)
class _Sending:
    """A batch of events on its way to the broker."""

    shard: int
    batch: Batch
    chains: list[list[StoredEvent]]
    until: float
    """By the host's clock: nothing is sent later under this lease."""
    answers: list[Answer] = field(default_factory=list)


class Housekeeper(Host):
    """Schedules, duns, takes and applies webhooks, publishes events."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        self._rest_until = 0.0
        super().__init__(world, name, skew)

    def start(self) -> None:
        super().start()
        self._token = self.world.rng.getrandbits(63)
        self._sending: _Sending | None = None
        self._webhooks = Applier(self.spec, self.world.router, draw=self.world.rng.random)
        self._job_purge = Purge(self.world.router, self.spec.claimer.finished_jobs_retention_seconds)

    def wakes_at(self) -> float | None:
        return self._rest_until if self._rest_until > self.world.now else None

    def options(self) -> Iterator[Option]:
        due = self.world.due().values()
        if any(one.periods for one in due):
            yield 3, self.schedule
        if any(one.dunning for one in due):
            yield 2, self._dun
        if any(one.webhooks for one in due):
            yield 2, self._apply
        if any(one.customers for one in due):
            yield 2, self._look_at_customers
        for provider in self.world.providers:
            if any(at <= provider.clock() for at, _ in provider.webhooks or ()):
                yield 2, partial(self._receive, provider)
        if self._sending is not None:
            yield 4, self._publish
        elif self.world.plan.publishing and self._rest_until <= self.world.now and any(one.events for one in due):
            yield 2, self._take

    def asides(self) -> Iterator[Option]:
        yield 0.1, self._purge

    def schedule(self) -> None:
        """One batch of one due shard."""
        world = self.world

        def work() -> int:
            due = scheduler.due_shards(world.router, world.shards)
            if not due:
                return 0
            return scheduler.schedule_shard(
                world.router,
                world.rng.choice(due),
                lanes=self.lanes,
                grace_seconds=self.spec.retry.grace_seconds,
                limit=world.rng.randint(1, 5),
                catch_up_max=world.rng.randint(1, 3),
            )

        count = world.act(self, "schedules", work)
        if count:
            world.note(self, f"has written {count} invoices")

    def _dun(self) -> None:
        world = self.world
        database = world.rng.choice([name for name, due in world.due().items() if due.dunning])

        def work() -> int:
            count = 0
            for shard in dunner.due_shards(world.router, database, world.shards_of(database)):
                count += dunner.dun_shard(
                    world.router,
                    shard,
                    self.spec.dunning,
                    grace_seconds=self.spec.retry.grace_seconds,
                    limit=world.rng.randint(1, 3),
                )
            return count

        world.act(self, f"duns on {database}", work)

    def _look_at_customers(self) -> None:
        """One batch of one lane."""
        world = self.world
        database = world.rng.choice([name for name, due in world.due().items() if due.customers])

        def work() -> tuple[int, list[customers.Waiting]]:
            with world.router.connect(database) as connection:
                due = customers.due_lanes(connection, world.shards_of(database))
            if not due:
                return 0, []
            shard, lane = world.rng.choice(due)
            return shard, customers.take(world.router, shard, lane, policy=self.spec.retry) or []

        shard, waiting = world.act(self, f"looks for customers on {database}", work) or (0, [])
        acted = [one.attempt for one in waiting if customers.waits_no_more(self._ask(one))]
        if acted:
            world.act(self, f"sees that {acted} have acted", partial(customers.hurry, world.router, shard, acted))

    def _ask(self, one: customers.Waiting) -> Found:
        gateway = self.world.gateways.named(one.provider)
        assert gateway is not None
        return at_once(gateway.find(str(one.attempt)))

    def _purge(self) -> None:
        database = self.world.rng.choice(sorted(self.world.router.databases))
        purge = partial(self._job_purge.step, database, self.world.shards_of(database))
        self.world.act(self, f"purges jobs of {database}", purge)

    # Webhooks

    def _receive(self, provider: Provider) -> None:
        """One webhook is delivered; what is not answered well is delivered again later."""
        assert provider.webhooks is not None
        due = [entry for entry in provider.webhooks if entry[0] <= provider.clock()]
        entry = self.world.rng.choice(due)
        provider.webhooks.remove(entry)
        event: WebhookEvent = entry[1]
        received = receive.received(provider.name, event, b"{}", self.spec.shard_count)
        done: list[bool] = []

        def work() -> None:
            receive.keep(self.world.router, provider.name, received)
            done.append(True)

        self.world.act(self, f"is told {event.id}", work)
        if not done:
            provider.webhooks.append((provider.clock() + 60, event))

    def _apply(self) -> None:
        world = self.world
        database = world.rng.choice([name for name, due in world.due().items() if due.webhooks])
        world.act(self, f"applies webhooks on {database}", partial(self._webhooks.apply, database, world.shards_of(database)))

    # Events

    def _take(self) -> None:
        world = self.world
        database = world.rng.choice([name for name, due in world.due().items() if due.events])

        def work() -> tuple[int, Batch | Leased] | None:
            with world.router.connect(database) as connection:
                ready = sorted(store.shards_to_publish(connection, world.shards_of(database)))
            if not ready:
                return None
            shard, limit = world.rng.choice(ready), world.rng.randint(1, 20)
            return shard, rounds.take(world.router, shard, token=self._token, lease_seconds=_LEASE_SECONDS, limit=limit)

        began = self.now
        taken = world.act(self, f"takes events on {database}", work)
        shard, batch = taken if taken is not None else (0, None)
        if batch is None or isinstance(batch, Leased):
            self._rest_until = world.now + 5
        else:
            parts = [list(chain) for chain in chains(batch.events)]
            self._sending = _Sending(shard=shard, batch=batch, chains=parts, until=began + _LEASE_SECONDS - 10)

    def _publish(self) -> None:
        """One event to the broker, or, where all are sent that can be, the record of what became of them."""
        sending = self._sending
        assert sending is not None
        parts = [chain for chain in sending.chains if chain]
        if parts and self.now <= sending.until:
            chain = self.world.rng.choice(parts)
            self._send(sending, chain)
        else:
            self._sending = None
            recorded = partial(rounds.record, self.world.router, sending.shard, sending.batch, sending.answers)
            if sending.answers or sending.batch.behind:
                self.world.act(self, f"records {len(sending.answers)} events of {sending.shard}", recorded)
            else:
                self._rest_until = self.world.now + 1

    def _send(self, sending: _Sending, chain: list[StoredEvent]) -> None:
        event = chain.pop(0)
        try:
            self.world.broker.publish(envelope.message(NAME, event, bytes_max=_MESSAGE_BYTES_MAX))
        except EventRefused as error:
            self.world.note(self, f"is refused event {event.number} of {event.shard}: {error}")
            sending.answers.append(Refused(event=event, problem=Problem(error.problem), details=error.details))
            chain.clear()
        except BrokerUnavailable as error:
            self.world.note(self, f"sends event {event.number} of {event.shard}: {error}")
            for other in sending.chains:
                other.clear()
        else:
            sending.answers.append(Sent(event=event))


_ACTS = {
    Verb.RETRY: (JobStatus.READY, JobStatus.FAILED, JobStatus.AWAITING_CUSTOMER, JobStatus.REVIEW),
    Verb.RELEASE: (JobStatus.PROCESSING,),
    Verb.SET_ASIDE: (JobStatus.READY, JobStatus.AWAITING_CUSTOMER),
}
"""What a person may do to jobs of which status. Not to close an attempt: that is a word which only the provider can give."""


class People(Host):
    """Customers, who give another payment method now and then, and staff, who do things to jobs by hand."""

    def options(self) -> Iterator[Option]:
        return iter(())

    def disasters(self) -> Iterator[Option]:
        yield self.world.plan.people, self._change_method
        yield self.world.plan.people / 2, self._act
        yield self.world.plan.refunds, self._refund

    def _change_method(self) -> None:
        world = self.world
        subject = subscriptions.Subject(id=world.rng.choice(world.subscribed), shard_count=self.spec.shard_count)
        method = world.rng.choice(world.plan.methods)
        change = partial(
            subscriptions.change_payment_method,
            world.router,
            subject,
            method,
            grace_seconds=self.spec.retry.grace_seconds,
            by=BY,
        )
        world.act(self, f"pays {subject.id} by {method}", change)

    def _act(self) -> None:
        world = self.world
        verb = world.rng.choice(tuple(_ACTS))
        jobs = world.jobs(_ACTS[verb])
        if not jobs:
            return
        shard, job, invoice = world.rng.choice(jobs)
        if verb is Verb.SET_ASIDE:
            world.set_aside.add(f"{shard}/{invoice}")
        act = partial(manual.act, world.router, shard, job, verb, actor="anna", reason="to see what happens")
        world.act(self, f"{verb.value} {shard}/{invoice}", act)

    def _refund(self) -> None:
        """Of an invoice that is paid, or was a moment ago; under a key that may have been used before."""
        world = self.world
        paid = world.paid_invoices()
        if not paid:
            return
        shard, invoice, amount = world.rng.choice(paid)
        order = RefundOrder(
            shard=shard,
            invoice=invoice,
            amount=world.rng.choice((None, None, max(1, amount // 2), amount)),
            key=world.rng.choice(("first", "second", "third")),
            actor="anna",
            reason="an outage",
        )
        world.act(
            self, f"gives back {order.amount or 'all'} of {shard}/{invoice} by {order.key}", partial(request, world.router, order)
        )
