"""The door for the providers' webhooks: `POST /webhooks/<provider>` over HTTP, in the housekeeper.

    200  stored, or stored before                       401  not proved to be the provider's: nothing was stored
    404  no such provider, or it sends none             400  its body is no event of this provider's
    413  the body is too large                          503  we could not store it: the provider sends it again

TLS ends before it, at an Ingress. Each database has threads of its own: one that is away holds up no other's webhooks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import structlog
from aiohttp import web

from billing_shards import process, telemetry
from billing_shards.errors import BillingShardsError, InvalidInput, WebhookRefused
from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.model import WebhookEvent
from billing_shards.payments.providers import Providers
from billing_shards.payments.signature import secrets_of
from billing_shards.payments.webhooks.receive import Received, accept, keep, received
from billing_shards.process import ShardSet
from billing_shards.settings import GatewaySpec
from billing_shards.shards.transactions import ShardRouter

_log = structlog.get_logger(__name__)

_BODY_BYTES_MAX = 1 << 20
_CONNECTIONS = 4
_BODY_SECONDS_MAX = 10.0  # nobody keeps us waiting who has proved nothing yet
_STORE_SECONDS_MAX = 15.0  # less than providers wait for an answer
_UNDER_WAY_MAX = 500  # more are turned away: the provider sends them again, later


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What one provider's webhooks are verified with."""

    secrets: Callable[[], Sequence[bytes]]
    """Asked for each webhook, so that a changed Secret is taken at once. Raises `InvalidInput`."""
    tolerance_seconds: float


def doors(shard_set: ShardSet) -> dict[str, Door]:
    """The doors of the providers whose webhooks are wanted, by the provider's name."""
    return {spec.name: _door(shard_set, spec) for spec in shard_set.spec.all_gateways if spec.webhook_secret is not None}


def _door(shard_set: ShardSet, spec: GatewaySpec) -> Door:
    def secrets() -> Sequence[bytes]:
        secret = spec.webhook_secret
        return [] if secret is None else secrets_of(shard_set.secrets.value(secret.name, "webhookSecrets"))

    return Door(secrets=secrets, tolerance_seconds=spec.webhook_tolerance_seconds)


class Receiver:
    """Takes webhooks and stores them. `clock`: seconds since 1970."""

    def __init__(
        self,
        router: ShardRouter,
        providers: Providers,
        doors: Mapping[str, Door],
        shard_count: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._router = router
        self._providers = providers
        self._doors = doors
        self._shard_count = shard_count
        self._clock = clock
        self._under_way = 0
        self._threads = {
            name: ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix=f"webhooks-{name}") for name in router.databases
        }

    @asynccontextmanager
    async def serve(self, port: int) -> AsyncIterator[int]:
        """Answer on all addresses until left; the port, which the system chooses where 0 is given."""
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.router.add_post("/webhooks/{provider}", self._webhook)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        listening = process.listen(port)
        await web.SockSite(runner, listening).start()
        bound: int = listening.getsockname()[1]
        _log.info("webhooks_taken", port=bound, providers=sorted(self._doors))
        try:
            yield bound
        finally:
            await runner.cleanup()
            for threads in self._threads.values():
                threads.shutdown(wait=False)

    async def _webhook(self, request: web.Request) -> web.Response:
        now = self._clock()
        provider = request.match_info["provider"]
        door, gateway = self._doors.get(provider), self._providers.named(provider)
        if door is None or gateway is None or gateway.capabilities.signature_header is None:
            return web.Response(status=404, text="no webhooks are taken here\n")
        header = request.headers.get(gateway.capabilities.signature_header)
        try:
            body = await asyncio.wait_for(request.read(), _BODY_SECONDS_MAX)
        except TimeoutError:
            return web.Response(status=408, text="too slow\n")
        status, text = await self._take(gateway, door, body, header, now)
        telemetry.WEBHOOKS.labels(provider, str(status)).inc()
        return web.Response(status=status, text=text + "\n")

    async def _take(self, gateway: PaymentGateway, door: Door, body: bytes, header: str | None, now: float) -> tuple[int, str]:
        try:
            secrets = await asyncio.to_thread(door.secrets)
        except InvalidInput as error:
            _log.error("webhook_secrets_unusable", provider=gateway.name, error=str(error))
            return 503, "not now"
        try:
            accepted = accept(
                gateway,
                body,
                header,
                secrets,
                now=now,
                tolerance_seconds=door.tolerance_seconds,
                shard_count=self._shard_count,
            )
            if accepted.result == "no_reference":
                # Only the provider can tell whose it is. Until it has, nothing is stored, and the provider sends it again.
                told = await gateway.referenced(accepted.event)
                if not isinstance(told, WebhookEvent):
                    _log.warning("webhook_reference_unknown", provider=gateway.name, reason=told.reason)
                    return 503, "not now"
                accepted = received(gateway.name, told, body, self._shard_count)
        except WebhookRefused as error:
            _log.warning("webhook_refused", provider=gateway.name, reason=str(error))
            return 401, "refused"
        except InvalidInput as error:
            _log.warning("webhook_not_understood", provider=gateway.name, reason=str(error))
            return 400, "not understood"
        return await self._keep(gateway.name, accepted)

    async def _keep(self, provider: str, received: Received) -> tuple[int, str]:
        if self._under_way >= _UNDER_WAY_MAX:
            return 503, "too many at once"
        self._under_way += 1
        try:
            database = self._router.owner(received.shard).name
            store = partial(keep, self._router, provider, received)
            loop = asyncio.get_running_loop()
            await asyncio.wait_for(loop.run_in_executor(self._threads[database], store), _STORE_SECONDS_MAX)
        except (BillingShardsError, TimeoutError) as error:
            _log.warning("webhook_not_stored", provider=provider, shard=received.shard, error=str(error) or "time-out")
            return 503, "not now"
        finally:
            self._under_way -= 1
        if received.result == "no_reference":
            _log.warning("webhook_without_reference", provider=provider, event_id=received.event.id, kind=received.event.kind)
        return 200, "stored"


@asynccontextmanager
async def running(shard_set: ShardSet, port: int) -> AsyncIterator[int | None]:
    """Take webhooks while the body runs; the port. Where no provider has a webhook secret, nobody listens.

    On connections of its own: chores that are busy do not make a provider wait. Raises what `process.router` raises.
    """
    open_doors = doors(shard_set)
    if not open_doors:
        yield None
        return
    router = await asyncio.to_thread(process.router, shard_set, pool_size=_CONNECTIONS)
    providers = process.providers(shard_set)
    try:
        receiver = Receiver(router, providers, open_doors, shard_set.spec.shard_count)
        async with receiver.serve(port) as bound:
            yield bound
    finally:
        await providers.close()
        router.close()
