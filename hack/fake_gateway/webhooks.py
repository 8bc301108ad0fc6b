"""Tells the caller by webhook what became of charges and refunds: at least once, signed, and with faults by seed.

An event is stored in the transaction of what it tells of, so a killed process still tells it after its restart. It is sent until
somebody answers 2xx. Whether one is late, sent twice or lost is drawn by seed and event, so a run reproduces.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import Callable

import aiohttp
import structlog

from hack.fake_gateway import decide, documents, stripe_documents
from hack.fake_gateway.clock import Clock
from hack.fake_gateway.model import Config, Event
from hack.fake_gateway.store import Store

log = structlog.get_logger()

_LOOK_SECONDS = 0.05
_ANSWER_SECONDS = 10.0
_RETRY_SECONDS_MAX = 60.0
_SENDERS = 20


def signature(secrets: tuple[str, ...], body: bytes, now: float) -> str:
    """`t=<unix seconds>,v1=<hex>`, with a `v1` for each secret, as while one is being replaced."""
    moment = str(int(now))
    signed = moment.encode() + b"." + body
    marks = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={moment}", *(f"v1={mark}" for mark in marks)])


class Webhooks:
    """The sender of one provider; `run` for as long as it lives."""

    def __init__(self, store: Store, clock: Clock, config: Callable[[], Config]) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        self._senders = asyncio.Semaphore(_SENDERS)
        self._seen = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def forget(self) -> None:
        """All events are gone: the next one may have any number."""
        self._seen = 0
        for task in self._tasks:
            task.cancel()

    async def run(self) -> None:
        """Never returns."""
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            try:
                while True:
                    await asyncio.sleep(_LOOK_SECONDS)
                    if self._config().webhook_url is not None:
                        await self._look(session)
            finally:
                await self._abandon()

    async def _look(self, session: aiohttp.ClientSession) -> None:
        """Settle what is due, whether somebody asks or not, and begin to send what is new."""
        await self._store.settle(self._clock.now(), tell=True)
        for number, event in self._store.events_after(self._seen):
            self._seen = number
            task = asyncio.create_task(self._deliver(session, event))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _abandon(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, session: aiohttp.ClientSession, event: Event) -> None:
        config = self._config()
        if _drawn(config.webhook_lost_rate, config, "webhook_lost", event):
            await self._store.mark_delivered(event.event_id, self._clock.now())
            return
        if _drawn(config.webhook_late_rate, config, "webhook_late", event):
            await self._clock.sleep(config.webhook_late_seconds)
        await self._until_accepted(session, event)
        await self._store.mark_delivered(event.event_id, self._clock.now())
        if _drawn(config.webhook_duplicate_rate, config, "webhook_duplicate", event):
            await self._until_accepted(session, event)

    async def _until_accepted(self, session: aiohttp.ClientSession, event: Event) -> None:
        wait = self._config().webhook_retry_seconds
        while not await self._is_accepted(session, event):
            await self._clock.sleep(wait)
            wait = min(wait * 2, _RETRY_SECONDS_MAX)

    async def _is_accepted(self, session: aiohttp.ClientSession, event: Event) -> bool:
        config = self._config()
        if config.webhook_url is None:
            return False
        is_stripes = stripe_documents.is_stripes(event)
        document = stripe_documents.event(event) if is_stripes else documents.event(event)
        body = json.dumps(document).encode()
        headers = {"Content-Type": "application/json"}
        if config.webhook_secrets:
            name = "Stripe-Signature" if is_stripes else "Webhook-Signature"
            headers[name] = signature(config.webhook_secrets, body, self._clock.now())
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with (
                self._senders,
                session.post(config.webhook_url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                log.debug("webhook_sent", event_id=event.event_id, kind=event.kind, status=response.status)
                return 200 <= response.status < 300
        return False


def _drawn(rate: float, config: Config, purpose: str, event: Event) -> bool:
    return rate > 0 and decide.draw(config.seed, purpose, event.event_id) < rate
