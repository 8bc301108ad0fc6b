"""Consume events from NATS JetStream or RabbitMQ until stopped: `python -m hack.consumer --url nats://… --name BILLING FILE`.

One process works through its events one after the other, so it sees those of a subscription in order. Several consumers of one
queue would not: give each a part of the shards (NATS: its filter subjects; RabbitMQ: a queue of its own, bound to its shards).
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import aio_pika
import nats
import typer
from nats.js.api import AckPolicy, ConsumerConfig

from hack.consumer.ledger import Ledger
from hack.errors import run_command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Apply = Callable[[bytes], bool]

_ACK_SECONDS = 5.0
"""An event that is not acknowledged in this time is delivered again: to the next consumer, where this one died."""
_FETCH = 50


@app.command()
def consume(
    file: Annotated[Path, typer.Argument(help="The consumer's own database (SQLite).")],
    url: Annotated[str, typer.Option(help="nats://HOST:PORT or amqp://HOST:PORT")],
    name: Annotated[str, typer.Option(help="The stream (NATS) or the queue (RabbitMQ) to consume.")],
    user: Annotated[str, typer.Option(envvar="BROKER_USER")] = "",
) -> None:
    """Count what each subscription owes; BROKER_PASSWORD is the broker's password."""
    password = os.environ.get("BROKER_PASSWORD", "")
    ledger = Ledger(file)
    work = (
        _nats(url, name, user, password, ledger.apply)
        if url.startswith("nats")
        else _rabbitmq(url, name, user, password, ledger.apply)
    )
    asyncio.run(work)


async def _nats(url: str, stream: str, user: str, password: str, apply: Apply) -> None:
    async with await nats.connect(url, user=user or None, password=password or None) as client:
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=_ACK_SECONDS, max_ack_pending=_FETCH)
        subscription = await client.jetstream().pull_subscribe("", durable="example", stream=stream, config=config)
        while True:
            try:
                messages = await subscription.fetch(_FETCH, timeout=1)
            except TimeoutError:  # the client's own, or the event loop's: there was nothing
                continue
            for message in messages:
                apply(message.data)
                await message.ack()


async def _rabbitmq(url: str, queue: str, user: str, password: str, apply: Apply) -> None:
    where = url.replace("://", f"://{user}:{password}@") if user else url
    async with await aio_pika.connect(where) as connection, connection.channel() as channel:
        await channel.set_qos(prefetch_count=_FETCH)
        async with (await channel.get_queue(queue)).iterator() as messages:
            async for message in messages:
                apply(message.body)
                await message.ack()


if __name__ == "__main__":
    run_command(app)
