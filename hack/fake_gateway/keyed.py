"""The life of one request under an idempotency key: limit, key, fault before, delay, the thing itself, fault after.

A key is in flight from its first request until its answer is committed; the event loop runs one step at a time, so
looking a key up and taking it is atomic. A process that dies with keys in flight has made nothing for them.
"""

import asyncio
import collections
import dataclasses
import math
from typing import Protocol

from hack.fake_gateway import decide
from hack.fake_gateway.clock import Clock
from hack.fake_gateway.model import Answer, Asked, Behaviour, Config, Fault, KeyRecord
from hack.fake_gateway.store import Made, Store


class Dialect(Protocol):
    """How a protocol words its refusals."""

    def too_many_requests(self, retry_after_seconds: int) -> Answer: ...
    def key_in_use(self) -> Answer: ...
    def key_mismatch(self) -> Answer: ...
    def api_error(self) -> Answer: ...
    def invalid(self, param: str, reason: str) -> Answer: ...
    def not_refundable(self, why: str) -> Answer: ...
    def refund_too_large(self, left: int) -> Answer: ...


class Operation(Protocol):
    """A kind of request: what it makes, and how it is answered."""

    @property
    def asked(self) -> Asked: ...
    @property
    def dialect(self) -> Dialect: ...
    def make(self, attempt: "Attempt", now: float) -> tuple[Made | None, Answer]:
        """What is to be kept, and the answer. None: a refusal, which is not stored under the key."""

    def finished(self) -> None:
        """What was made is committed, or never will be."""


class Limiter:
    """A token bucket per scope, holding at most one second's worth."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}

    def seconds_to_wait(self, scope: tuple[str, str], rate: float | None, now: float) -> float:
        """0.0 takes a token; otherwise none is taken. `now` in seconds of any clock that does not go back."""
        if rate is None:
            return 0.0
        size = max(rate, 1.0)
        tokens, since = self._buckets.get(scope, (size, now))
        tokens = min(size, tokens + (now - since) * rate)
        if tokens >= 1:
            self._buckets[scope] = (tokens - 1, now)
            return 0.0
        self._buckets[scope] = (tokens, now)
        return (1 - tokens) / rate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A key's first request, or the first after its life ended."""

    key: str
    operation: Operation
    fingerprint: str
    generation: int
    seed: int
    behaviour: Behaviour
    faults: frozenset[Fault]


