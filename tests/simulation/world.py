"""One seeded run: hosts, two databases, providers, a clock that jumps to the next due moment, faults between any two steps.

All of it is one thread, and every choice is drawn from the seed's own generator: the same seed is the same run. Virtual time
reaches the databases by SET TIMESTAMP at each checkout of a connection, each database at a skew of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any, TypeVar

import tenacity.nap
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, IntegrityError

from billing_shards.billing import store as subscriptions
from billing_shards.billing.model import Subscription
from billing_shards.billing.periods import Interval, Unit
from billing_shards.billing.subscriptions import Subject, cancel
from billing_shards.errors import BillingShardsError, InvalidInput
from billing_shards.jobs import store
from billing_shards.payments import gateway
from billing_shards.payments.providers import Providers
from billing_shards.payments.refunds import store as refunds
from billing_shards.settings import ShardSetSpec
from billing_shards.shards.transactions import ShardRouter
from tests.mysql.shard_set import ShardSet
from tests.simulation.adapter import Adapter, Looks
from tests.simulation.broker import Broker
from tests.simulation.faults import AT_COMMIT, AT_STATEMENT, Driver, Fault, HostDied, Step
from tests.simulation.hosts import Claimer, Host
from tests.simulation.keepers import BY, Housekeeper, People
from tests.simulation.provider import METHODS, Network, Provider
from tests.simulation.refunders import Refunder

T = TypeVar("T")

nap: Any = tenacity.nap  # where back-offs sleep
SHARDS = 3
_STATEMENTS = 12  # of a step, roughly: where a fault may fall
_ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "Europe/Berlin")
_MONEY = ((990, "USD"), (1500, "JPY"), (12_345, "KWD"), (1, "EUR"))

# What a database has for hosts to do, and when it will have more: so that a run does not consist of polling.
_LOOK = """
SELECT (SELECT COUNT(*) FROM billing_job WHERE status = 0 AND due_at <= %(now)s),
       (SELECT COUNT(*) FROM billing_job WHERE status = 1 AND due_at < %(now)s),
       (SELECT COUNT(*) FROM subscription WHERE status IN (1, 2) AND next_invoice_at <= %(now)s),
       (SELECT COUNT(*) FROM subscription WHERE next_dunning_at <= %(now)s),
       (SELECT COUNT(*) FROM webhook WHERE status = 0 AND due_at <= %(now)s),
       (SELECT COUNT(*) FROM billing_job WHERE status = 4 AND due_at <= %(now)s),
       (SELECT COUNT(*) FROM refund WHERE due_at <= %(now)s),
       (SELECT COUNT(*) FROM outbox WHERE sent_at IS NULL AND held = 0)
         + (SELECT COUNT(*) FROM outbox_blocked WHERE next_try_at <= %(now)s),
       (SELECT MIN(at) FROM (
          SELECT MIN(due_at) AS at FROM billing_job WHERE status IN (0, 1, 4) AND due_at > %(now)s AND due_at < '9999-01-01'
          UNION ALL SELECT MIN(next_invoice_at) FROM subscription WHERE next_invoice_at > %(now)s
          UNION ALL SELECT MIN(next_dunning_at) FROM subscription WHERE next_dunning_at > %(now)s
          UNION ALL SELECT MIN(due_at) FROM refund WHERE due_at > %(now)s
          UNION ALL SELECT MIN(due_at) FROM webhook WHERE status = 0 AND due_at > %(now)s
          UNION ALL SELECT MIN(next_try_at) FROM outbox_blocked WHERE next_try_at > %(now)s) AS moments)
"""


_COUNTS = ("ready", "expired", "periods", "dunning", "webhooks", "customers", "refunds", "events")


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What a database has to do by now."""

    ready: int
    expired: int
    periods: int
    dunning: int
    webhooks: int
    customers: int
    """Charges that wait for the customer, to be looked at."""
    refunds: int
    events: int
    next_at: float | None
    """When there will be more, in the world's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a seed chooses before its run."""

    spec: ShardSetSpec
    start: datetime
    days: float
    """How long faults go on, in virtual time."""
    steps_max: int
    """How many steps they go on at most."""
    fault_share: float
    network: Network
    skews: dict[str, float]
    """Seconds that each database's clock is away."""
    pause_max: float
    claimers: int
    haste: float
    """The weight of settling: where it is small, outcomes gather to larger batches."""
    publishing: bool
    broker_trouble: float
    webhooks: bool
    people: float
    """The weight of each thing that a person may do, as of a disaster."""
    refunds: float
    """That of a person who gives money back."""
    disaster: float
    """The weight of each thing that may befall a host, beside those of its own steps."""
    methods: tuple[str, ...]
    """Payment methods of which each subscription has one."""
    quiet: bool
    """Nothing befalls a host: then no lease may ever be lost."""


