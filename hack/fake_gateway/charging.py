"""The life of one POST /v1/charges: limit, key, fault before, delay, charge, fault after.

A key is in flight from its first request until its answer is committed; the event loop runs one step at a time, so
looking a key up and taking it is atomic. A process that dies with keys in flight has made no charge for them.
"""

import asyncio
import collections
import dataclasses
import json
import math

from hack.fake_gateway import decide, documents
from hack.fake_gateway.clock import Clock
from hack.fake_gateway.model import (
    Answer,
    Behaviour,
    ChargeRequest,
    ChargeStatus,
    Config,
    Fault,
    KeyRecord,
    Outcome,
)
from hack.fake_gateway.store import NewCharge, Store


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
class _Attempt:
    key: str
    request: ChargeRequest
    fingerprint: str
    generation: int
    seed: int
    behaviour: Behaviour
    faults: frozenset[Fault]


class Charging:
    """Makes charges by the configuration in force when a request begins; `config` may be replaced at any time."""

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

    async def charge(self, key: str, request: ChargeRequest) -> Answer:
        """Each rule in the order in which it is judged; the answer is committed before it is returned."""
        wait = self._seconds_to_wait(request)
        if wait > 0:
            self.counters["over_max_rps"] += 1
            return documents.too_many_requests(math.ceil(wait))
        fingerprint = request.fingerprint()
        if key in self._in_flight:
            same = self._in_flight[key] == fingerprint
            return documents.key_in_use() if same else documents.key_mismatch()
        record = self._store.find_key(key)
        if record is not None and self._clock.now() - record.created < self.config.key_ttl_seconds:
            return self._replay(record) if record.fingerprint == fingerprint else documents.key_mismatch()
        generation = 0 if record is None else record.generation + 1
        return await self._first_request(self._attempt(key, request, fingerprint, generation))

    async def stop(self) -> None:
        """Abandons what runs in the background, as a crash would: nothing of it is stored."""
        tasks = list(self._background.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _seconds_to_wait(self, request: ChargeRequest) -> float:
        rate = self.config.behaviour_for(request).max_rps
        return self._limiter.seconds_to_wait(self.config.limit_scope(request), rate, self._clock.now())

    def _replay(self, record: KeyRecord) -> Answer:
        self.counters["replayed"] += 1
        headers = {"Idempotent-Replayed": "true"}
        return Answer(http_status=record.http_status, body=record.body, headers=headers)

    def _attempt(self, key: str, request: ChargeRequest, fingerprint: str, generation: int) -> _Attempt:
        seed, behaviour = self.config.seed, self.config.behaviour_for(request)
        return _Attempt(
            key=key,
            request=request,
            fingerprint=fingerprint,
            generation=generation,
            seed=seed,
            behaviour=behaviour,
            faults=decide.faults(behaviour, seed, key, request.payment_method),
        )

    async def _first_request(self, attempt: _Attempt) -> Answer:
        self._in_flight[attempt.key] = attempt.fingerprint
        try:
            return await self._begin(attempt)
        finally:
            if attempt.key not in self._background:
                del self._in_flight[attempt.key]

    async def _begin(self, attempt: _Attempt) -> Answer:
        fault = self._opening_fault(attempt)
        if fault is not None:
            await self._store.record_fault(attempt.key, attempt.generation, fault)
        if fault is Fault.RATE_LIMITED:
            return documents.too_many_requests(attempt.behaviour.retry_after_seconds)
        if fault is Fault.IN_FLIGHT_CONFLICT:
            self._make_in_background(attempt)
            return documents.key_in_use()
        if fault is Fault.HANG:
            await self._clock.sleep(attempt.behaviour.hang_seconds)
        await self._clock.sleep(decide.delay_seconds(attempt.behaviour.delay_ms, attempt.seed, attempt.key))
        return await self._make(attempt)

    def _opening_fault(self, attempt: _Attempt) -> Fault | None:
        if not attempt.faults:
            return None
        seen = self._store.faults_seen(attempt.key, attempt.generation)
        return decide.opening_fault(attempt.faults, seen, attempt.behaviour, attempt.request.payment_method)

    def _make_in_background(self, attempt: _Attempt) -> None:
        # Its answer goes nowhere, so it cannot be lost on the way.
        unseen = dataclasses.replace(attempt, faults=attempt.faults - {Fault.LOST_ANSWER})
        task = asyncio.create_task(self._make_later(unseen))
        self._background[attempt.key] = task
        task.add_done_callback(lambda _: self._background_done(attempt.key))

    async def _make_later(self, attempt: _Attempt) -> Answer:
        await self._clock.sleep(attempt.behaviour.conflict_seconds)
        return await self._make(attempt)

    def _background_done(self, key: str) -> None:
        del self._background[key]
        del self._in_flight[key]

    async def _make(self, attempt: _Attempt) -> Answer:
        now = self._clock.now()
        fault = decide.closing_fault(attempt.faults)
        if fault is Fault.ERROR_500_BEFORE:
            charge, answer = None, documents.api_error()
        else:
            charge, answer = self._new_charge(attempt, now)
        if fault is Fault.ERROR_500_AFTER:
            answer = documents.api_error()
        record = KeyRecord(
            fingerprint=attempt.fingerprint,
            http_status=answer.http_status,
            body=answer.body,
            created=now,
            generation=attempt.generation,
        )
        await self._store.save(attempt.key, record, charge, fault)
        return dataclasses.replace(answer, dropped=True) if fault is Fault.LOST_ANSWER else answer

    def _new_charge(self, attempt: _Attempt, now: float) -> tuple[NewCharge, Answer]:
        outcome = self._outcome(attempt)
        charge_id = decide.charge_id(attempt.seed, attempt.key, attempt.generation)
        document = documents.charge(charge_id, attempt.request, outcome, now)
        pending = outcome.settles_to is not None
        text = json.dumps(document)
        charge = NewCharge(
            charge_id=charge_id,
            group=attempt.request.group,
            document=text,
            settles_at=now + outcome.settle_after_seconds if pending else None,
            settled=json.dumps(documents.settled(document, outcome)) if pending else None,
        )
        declined = outcome.status is ChargeStatus.FAILED
        return charge, documents.declined(document) if declined else Answer(http_status=200, body=text)

    def _outcome(self, attempt: _Attempt) -> Outcome:
        method = attempt.request.payment_method
        counted = decide.declines_first(method) is not None
        declined_before = self._store.declines_of_group(attempt.request.group, method) if counted else 0
        return decide.outcome(attempt.behaviour, attempt.seed, attempt.key, method, declined_before)