class Keyed:
    """Answers requests by the configuration in force when each begins; `config` may be replaced at any time."""

    def __init__(self, store: Store, clock: Clock, config: Config) -> None:
        self.config = config
        self.counters: collections.Counter[str] = collections.Counter(store.counters())
        self._store = store
        self._clock = clock
        self._limiter = Limiter()
        self._in_flight: dict[str, str] = {}
        self._background: dict[str, asyncio.Task[Answer]] = {}

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    async def answer(self, key: str, operation: Operation) -> Answer:
        """Each rule in the order in which it is judged; the answer is committed before it is returned."""
        wait = self._seconds_to_wait(operation.asked)
        if wait > 0:
            self.counters["over_max_rps"] += 1
            return operation.dialect.too_many_requests(math.ceil(wait))
        fingerprint = operation.asked.fingerprint()
        if key in self._in_flight:
            same = self._in_flight[key] == fingerprint
            return operation.dialect.key_in_use() if same else operation.dialect.key_mismatch()
        record = self._store.find_key(key)
        if record is not None and self._clock.now() - record.created < self.config.key_ttl_seconds:
            return self._replay(record) if record.fingerprint == fingerprint else operation.dialect.key_mismatch()
        generation = 0 if record is None else record.generation + 1
        return await self._first_request(self._attempt(key, operation, fingerprint, generation))

    async def stop(self) -> None:
        """Abandons what runs in the background, as a crash would: nothing of it is stored."""
        tasks = list(self._background.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _seconds_to_wait(self, asked: Asked) -> float:
        rate = self.config.behaviour_for(asked).max_rps
        return self._limiter.seconds_to_wait(self.config.limit_scope(asked), rate, self._clock.now())

    def _replay(self, record: KeyRecord) -> Answer:
        self.counters["replayed"] += 1
        headers = {"Idempotent-Replayed": "true"}
        return Answer(http_status=record.http_status, body=record.body, headers=headers)

    def _attempt(self, key: str, operation: Operation, fingerprint: str, generation: int) -> Attempt:
        seed, behaviour = self.config.seed, self.config.behaviour_for(operation.asked)
        return Attempt(
            key=key,
            operation=operation,
            fingerprint=fingerprint,
            generation=generation,
            seed=seed,
            behaviour=behaviour,
            faults=decide.faults(behaviour, seed, key, operation.asked.payment_method),
        )

    async def _first_request(self, attempt: Attempt) -> Answer:
        self._in_flight[attempt.key] = attempt.fingerprint
        try:
            return await self._begin(attempt)
        finally:
            if attempt.key not in self._background:
                del self._in_flight[attempt.key]

    async def _begin(self, attempt: Attempt) -> Answer:
        fault, dialect = self._opening_fault(attempt), attempt.operation.dialect
        if fault is not None:
            await self._store.record_fault(attempt.key, attempt.generation, fault)
        if fault is Fault.RATE_LIMITED:
            return dialect.too_many_requests(attempt.behaviour.retry_after_seconds)
        if fault is Fault.IN_FLIGHT_CONFLICT:
            self._make_in_background(attempt)
            return dialect.key_in_use()
        if fault is Fault.HANG:
            await self._clock.sleep(attempt.behaviour.hang_seconds)
        await self._clock.sleep(decide.delay_seconds(attempt.behaviour.delay_ms, attempt.seed, attempt.key))
        return await self._make(attempt)

    def _opening_fault(self, attempt: Attempt) -> Fault | None:
        if not attempt.faults:
            return None
        seen = self._store.faults_seen(attempt.key, attempt.generation)
        return decide.opening_fault(attempt.faults, seen, attempt.behaviour, attempt.operation.asked.payment_method)

    def _make_in_background(self, attempt: Attempt) -> None:
        # Its answer goes nowhere, so it cannot be lost on the way.
        unseen = dataclasses.replace(attempt, faults=attempt.faults - {Fault.LOST_ANSWER})
        task = asyncio.create_task(self._make_later(unseen))
        self._background[attempt.key] = task
        task.add_done_callback(lambda _: self._background_done(attempt.key))

    async def _make_later(self, attempt: Attempt) -> Answer:
        await self._clock.sleep(attempt.behaviour.conflict_seconds)
        return await self._make(attempt)

    def _background_done(self, key: str) -> None:
        del self._background[key]
        del self._in_flight[key]

    async def _make(self, attempt: Attempt) -> Answer:
        now = self._clock.now()
        fault = decide.closing_fault(attempt.faults)
        made, answer = self._made(attempt, fault, now)
        if made is None:
            return answer
        record = KeyRecord(
            fingerprint=attempt.fingerprint,
            http_status=answer.http_status,
            body=answer.body,
            created=now,
            generation=attempt.generation,
        )
        try:
            await self._store.save(attempt.key, record, made, fault, tell=self.config.webhook_url is not None)
        finally:
            attempt.operation.finished()
        return dataclasses.replace(answer, dropped=True) if fault is Fault.LOST_ANSWER else answer

    def _made(self, attempt: Attempt, fault: Fault | None, now: float) -> tuple[Made | None, Answer]:
        api_error = attempt.operation.dialect.api_error()
        if fault is Fault.ERROR_500_BEFORE:
            return Made(), api_error
        made, answer = attempt.operation.make(attempt, now)
        return made, api_error if fault is Fault.ERROR_500_AFTER and made is not None else answer