def plan(shard_set: ShardSet, rng: random.Random) -> Plan:
    """The settings of a seed's run."""
    bad = rng.choice((0.0, 0.5, 1.0, 2.0))
    quiet = rng.random() < 0.15
    choose = rng.choice
    spec = shard_set.site.spec(
        shardCount=SHARDS,
        claimer={
            "leaseSeconds": choice_of(rng, 30, 60, 300),
            "lostLeasesMax": choose((2, 5, 5)),
            "finishedJobsRetentionSeconds": choose((3600, 86_400, 7 * 86_400)),
        },
        retry={
            "delaysSeconds": choose(([60], [300, 1800], [300, 7200, 86_400])),
            "attemptsMax": choose((1, 2, 4)),
            "graceSeconds": choose((0, 3600, 14 * 86_400)),
            "checkDelaysSeconds": choose(([10, 60], [10, 60, 300, 3600], [10, 600, 7200, 43_200, 86_400])),
        },
        smoothing={"windowSeconds": choose((0, 3600))},
        gateway={"url": "http://127.0.0.1:9", "keyTtlSeconds": choose((3600, 86_400))},
        gateways=[{"name": "second", "url": "http://127.0.0.1:9", "keyTtlSeconds": 86_400}],
        services=[{"name": "music", "lane": 1, "gateway": "second", "windowSeconds": choose((0, 600))}],
    )
    return Plan(
        spec=spec,
        start=datetime(2025, 1, 28, tzinfo=UTC) + timedelta(days=rng.randrange(400), seconds=rng.randrange(86_400)),
        days=choose((1, 5, 20)),
        steps_max=choose((60, 120, 180)),
        fault_share=0.0 if quiet else choose((0.0, 0.1, 0.3, 0.6)),
        network=Network(
            not_reached=0.05 * bad,
            request_lost=0.05 * bad,
            request_late=0.05 * bad,
            answer_lost=0.1 * bad,
            twice=0.05 * bad,
            limited=0.03 * bad,
            find_lost=0.05 * bad,
        ),
        skews={name: rng.choice((0.0, rng.uniform(-5, 5), rng.uniform(-600, 600))) for name in shard_set.router.databases},
        pause_max=choose((1000, 20_000, 100_000)),
        disaster=choose((0.05, 0.12, 0.5)),
        claimers=choose((2, 3)),
        haste=choose((0.5, 4.0)),
        publishing=rng.random() < 0.3,
        broker_trouble=choose((0.0, 0.1, 0.3)),
        webhooks=rng.random() < 0.5,
        people=choose((0.0, 0.05, 0.3)),
        refunds=choose((0.0, 0.3, 1.0)),
        methods=METHODS,
        quiet=quiet,
    )


def choice_of(rng: random.Random, *values: T) -> T:
    """One of the values."""
    return rng.choice(values)


@dataclass(slots=True)
class Trace:
    """What happened, a line a step."""

    lines: list[str] = field(default_factory=list)


