"""The rules of webhooks, for a provider that can reach us: its team points it at the port that is listened on."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from billing_shards.errors import InvalidInput, WebhookRefused
from billing_shards.payments.conformance.client import Client, Document, document, expect, expect_status
from billing_shards.payments.conformance.model import Broken, Rule, Trial
from billing_shards.payments.http_answers import webhook
from billing_shards.payments.model import WebhookEvent, WebhookKind
from billing_shards.payments.signature import verify

HEADER = "Webhook-Signature"
_HEARD_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_TOLERANCE_SECONDS = 300.0
_TIMES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One delivery."""

    event: WebhookEvent
    body: bytes
    header: str | None
    at: float


@dataclass(slots=True)
class Listener:
    """Takes webhooks, and refuses each event's first delivery, so that it must be sent again."""

    secret: bytes
    heard: list[Heard] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    """Why deliveries were no events at all."""
    seconds: float = _HEARD_SECONDS
    """How long an event is waited for."""

    @asynccontextmanager
    async def serve(self, port: int) -> AsyncIterator[int]:
        """Answer on all addresses until left; the port, which the system chooses where 0 is given."""
        app = web.Application()
        app.router.add_post("/{any:.*}", self._take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        listening = _listen(port)
        bound: int = listening.getsockname()[1]
        try:
            await web.SockSite(runner, listening).start()
            yield bound
        finally:
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            event = webhook(body)
        except InvalidInput as error:
            self.odd.append(str(error))
            return web.Response(status=400)
        again = any(each.event.id == event.id for each in self.heard)
        self.heard.append(Heard(event=event, body=body, header=request.headers.get(HEADER), at=time.time()))
        return web.Response(status=204 if again else 503)

    async def deliveries(self, kind: WebhookKind, reference: str, times: int) -> list[Heard]:
        """So many deliveries of the event of this kind and reference. Raises `Broken` where they do not come."""
        found: list[Heard] = []
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            found = [each for each in self.heard if (each.event.kind, each.event.reference) == (kind, reference)]
            if len(found) >= times:
                return found
            await asyncio.sleep(_LOOK_SECONDS)
        odd = f", and {len(self.odd)} that are no events ({self.odd[-1]})" if self.odd else ""
        raise Broken(f"{times} deliveries of {kind} within {self.seconds:g} s; came {len(found)}{odd}")


def _listen(port: int) -> socket.socket:
    """One socket for IPv4 and IPv6: two would get two ports where the system chooses."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


async def _success_is_told(client: Client, trial: Trial) -> None:
    body = client.body(trial)
    made = await client.charge(body)
    (first, *_) = await _listener(trial).deliveries("charge.succeeded", body["reference"], 1)
    _expect_told(first, made)


async def _is_signed(client: Client, trial: Trial) -> None:
    body = client.body(trial)
    await client.charge(body)
    for each in await _listener(trial).deliveries("charge.succeeded", body["reference"], 1):
        try:
            verify(each.header, each.body, [_listener(trial).secret], now=each.at, tolerance_seconds=_TOLERANCE_SECONDS)
        except WebhookRefused as error:
            raise Broken(f"{HEADER} must prove the body: {error}") from error


async def _is_told_again(client: Client, trial: Trial) -> None:
    body = client.body(trial)
    await client.charge(body)
    first, second, *_ = await _listener(trial).deliveries("charge.succeeded", body["reference"], _TIMES)
    expect(first.event == second.event, "the same event again, under the same id", second.event)


async def _decline_is_told(client: Client, trial: Trial) -> None:
    body = client.body(trial, trial.declines)
    reply = await client.post("/v1/charges", body, client.name())
    expect_status(reply, 402)
    (first, *_) = await _listener(trial).deliveries("charge.failed", body["reference"], 1)
    charge = document(document(reply.body).get("charge"))
    _expect_told(first, charge)
    expect(first.event.code == document(charge.get("failure")).get("decline_code"), "the decline's code", first.event.code)


async def _refund_is_told(client: Client, trial: Trial) -> None:
    charge = await client.charge(client.body(trial))
    reference = f"refund/{client.name()}"
    body = {"charge": charge["id"], "amount": 1, "currency": charge["currency"], "reference": reference}
    reply = await client.post("/v1/refunds", body, client.name())
    expect_status(reply, 200)
    (first, *_) = await _listener(trial).deliveries("refund.succeeded", reference, 1)
    _expect_told(first, document(reply.body))


def _expect_told(heard: Heard, made: Document) -> None:
    told = (heard.event.provider_ref, heard.event.amount, heard.event.currency)
    expect(told == (made.get("id"), made.get("amount"), made.get("currency")), "id, amount and currency as answered", told)


def _listener(trial: Trial) -> Listener:
    if trial.listener is None:
        raise Broken("nobody listens")
    return trial.listener


def _heard(trial: Trial) -> bool:
    return trial.listener is not None


def rules() -> list[Rule]:
    """In the order in which they are tried."""
    wants = "--webhook-port"
    return [
        Rule(name="webhook.told", says="a success is told by webhook", check=_success_is_told, needs=_heard, wants=wants),
        Rule(name="webhook.signed", says="its header proves its body", check=_is_signed, needs=_heard, wants=wants),
        Rule(
            name="webhook.again", says="what is refused is sent again, the same", check=_is_told_again, needs=_heard, wants=wants
        ),
        Rule(
            name="webhook.declined",
            says="a decline is told by webhook",
            check=_decline_is_told,
            needs=lambda trial: _heard(trial) and trial.declines is not None,
            wants="--webhook-port and --declines",
        ),
        Rule(
            name="webhook.refunded",
            says="a refund is told by webhook",
            check=_refund_is_told,
            needs=lambda trial: _heard(trial) and trial.refunds,
            wants="--webhook-port and a provider that refunds",
        ),
    ]
