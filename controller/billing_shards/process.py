"""What claimer and housekeeper have in common as processes: settings, databases, probes and metrics, signals, and the watch on
their ConfigMap.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from billing_shards import telemetry
from billing_shards.db import Database
from billing_shards.errors import BillingShardsError, DatabaseError, DatabaseUnavailable, InvalidInput
from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.guarded import GuardedGateway
from billing_shards.payments.http import HttpGateway
from billing_shards.payments.providers import Providers
from billing_shards.settings import GatewaySpec, ProcessSettings, ShardSetSpec
from billing_shards.shards.map import ShardMap
from billing_shards.shards.shardset import FolderSecrets, Secrets, check_database, check_each_connection, open_databases
from billing_shards.shards.transactions import ShardRouter

_log = structlog.get_logger(__name__)

_WATCH_SECONDS = 2.0
_BEAT_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSet:
    """The shard set that a process works for."""

    name: str
    spec: ShardSetSpec
    secrets: Secrets


def from_settings(settings: ProcessSettings) -> ShardSet:
    """The shard set of the mounted ConfigMap and Secrets. Raises `InvalidInput`."""
    name, spec = settings.shard_set()
    return ShardSet(name=name, spec=spec, secrets=FolderSecrets(settings.secrets_dir))


def router(shard_set: ShardSet, *, pool_size: int) -> ShardRouter:
    """A router by the spec's map, for a process that must start while a database is down.

    The fence of each shard has the last word, in every transaction; and each new connection asks whose database it is, for
    a host name may lead somewhere else tomorrow. Raises `WrongDatabase`, `SchemaBehind`, `SchemaTooNew`, `AccessDenied`,
    `TlsRefused` of a database that is reached.
    """
    shard_map = ShardMap.from_spec(shard_set.spec)
    databases = open_databases(shard_set.spec, shard_set.secrets, pool_size=pool_size)
    opened = ShardRouter(databases, {shard: shard_map.database_of(shard) for shard in range(len(shard_map))})
    try:
        for database in databases.values():
            _check(shard_set, database)
            check_each_connection(shard_set.name, shard_set.spec, database)
    except BaseException:
        opened.close()
        raise
    return opened


def _check(shard_set: ShardSet, database: Database) -> None:
    try:
        check_database(shard_set.name, shard_set.spec, database)
    except DatabaseUnavailable as error:
        _log.warning("database_unavailable_at_start", database=database.name, error=str(error))


def providers(shard_set: ShardSet) -> Providers:
    """The payment providers of the spec; of the running event loop."""
    return Providers([_gateway(shard_set, spec) for spec in shard_set.spec.all_gateways])


def _gateway(shard_set: ShardSet, spec: GatewaySpec) -> PaymentGateway:
    secret = spec.api_key_secret

    def api_key() -> str | None:
        return None if secret is None else shard_set.secrets.value(secret.name, "apiKey")

    connections_max = spec.in_flight_max or shard_set.spec.claimer.workers
    return GuardedGateway(_adapter(spec)(spec, api_key, connections_max=connections_max), spec)


def _adapter(spec: GatewaySpec) -> Callable[..., PaymentGateway]:
    if spec.type == "http":
        return HttpGateway
    from billing_shards.payments.stripe import StripeGateway  # noqa: PLC0415 - its SDK takes half a second and 30 MB to import

    return StripeGateway


async def until_usable(open_router: Callable[[], ShardRouter], stop: asyncio.Event) -> ShardRouter | None:
    """Try to open the databases until they are usable; None when told to stop. What a person can mend does not end a pod."""
    wait = 1.0
    while not stop.is_set():
        try:
            opened = await asyncio.to_thread(open_router)
        except (DatabaseError, InvalidInput) as error:
            _log.warning("not_usable_yet", error=str(error))
        else:
            if not stop.is_set():
                return opened
            opened.close()
        try:
            await asyncio.wait_for(stop.wait(), wait)
        except TimeoutError:
            wait = min(15.0, wait * 2)
    return None


def stop_on_signals(stop: Callable[[], None], signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
    """Call `stop` on any of the signals; for the running event loop."""
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, stop)


async def watch_paused(settings: ProcessSettings, adopt: Callable[[bool], None]) -> None:
    """Tell `adopt` whether the set is paused, whenever the mounted ConfigMap says otherwise than before. Never returns."""
    paused: bool | None = None
    while True:
        try:
            _, spec = await asyncio.to_thread(settings.shard_set)
        except InvalidInput as error:
            _log.warning("config_unreadable", error=str(error))
        else:
            if spec.paused != paused:
                paused = spec.paused
                _log.info("paused" if paused else "not_paused")
                adopt(paused)
        await asyncio.sleep(_WATCH_SECONDS)


class Probes:
    """/healthz, /readyz and /metrics of a process."""

    def __init__(self) -> None:
        self.ready = False
        self._beat = time.monotonic()

    async def beat(self) -> None:
        """Prove, for as long as it runs, that the event loop turns. Never returns."""
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(1)

    @asynccontextmanager
    async def serve(self, port: int) -> AsyncIterator[int]:
        """Answer on all addresses until left; the port, which the system chooses where 0 is given."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        listening = listen(port)
        await web.SockSite(runner, listening).start()
        beat = asyncio.create_task(self.beat())
        bound: int = listening.getsockname()[1]
        _log.info("listening", port=bound)
        try:
            yield bound
        finally:
            beat.cancel()
            await runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        late = time.monotonic() - self._beat
        return web.Response(text="ok\n") if late < _BEAT_SECONDS_MAX else web.Response(status=503, text=f"stuck {late:.0f} s\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n") if self.ready else web.Response(status=503, text="not ready\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def listen(port: int) -> socket.socket:
    """A listening socket on all addresses. One socket for IPv4 and IPv6: two would get two ports where the system chooses."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def run_process(settings: ProcessSettings, work: Callable[[ProcessSettings], Awaitable[None]]) -> int:
    """Run a process to its end; the exit code. A fault of our own is logged with its traceback, and exits 1."""
    telemetry.configure_logs(settings.log_level)

    async def run() -> None:
        await work(settings)

    try:
        asyncio.run(run())
    except BillingShardsError as error:
        _log.error("process_failed", error=str(error))
        return 1
    except Exception:  # noqa: BLE001 - the last resort: the traceback goes into the log, the exit code to Kubernetes
        _log.exception("process_crashed")
        return 1
    return 0
