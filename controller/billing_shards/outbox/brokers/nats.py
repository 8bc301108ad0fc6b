"""NATS JetStream: a message is safe when its stream has acknowledged it.

The event's id is sent as `Nats-Msg-Id`, so that the stream itself drops what is sent again within its window for duplicates.
"""

from __future__ import annotations

import asyncio

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from billing_shards.errors import BrokerUnavailable, EventRefused
from billing_shards.outbox.brokers import credentials, tls_context
from billing_shards.outbox.envelope import CONTENT_TYPE
from billing_shards.outbox.model import Message, Problem
from billing_shards.settings import BrokerSpec
from billing_shards.shards.shardset import Secrets

_CONNECT_SECONDS = 5
_CLOSE_SECONDS = 2
_DUPLICATE_WINDOW_SECONDS = 600
"""Longer than any lease of a shard: what a publisher sends late, the stream has had within this time."""

_OF_THE_EVENT = {10054: Problem.TOO_LARGE}
"""JetStream's own error numbers that say something of the message, not of the stream."""


async def connect(spec: BrokerSpec, secrets: Secrets, *, retention_seconds: int) -> NatsBroker:
    """Connect, and make the stream where it is missing; one that is there is left as it is.

    Raises `BrokerUnavailable`, `InvalidInput`.
    """
    who, client = credentials(spec, secrets), Client()
    told: list[Exception] = []

    async def tell(error: Exception) -> None:
        told.append(error)

    try:
        await client.connect(
            spec.url,
            name="billing-shards",
            user=who.username if who else None,
            password=who.password if who else None,
            tls=tls_context(spec, secrets),
            allow_reconnect=False,
            max_reconnect_attempts=1,  # it would try for minutes to connect for the first time, too
            reconnect_time_wait=0,
            connect_timeout=_CONNECT_SECONDS,
            error_cb=tell,
        )
        stream = client.jetstream(timeout=spec.confirm_seconds)
        await _ensure_stream(stream, spec, retention_seconds)
    except (NatsError, OSError, TimeoutError) as error:
        await _close(client)
        raise BrokerUnavailable(f"NATS at {spec.url}: {_reason(told[0] if told else error)}") from error
    return NatsBroker(spec, client, stream)


async def _ensure_stream(stream: JetStreamContext, spec: BrokerSpec, retention_seconds: int) -> None:
    try:
        await stream.stream_info(spec.stream)
    except NotFoundError:
        config = StreamConfig(
            name=spec.stream,
            subjects=[f"{spec.prefix}.>"],
            storage=StorageType.FILE,
            retention=RetentionPolicy.LIMITS,
            num_replicas=spec.replicas,
            max_age=float(retention_seconds),
            duplicate_window=float(min(_DUPLICATE_WINDOW_SECONDS, retention_seconds)),
        )
        await stream.add_stream(config)


class NatsBroker:
    """One connection. See `Broker`."""

    def __init__(self, spec: BrokerSpec, client: Client, stream: JetStreamContext) -> None:
        self._spec = spec
        self._client = client
        self._stream = stream

    async def publish(self, message: Message) -> None:
        """See `Broker`."""
        subject = f"{self._spec.prefix}.{message.subject}"
        headers = {"Nats-Msg-Id": message.id, "Content-Type": CONTENT_TYPE}
        try:
            await self._stream.publish(subject, message.body, timeout=self._spec.confirm_seconds, headers=headers)
        except MaxPayloadError as error:
            raise EventRefused(Problem.TOO_LARGE, f"the server takes at most {self._client.max_payload} bytes") from error
        except NoStreamResponseError as error:
            await self._without_stream(subject, error)
        except APIError as error:
            problem = _OF_THE_EVENT.get(error.err_code or 0)
            if problem is None:
                raise BrokerUnavailable(f"NATS stream {self._spec.stream}: {error.description}") from error
            raise EventRefused(problem, error.description or "") from error
        except (NatsError, OSError, TimeoutError) as error:
            raise BrokerUnavailable(f"NATS: {_reason(error)}") from error

    async def _without_stream(self, subject: str, cause: Exception) -> None:
        """Nobody answered: either no stream has this subject, or JetStream is not there now. Ask which."""
        try:
            await self._stream.find_stream_name_by_subject(subject)
        except NotFoundError:
            raise EventRefused(Problem.UNROUTABLE, f"no stream takes subject {subject}") from cause
        except (NatsError, OSError, TimeoutError) as error:
            raise BrokerUnavailable(f"NATS: {_reason(error)}") from error
        raise BrokerUnavailable(f"NATS: the stream of {subject} does not answer") from cause

    async def close(self) -> None:
        """See `Broker`."""
        await _close(self._client)


async def _close(client: Client) -> None:
    try:
        await asyncio.wait_for(client.close(), _CLOSE_SECONDS)
    except (NatsError, OSError, TimeoutError):
        return  # it is broken already, and may wait for ever for the end of a TLS connection that never began


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
