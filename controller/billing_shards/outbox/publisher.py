"""The publisher: sends the events of the outbox to the broker, in order, and notes what the broker has.

A round of a shard is: take or renew its lease and read the first events that are to be sent (one transaction); send them, each
subscription's in turn and all subscriptions side by side; record what was confirmed and what was refused (one transaction). No
transaction is open while the broker is waited for, and a broker that is away costs nothing but a try to connect now and then.

Two publishers may run at once: a shard's lease keeps them off each other. Near its end nothing more is sent under it.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import structlog

from billing_shards import telemetry
from billing_shards.errors import BillingShardsError, BrokerUnavailable, EventRefused, InvalidInput
from billing_shards.outbox import envelope, rounds, store
from billing_shards.outbox.brokers import Broker, Connect
from billing_shards.outbox.decide import Pace, chains, rest_seconds, troubled
from billing_shards.outbox.model import Answer, Batch, Leased, Problem, Refused, Sent, StoredEvent
from billing_shards.settings import BrokerSpec
from billing_shards.shards.transactions import ShardRouter

T = TypeVar("T")

_log = structlog.get_logger(__name__)

CONNECTIONS = 4
"""To each database: as many shards of it are read or recorded at once."""
_SHARDS_AT_ONCE = 8
_IDLE_SECONDS = 0.5
_LEASE_SECONDS_MIN = 10.0
_TAKEN_SECONDS = 5.0
_TOKEN_BITS = 63


@dataclass(slots=True, kw_only=True)
class _Sending:
    """One batch on its way."""

    broker: Broker
    until: float
    """By the monotonic clock: nothing is sent later under this lease."""
    answers: list[Answer] = field(default_factory=list)
    failure: BrokerUnavailable | None = None


class Publisher:
    """Publishes the events of all shards until told to stop."""

    def __init__(
        self, shard_set: str, spec: BrokerSpec, router: ShardRouter, shards: Sequence[int], connect: Connect, *, batch: int
    ) -> None:
        self._shard_set = shard_set
        self._spec = spec
        self._router = router
        self._shards = shards
        self._batch = batch
        self._line = _Line(connect)
        self._token = secrets.randbits(_TOKEN_BITS)
        self._lease_seconds = max(_LEASE_SECONDS_MIN, 3 * spec.confirm_seconds)
        self._stop = asyncio.Event()
        self._threads = ThreadPoolExecutor(CONNECTIONS * len(router.databases), thread_name_prefix="outbox")
        self._at_once = asyncio.Semaphore(_SHARDS_AT_ONCE)
        self._leased: set[int] = set()
        self._rest_until: dict[int, float] = {}

    def stop(self) -> None:
        """`run` returns when what is under way was confirmed, or was not in time, and is recorded."""
        self._stop.set()

    async def run(self) -> None:
        """Work until `stop`. Brokers and databases that fail are logged and tried again; a fault of our own is raised."""
        try:
            async with asyncio.TaskGroup() as group:
                for database in self._router.databases:
                    group.create_task(self._until_stopped(database))
            await self._release()
        finally:
            await self._line.close()
            self._threads.shutdown()

    async def _until_stopped(self, database: str) -> None:
        pace = Pace(limit=self._batch, limit_max=self._batch)
        while not self._stop.is_set():
            failed, more = False, False
            try:
                broker = await self._line.broker()
                more = await self._round(database, broker, pace.limit)
            except BrokerUnavailable as error:
                failed = True
                telemetry.LOOP_ERRORS.labels("publish").inc()
                _log.warning("broker_unavailable", database=database, error=str(error))
            except BillingShardsError as error:
                telemetry.LOOP_ERRORS.labels("publish").inc()
                _log.warning("loop_failed", loop="publish", database=database, error=str(error))
            pace = pace.after(failed=failed)
            if not more:
                draw = random.random()  # noqa: S311 - spreads load
                await self._rest(rest_seconds(pace.failures, draw) if failed else _IDLE_SECONDS)

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _round(self, database: str, broker: Broker, limit: int) -> bool:
        """One batch of each shard of a database that has events; whether there is more to do at once."""
        shards = self._router.by_database(self._shards).get(database)
        if not shards:
            return False
        now = time.monotonic()
        self._rest_until = {shard: until for shard, until in self._rest_until.items() if until > now}
        ready = [
            shard for shard in await self._in_thread(partial(self._ready, database, shards)) if shard not in self._rest_until
        ]
        ended = await asyncio.gather(*(self._shard(shard, broker, limit) for shard in ready))
        failures = [one for one in ended if isinstance(one, BrokerUnavailable)]
        if failures:
            raise failures[0]
        return any(ended)

    def _ready(self, database: str, shards: Sequence[int]) -> list[int]:
        with self._router.connect(database) as connection:
            return store.shards_to_publish(connection, shards)

    async def _shard(self, shard: int, broker: Broker, limit: int) -> bool | BrokerUnavailable:
        """A round of one shard; whether there may be more. One whose database fails holds up no other."""
        try:
            async with self._at_once:
                return await self.publish(shard, broker, limit)
        except BrokerUnavailable as error:
            return error
        except BillingShardsError as error:
            telemetry.LOOP_ERRORS.labels("publish").inc()
            _log.warning("loop_failed", loop="publish", shard=shard, error=str(error))
            self._rest_until[shard] = time.monotonic() + _TAKEN_SECONDS
            return False

    async def publish(self, shard: int, broker: Broker, limit: int) -> bool:
        """Send up to `limit` events of a shard; whether there may be more to send at once.

        Raises `BrokerUnavailable` once what was confirmed before is recorded, and what `ShardRouter.run` raises.
        """
        began = time.monotonic()
        take = partial(rounds.take, self._router, shard, token=self._token, lease_seconds=self._lease_seconds, limit=limit)
        batch = await self._in_thread(take)
        if isinstance(batch, Leased):
            self._leased.discard(shard)
            self._rest_until[shard] = time.monotonic() + min(batch.seconds, _TAKEN_SECONDS)
            return False
        self._leased.add(shard)
        sending = _Sending(broker=broker, until=began + self._lease_seconds - self._spec.confirm_seconds)
        with telemetry.BATCH_SECONDS.labels("publish").time():
            await asyncio.gather(*(self._send(chain, sending) for chain in chains(batch.events)))
        await self._record(shard, batch, sending.answers)
        if sending.failure is not None:
            await self._line.drop(broker)
            raise sending.failure
        if troubled(sending.answers):
            self._rest_until[shard] = time.monotonic() + _TAKEN_SECONDS
        return bool(sending.answers) or batch.full

    async def _send(self, chain: Sequence[StoredEvent], sending: _Sending) -> None:
        """Events of one subscription, each after the one before it was confirmed."""
        for event in chain:
            if self._stop.is_set() or sending.failure is not None or time.monotonic() > sending.until:
                return
            try:
                message = envelope.message(self._shard_set, event, bytes_max=self._spec.message_bytes_max)
                await sending.broker.publish(message)
            except EventRefused as error:
                sending.answers.append(Refused(event=event, problem=Problem(error.problem), details=error.details))
                return
            except BrokerUnavailable as error:
                sending.failure = error
                return
            sending.answers.append(Sent(event=event))

    async def _record(self, shard: int, batch: Batch, answers: Sequence[Answer]) -> None:
        if not answers and not batch.behind:
            return
        found = await self._in_thread(partial(rounds.record, self._router, shard, batch, answers))
        telemetry.EVENTS_PUBLISHED.inc(len(found.sent))
        for block in found.blocks:
            telemetry.EVENTS_REFUSED.labels(block.problem).inc()
            what = {"shard": shard, "number": block.number, "problem": str(block.problem), "details": block.details}
            _log.warning("event_refused", failures=block.failures, **what)

    async def _release(self) -> None:
        """Leave the shards to another publisher at once. One that cannot be told waits for the lease to end."""
        for shard in sorted(self._leased):
            try:
                await self._in_thread(partial(rounds.release, self._router, shard, token=self._token))
            except BillingShardsError as error:
                _log.warning("lease_not_released", shard=shard, error=str(error))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class _Line:
    """The one connection to the broker: opened when it is needed, given up when it failed."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._broker: Broker | None = None
        self._lock = asyncio.Lock()

    async def broker(self) -> Broker:
        """The connection. Raises `BrokerUnavailable`."""
        async with self._lock:
            if self._broker is None:
                try:
                    self._broker = await self._connect()
                except InvalidInput as error:  # a Secret that is not there yet
                    raise BrokerUnavailable(str(error)) from error
                _log.info("broker_connected")
                telemetry.BROKER_CONNECTED.set(1)
            return self._broker

    async def drop(self, broker: Broker) -> None:
        """Give up a connection that failed, unless that is done."""
        async with self._lock:
            if self._broker is broker:
                self._broker = None
                telemetry.BROKER_CONNECTED.set(0)
                await broker.close()

    async def close(self) -> None:
        """Give up the connection."""
        if self._broker is not None:
            await self.drop(self._broker)