class World:
    """A run. `run` returns when every job has come to an end, or when that has become hopeless."""

    def __init__(
        self, seed: int, shard_set: ShardSet, driver: Driver, adjust: Callable[[Plan], Plan] = lambda plan: plan
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)  # noqa: S311
        random.seed(seed)  # what the product draws
        self.shard_set = shard_set
        self.router: ShardRouter = shard_set.router
        self.shards: Sequence[int] = range(SHARDS)
        self.driver = driver
        self.plan = adjust(plan(shard_set, self.rng))
        self.spec = self.plan.spec
        self.now = self.plan.start.timestamp()
        self.pause_max = self.plan.pause_max
        self.trace = Trace()
        self.violations: list[str] = []
        self.looks = Looks()
        self.set_aside: set[str] = set()
        """Jobs, `shard/invoice`, that a person has set aside once."""
        self.steps = 0
        self.sql_steps = 0
        self.met: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self._storm = True
        self._depth = 0
        self._acting: Host | None = None
        self._due: dict[str, Due] = {}
        self._eyes: dict[str, Connection] = {}
        skew = self.rng.uniform(-3600, 3600)
        self.providers = [
            Provider(
                gateway.name,
                random.Random(self.rng.random()),  # noqa: S311
                lambda: self.now + skew,
                key_ttl=gateway.key_ttl_seconds,
                find_lag=self.rng.choice((0.0, 0.0, 60.0)),
            )
            for gateway in self.spec.all_gateways
        ]
        for provider in self.providers:
            provider.network = self.plan.network
            provider.webhooks = [] if self.plan.webhooks else None
        self.broker = Broker(rng=random.Random(self.rng.random()), trouble=self.plan.broker_trouble)  # noqa: S311
        self.gateways = Providers([Adapter(provider, lambda: self.now, self.looks) for provider in self.providers])
        self.hosts: list[Host] = [
            *(Claimer(self, f"claimer {n}", self._host_skew()) for n in range(self.plan.claimers)),
            *(Housekeeper(self, f"housekeeper {n}", self._host_skew()) for n in range(2)),
            *(Refunder(self, f"refunder {n}", self._host_skew()) for n in range(2)),
            People(self, "people", 0.0),
        ]

    def _host_skew(self) -> float:
        return self.rng.choice((0.0, self.rng.uniform(-2, 2), self.rng.uniform(-7200, 7200)))

    # The run

    def run(self) -> None:
        """Storm, then calm until nothing is left to do."""
        with self.clock(), ExitStack() as stack:
            for name, database in self.shard_set.owners.items():
                self._eyes[name] = stack.enter_context(database.engine.connect().execution_options(isolation_level="AUTOCOMMIT"))
            self._subscribe()
            end = self.now + self.plan.days * 86_400
            while self.now < end and self.steps < self.plan.steps_max:
                self._turn()
            self._calm()
            while self._turn() and self.steps < self.plan.steps_max + 3000:
                pass

    def _turn(self) -> bool:
        """One step of one host, or a jump of the clock; False where nothing will ever happen any more."""
        self.steps += 1
        self._tick(self.rng.uniform(0.001, 0.02))
        options = [option for host in self._awake() for option in host.options()]
        if not options:
            return self._jump()
        if self._storm:
            options += [option for host in self._awake() for option in host.asides()]
        if self._storm and not self.plan.quiet:
            options += [option for host in self._awake() for option in host.disasters()]
        self.rng.choices([work for _, work in options], [weight for weight, _ in options])[0]()
        return True

    def _awake(self) -> list[Host]:
        return [host for host in self.hosts if host.paused_until <= self.now and host.paused_turn <= self.steps]

    def _jump(self) -> bool:
        """To the next moment at which something falls due."""
        at = self._next_moment()
        if at is None:
            return self._storm
        late = self.rng.choice((0.0, 0.1, 1.0, 5.0))
        if self._storm and not self.plan.quiet and self.rng.random() < 0.05:
            late = self.rng.uniform(0, self.pause_max)  # nobody was there
        self.now = max(self.now, at) + late + 0.000_002
        self._tick(0)
        self.note(None, f"clock {datetime.fromtimestamp(self.now, UTC):%m-%d %H:%M:%S}")
        return True

    def _next_moment(self) -> float | None:
        moments = [host.wakes_at() for host in self._awake()]
        moments += [host.paused_until for host in self.hosts]
        for provider in self.providers:
            at = provider.next_event()
            moments.append(None if at is None else at - provider.clock() + self.now)
        moments += [due.next_at for due in self.due().values()]
        return min((moment for moment in moments if moment is not None and moment > self.now), default=None)

    def due(self) -> dict[str, Due]:
        """What each database has to do by now."""
        for name in self.shard_set.owners:
            known = self._due.get(name)
            if known is None or (known.next_at is not None and known.next_at <= self.now):
                self._due[name] = self._look(name)
        return self._due

    def _look(self, name: str) -> Due:
        skew = self.plan.skews[name]
        now = datetime.fromtimestamp(self.now + skew, UTC).replace(tzinfo=None)
        *counts, next_at = self._eyes[name].exec_driver_sql(_LOOK, {"now": now}).one()
        at = None if next_at is None else next_at.replace(tzinfo=UTC).timestamp() - skew
        return Due(**dict(zip(_COUNTS, counts, strict=True)), next_at=at)

    def _tick(self, seconds: float) -> None:
        self.now += seconds
        for provider in self.providers:
            provider.tick()

    def _calm(self) -> None:
        """Faults end. Every period that has begun is invoiced; then the subscriptions are canceled, so that the run can end."""
        self.note(None, "calm")
        self._storm = False
        for provider in self.providers:
            provider.network = Network()
        self.broker.trouble = 0.0
        for host in self.hosts:
            host.paused_until, host.paused_turn = 0.0, 0
        keeper = next(host for host in self.hosts if isinstance(host, Housekeeper))
        while any(due.periods for due in self.due().values()) and self.steps < self.plan.steps_max + 100:
            self.steps += 1
            keeper.schedule()
        for one in self.subscribed:
            subject = Subject(id=one, shard_count=SHARDS)
            with suppress(InvalidInput):  # dunning was quicker
                cancel(self.router, subject, at_period_end=False, by=BY)
        self._due.clear()

    # What hosts use

    def jobs(self, statuses: Sequence[int]) -> list[tuple[int, int, int]]:
        """Shard, id and invoice of jobs with one of these statuses, as a person sees them."""
        query = "SELECT shard_id, id, invoice_id FROM billing_job WHERE status IN %(statuses)s ORDER BY shard_id, id"
        found = [row for eye in self._eyes.values() for row in eye.exec_driver_sql(query, {"statuses": tuple(statuses)})]
        return [(row[0], row[1], row[2]) for row in found]

    def paid_invoices(self) -> list[tuple[int, int, int]]:
        """Shard, id and amount of invoices that are paid, as a person sees them."""
        query = "SELECT shard_id, id, amount FROM invoice WHERE status = 2 ORDER BY shard_id, id"
        found = [row for eye in self._eyes.values() for row in eye.exec_driver_sql(query)]
        return [(row[0], row[1], row[2]) for row in found]

    def shards_of(self, database: str) -> list[int]:
        """The shards that a database owns."""
        return self.router.by_database(self.shards).get(database, [])

    def act(self, host: Host, label: str, work: Callable[[], T]) -> T | None:
        """Run a step of the product for a host, with the faults that the seed has for it. None where it failed."""
        step = self._step(host)
        self.sql_steps += 1
        kept, self.driver.step = self.driver.step, step
        failure = ""
        result = None
        try:
            with self.acting(host):
                result = work()
        except HostDied:
            pass
        except BillingShardsError as error:
            failure = f": {error}"
        except DBAPIError as error:
            failure = f": {error.orig}"
            self._unexpected(host, label, error, step)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the host, and is noted
            failure = f": {error!r}"
            self._unexpected(host, label, error, step)
        finally:
            self.driver.step = kept
            step.join()
        for fault in step.met:
            self.met[fault] += 1
        met = f" [{', '.join(fault.value for fault in step.met)}]" if step.met else ""
        self.note(host, f"{label}{met}{failure}")
        if step.dead:
            host.start()
            return None
        return result

    def _unexpected(self, host: Host, label: str, error: Exception, step: Step) -> None:
        """An error that is none of the product's ends the process. Only a fault of ours excuses it."""
        if not step.met or isinstance(error, IntegrityError) or not isinstance(error, DBAPIError):
            self.violations.append(f"{host.name} {label}: {error!r}")
        step.dead = True

    def _step(self, host: Host) -> Step:
        statements: dict[int, Fault] = {}
        commit = None
        if self._storm and self._depth == 0 and self.rng.random() < self.plan.fault_share:
            for _ in range(self.rng.choice((1, 1, 1, 4))):
                if self.rng.random() < 0.4:
                    commit = self.rng.choice(AT_COMMIT)
                else:
                    statements[self.rng.randrange(_STATEMENTS)] = self.rng.choice(AT_STATEMENT)
        return Step(statements=statements, commit=commit, others=lambda: self._claim_elsewhere(host))

    def _claim_elsewhere(self, host: Host) -> None:
        """In the middle of a transaction, other claimers claim: that never waits for a lock."""
        others = [h for h in self._awake() if isinstance(h, Claimer) and h is not host and len(h.held) < 3]
        if others and self._depth == 0:
            self._depth += 1
            self.rng.choice(others).claim()
            self._depth -= 1

    def interlude(self) -> None:
        """Between two runs of a transaction: time passes, and other hosts act."""
        if self._depth or not self._storm:
            return
        kept, self.driver.step = self.driver.step, None
        self._depth += 1
        self._tick(self.rng.choice((0.01, 0.01, 5.0, 400.0)))
        for _ in range(self.rng.randrange(3)):
            options = [option for host in self._awake() if host is not self._acting for option in host.options()]
            if options:
                self.rng.choices([work for _, work in options], [weight for weight, _ in options])[0]()
        self._depth -= 1
        self.driver.step = kept

    def note(self, host: Host | None, text: str) -> None:
        """A line of the trace."""
        self.trace.lines.append(f"{self.steps:4} {' ' * 4 * self._depth}{host.name if host else 'world'}: {text}")

    # Time

    @contextmanager
    def clock(self) -> Iterator[None]:
        """All connections of the router have the world's time, and back-offs take none of ours."""
        with ExitStack() as stack:
            for module, name, double in (
                (nap, "time", SimpleNamespace(sleep=lambda _: self.interlude())),
                (store, "clock", self._host_clock),
                (refunds, "clock", self._host_clock),
                (gateway, "clock", self._host_clock),
            ):
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, double)
            for name, database in self.router.databases.items():
                listener = self._setter(name)
                event.listen(database.engine, "checkout", listener)
                stack.callback(event.remove, database.engine, "checkout", listener)
            stack.enter_context(self.driver.installed())
            yield

    def _host_clock(self) -> float:
        """Of the host whose step it is."""
        return self.now + (self._acting.skew if self._acting is not None else 0.0)

    @contextmanager
    def acting(self, host: Host) -> Iterator[None]:
        """A step of a host."""
        kept, self._acting = self._acting, host
        try:
            yield
        finally:
            self._acting = kept

    def _setter(self, name: str) -> Callable[..., None]:
        skew = self.plan.skews[name]

        def set_clock(connection: Any, *_: Any) -> None:
            if self.driver.step is not None and self.driver.step.dead:
                raise HostDied
            self.now += 0.001
            self._due.pop(name, None)
            with connection.cursor() as cursor:
                seeds = (self.rng.getrandbits(30), self.rng.getrandbits(30))
                cursor.execute("SET TIMESTAMP = %s, rand_seed1 = %s, rand_seed2 = %s", (self.now + skew, *seeds))

        return set_clock

    # Beginning

    def _subscribe(self) -> None:
        today = self.plan.start.date()
        made = [self._subscription(n, today) for n in range(self.rng.randint(2, 4))]
        self.subscribed = [one.id for one in made]
        for one in made:
            shard = self.shard_set.shard_of(one.id)
            self.router.run(shard, lambda transaction, one=one: subscriptions.insert_subscriptions(transaction, [one]))  # type: ignore[misc]

    def _subscription(self, number: int, today: date) -> Subscription:
        rng = self.rng
        amount, currency = rng.choice(_MONEY)
        unit, count = rng.choice(((Unit.DAY, 3), (Unit.WEEK, 1), (Unit.MONTH, 1), (Unit.MONTH, 1), (Unit.YEAR, 1)))
        return Subscription(
            id=f"sub-{self.seed}-{number}",
            customer_id=f"customer-{number}",
            service=rng.choice(("video", "music", "video")),
            amount=amount,
            currency=currency,
            interval=Interval(unit=unit, count=count),
            start_date=today + timedelta(days=rng.choice((-15, -8, -1, 0, 0, 1, 3))),
            time_zone=rng.choice(_ZONES),
            payment_method=rng.choice(self.plan.methods),
        )
