"""All of it in one process, without a cluster: for development and tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from billing_shards import process, publishing, receiver, schema, telemetry
from billing_shards.claimer import Claimer
from billing_shards.housekeeper import Housekeeper, chores
from billing_shards.payments.asker import Asker
from billing_shards.settings import Manifest, ProcessSettings
from billing_shards.shards import shardset
from billing_shards.shards.shardset import ManifestSecrets

_log = structlog.get_logger(__name__)

_POOL = 10  # the claimer's four threads, and a housekeeper's chores


def set_up(manifest: Manifest) -> None:
    """Upgrade the schemas, let the application in, and place the shards on databases that were never set up.

    Raises `DatabaseError`s, `InvalidSpec`, `InvalidInput`.
    """
    secrets = ManifestSecrets(manifest.secrets)
    databases = shardset.open_databases(manifest.spec, secrets, role="schema")
    try:
        for database in databases.values():
            schema.upgrade(database)
            schema.grant_application(database, shardset.credentials(manifest.spec.database(database.name), secrets))
        shardset.set_up(manifest.name, manifest.spec, databases)
    finally:
        for database in databases.values():
            database.close()


async def run(manifest: Manifest, *, metrics_port: int = 0, webhook_port: int = 0, stop: asyncio.Event | None = None) -> None:
    """Scheduler, claimer and housekeeper over the databases of a manifest, until a signal or `stop`."""
    stop = stop or asyncio.Event()
    await asyncio.to_thread(set_up, manifest)
    shard_set = process.ShardSet(name=manifest.name, spec=manifest.spec, secrets=ManifestSecrets(manifest.secrets))
    router, renewals = process.router(shard_set, pool_size=_POOL), process.router(shard_set, pool_size=1)
    providers = process.providers(shard_set)
    shards = range(manifest.spec.shard_count)
    claimer = Claimer(manifest.spec, router, renewals, providers, shards)
    asker = Asker(router, lambda: process.providers(shard_set), manifest.spec)
    housekeeper = Housekeeper(router, shards, chores(manifest.spec, router, asker), paused=manifest.spec.paused)
    process.stop_on_signals(stop.set)
    probes = process.Probes()
    webhooks = receiver.running(shard_set, webhook_port)
    try:
        with asker:
            async with probes.serve(metrics_port) as port, publishing.running(shard_set), webhooks, asyncio.TaskGroup() as group:
                probes.ready = True
                _log.info("running", shard_set=manifest.name, metrics_port=port)
                group.create_task(claimer.run())
                group.create_task(housekeeper.run())
                await stop.wait()
                housekeeper.stop()
                claimer.stop()
    finally:
        await providers.close()
        router.close()
        renewals.close()


def main(path: Path, settings: ProcessSettings) -> int:
    """`billing-shards run --manifest FILE`; its exit code. Raises what reading and setting up a manifest raise."""
    telemetry.configure_logs(settings.log_level, as_json=False)
    asyncio.run(run(Manifest.read(path), metrics_port=settings.metrics_port, webhook_port=settings.webhook_port))
    return 0
