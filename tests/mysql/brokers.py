"""Real brokers for tests of publishing: a spec for each test alone, and what has arrived, in its order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import aio_pika
import nats
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from billing_shards.outbox.brokers import Broker, connector
from billing_shards.outbox.publisher import Publisher
from billing_shards.settings import BrokerSpec
from billing_shards.shards.shardset import ManifestSecrets
from billing_shards.shards.transactions import ShardRouter
from hack.brokers import BrokerServer, NatsServer, RabbitServer
from hack.mysql import client_context

RETENTION_SECONDS = 86_400


class BrokerSite(Protocol):
    """A broker's server, and names on it that are one test's alone."""

    @property
    def server(self) -> BrokerServer: ...

    @property
    def name(self) -> str:
        """Of the stream, or of the exchange and its queue."""

    def document(self, **changes: Any) -> dict[str, Any]:
        """`spec.outbox.broker`."""

    async def received(self) -> list[dict[str, Any]]:
        """Every message that a consumer of all events gets, in order, redeliveries left out. They are consumed."""

    async def narrow(self) -> None:
        """From now on nobody wants events of payments."""

    async def widen(self) -> None:
        """Everybody wants everything again."""


def secrets_of(server: BrokerServer) -> dict[str, dict[str, str]]:
    """The Secrets that `document` names."""
    ca = server.ca_file.read_text() if server.tls else ""
    return {"broker": {"username": server.user, "password": server.password}, "broker-ca": {"ca.crt": ca}}


@dataclass(slots=True)
class NatsSite:
    """A stream of its own."""

    server: NatsServer
    name: str

    def document(self, **changes: Any) -> dict[str, Any]:
        where = {"type": "nats", "url": self.server.url, "stream": self.name, "prefix": self.name.lower()}
        return {**where, **_secrets(self.server), "confirmSeconds": 2, **changes}

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[JetStreamContext]:
        tls = client_context(self.server.ca_file) if self.server.tls else None
        who = {"user": self.server.user, "password": self.server.password}
        async with await nats.connect(self.server.url, **who, tls=tls) as client:
            yield client.jetstream()

    async def received(self) -> list[dict[str, Any]]:
        async with self._stream() as stream:
            found: list[dict[str, Any]] = []
            info = await stream.stream_info(self.name)
            if info.state.messages == 0:
                return found
            subscription = await stream.subscribe("", stream=self.name, config=ConsumerConfig(), ordered_consumer=True)
            while len(found) < info.state.messages:
                found.append(json.loads((await subscription.next_msg(timeout=10)).data))
            await stream.purge_stream(self.name, seq=info.state.last_seq + 1)
            return found

    async def narrow(self) -> None:
        await self._wants(f"{self.name.lower()}.*.invoice.>")

    async def widen(self) -> None:
        await self._wants(f"{self.name.lower()}.>")

    async def _wants(self, subject: str) -> None:
        async with self._stream() as stream:
            config = (await stream.stream_info(self.name)).config
            await stream.update_stream(config.evolve(subjects=[subject]))


@dataclass(slots=True)
class RabbitSite:
    """An exchange and a quorum queue of its own."""

    server: RabbitServer
    name: str

    def document(self, **changes: Any) -> dict[str, Any]:
        where = {"type": "rabbitmq", "url": self.server.url, "exchange": self.name, "queue": self.name}
        return {**where, **_secrets(self.server), "confirmSeconds": 2, **changes}

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
        url = self.server.url.replace("://", f"://{self.server.user}:{self.server.password}@")
        tls = client_context(self.server.ca_file) if self.server.tls else None
        async with await aio_pika.connect(url, ssl_context=tls) as connection, connection.channel() as channel:
            yield channel

    async def received(self) -> list[dict[str, Any]]:
        async with self._channel() as channel:
            queue = await channel.get_queue(self.name)
            found: list[dict[str, Any]] = []
            while (message := await queue.get(fail=False, timeout=10)) is not None:
                found.append(json.loads(message.body))
                await message.ack()
            return found

    async def narrow(self) -> None:
        async with self._channel() as channel:
            queue = await channel.get_queue(self.name)
            await queue.bind(self.name, routing_key="*.invoice.#")
            await queue.unbind(self.name, routing_key="#")

    async def widen(self) -> None:
        async with self._channel() as channel:
            await (await channel.get_queue(self.name)).bind(self.name, routing_key="#")


def _secrets(server: BrokerServer) -> dict[str, Any]:
    named = {"credentialsSecret": {"name": "broker"}}
    return {**named, "caSecret": {"name": "broker-ca"}} if server.tls else named


def site_on(server: BrokerServer) -> NatsSite | RabbitSite:
    """Names on a server that no other test has."""
    name = f"T{uuid4().hex[:10]}"
    match server:
        case NatsServer():
            return NatsSite(server, name)
        case RabbitServer():
            return RabbitSite(server, name)
        case _:
            raise AssertionError(server)


def spec_of(site: BrokerSite, **changes: Any) -> BrokerSpec:
    """The spec that a publisher is given."""
    return BrokerSpec.model_validate(site.document(**changes))


async def connected(site: BrokerSite, **changes: Any) -> Broker:
    """A connection as a publisher's."""
    secrets = ManifestSecrets(secrets_of(site.server))
    return await connector(spec_of(site, **changes), secrets, retention_seconds=RETENTION_SECONDS)()


def publisher_of(site: BrokerSite, router: ShardRouter, shards: Sequence[int], *, batch: int = 500, **changes: Any) -> Publisher:
    """A publisher of shard set `main`, which is to be run."""
    spec = spec_of(site, **changes)
    connect = connector(spec, ManifestSecrets(secrets_of(site.server)), retention_seconds=RETENTION_SECONDS)
    return Publisher("main", spec, router, shards, connect, batch=batch)


@asynccontextmanager
async def publishing(*publishers: Publisher) -> AsyncIterator[None]:
    """Run publishers until the body ends."""
    async with asyncio.TaskGroup() as group:
        for publisher in publishers:
            group.create_task(publisher.run())
        try:
            yield
        finally:
            for publisher in publishers:
                publisher.stop()
