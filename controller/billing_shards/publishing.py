"""The publisher beside other work of a process: on connections of its own, so that neither waits for the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from billing_shards import process
from billing_shards.outbox.brokers import connector
from billing_shards.outbox.publisher import CONNECTIONS, Publisher
from billing_shards.process import ShardSet

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def running(shard_set: ShardSet) -> AsyncIterator[None]:
    """Publish the events of all shards while the body runs, where the spec names a broker.

    A broker or database that is away holds nothing up. A fault of our own cancels the body and is raised.
    """
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_publish(shard_set, range(shard_set.spec.shard_count), stop))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait([task])


async def _publish(shard_set: ShardSet, shards: Sequence[int], stop: asyncio.Event) -> None:
    outbox = shard_set.spec.outbox
    if outbox.broker is None:
        return
    router = await process.until_usable(lambda: process.router(shard_set, pool_size=CONNECTIONS), stop)
    if router is None:
        return
    connect = connector(outbox.broker, shard_set.secrets, retention_seconds=outbox.retention_seconds)
    publisher = Publisher(shard_set.name, outbox.broker, router, shards, connect, batch=outbox.batch)
    _log.info("publisher_started", broker=outbox.broker.type)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(publisher.run())
            await stop.wait()
            publisher.stop()
    finally:
        router.close()
