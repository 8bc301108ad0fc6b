"""RabbitMQ: a message is safe when the broker has confirmed it: the majority of a quorum queue has it. One that no queue wants is
returned, and that is an error.
"""

from __future__ import annotations

import asyncio
from typing import cast
from urllib.parse import quote, urlsplit, urlunsplit

import aio_pika
from aio_pika.abc import AbstractConnection, DeliveryMode, ExchangeType
from aio_pika.exceptions import AMQPError, ChannelInvalidStateError, DeliveryError, PublishError
from aiormq.channel import Channel
from pamqp.commands import Basic

from billing_shards.errors import BrokerUnavailable, EventRefused
from billing_shards.outbox.brokers import credentials, tls_context
from billing_shards.outbox.envelope import CONTENT_TYPE
from billing_shards.outbox.model import Message, Problem
from billing_shards.settings import BrokerSpec
from billing_shards.shards.shardset import Secrets

_CONNECT_SECONDS = 10
_HEARTBEAT_SECONDS = 10


async def connect(spec: BrokerSpec, secrets: Secrets) -> RabbitBroker:
    """Connect, and make exchange and queue where they are missing. Raises `BrokerUnavailable`, `InvalidInput`."""
    try:
        connection = await aio_pika.connect(_url(spec, secrets), timeout=_CONNECT_SECONDS, ssl_context=tls_context(spec, secrets))
    except (AMQPError, OSError, TimeoutError) as error:
        raise BrokerUnavailable(f"RabbitMQ at {spec.url}: {_reason(error)}") from error
    try:
        channel = await asyncio.wait_for(_channel(connection, spec), _CONNECT_SECONDS)
    except (AMQPError, ChannelInvalidStateError, OSError, TimeoutError) as error:
        await connection.close()
        raise BrokerUnavailable(f"RabbitMQ at {spec.url}: {_reason(error)}") from error
    return RabbitBroker(spec, connection, channel)


def _url(spec: BrokerSpec, secrets: Secrets) -> str:
    parts, who = urlsplit(spec.url), credentials(spec, secrets)
    user = f"{quote(who.username, safe='')}:{quote(who.password, safe='')}@" if who else ""
    return urlunsplit((parts.scheme, user + parts.netloc, parts.path or "/", f"heartbeat={_HEARTBEAT_SECONDS}", ""))


async def _channel(connection: AbstractConnection, spec: BrokerSpec) -> Channel:
    """The channel below aio-pika's: publishing through it takes half the time, for it need not wait for the socket each time."""
    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    exchange = await channel.declare_exchange(spec.exchange, ExchangeType.TOPIC, durable=True)
    if spec.queue is not None:
        queue = await channel.declare_queue(spec.queue, durable=True, arguments={"x-queue-type": "quorum"})
        await queue.bind(exchange, routing_key="#")
    return cast("Channel", await channel.get_underlay_channel())


class RabbitBroker:
    """One connection. See `Broker`."""

    def __init__(self, spec: BrokerSpec, connection: AbstractConnection, channel: Channel) -> None:
        self._spec = spec
        self._connection = connection
        self._channel = channel

    async def publish(self, message: Message) -> None:
        """See `Broker`."""
        try:
            await self._channel.basic_publish(
                message.body,
                exchange=self._spec.exchange,
                routing_key=message.subject,
                properties=Basic.Properties(
                    message_id=message.id, content_type=CONTENT_TYPE, delivery_mode=DeliveryMode.PERSISTENT
                ),
                mandatory=True,
                timeout=self._spec.confirm_seconds,
                wait=False,
            )
        except PublishError as error:
            raise EventRefused(Problem.UNROUTABLE, f"no queue takes routing key {message.subject}") from error
        except DeliveryError as error:
            # A nack is a full queue or a node that is lost: it says nothing of this event.
            raise BrokerUnavailable("RabbitMQ: did not take a message (nack)") from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise BrokerUnavailable("RabbitMQ: the connection was closed") from error
        except Exception as error:
            # The client tells what waits of a connection that is being closed by whatever ended it, or by a bare Exception.
            if isinstance(error, AMQPError | ChannelInvalidStateError | OSError | TimeoutError) or type(error) is Exception:
                raise BrokerUnavailable(f"RabbitMQ: {_reason(error)}") from error
            raise

    async def close(self) -> None:
        """See `Broker`."""
        try:
            await asyncio.wait_for(self._connection.close(), self._spec.confirm_seconds)
        except (AMQPError, ChannelInvalidStateError, OSError, TimeoutError):
            return  # it is broken already; its socket is closed all the same


def _is_cancelled() -> bool:
    """Whether this task was told to end: the client also cancels what waits for a connection that was closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
