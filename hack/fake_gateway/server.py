"""Routes: the provider's API under /v1 in both protocols, the test's side under /admin, the page for the eye at /."""

import asyncio
import contextlib
import dataclasses
import hmac
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import structlog
from aiohttp import web

from hack.fake_gateway import documents, page, parse, stripe_documents
from hack.fake_gateway.admin import AdminApi
from hack.fake_gateway.changing import Changing
from hack.fake_gateway.charging import Charge
from hack.fake_gateway.clock import Clock
from hack.fake_gateway.keyed import Dialect, Keyed
from hack.fake_gateway.model import Answer, Config
from hack.fake_gateway.refunding import Refunding
from hack.fake_gateway.store import Store
from hack.fake_gateway.stripe_api import StripeApi
from hack.fake_gateway.webhooks import Webhooks

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answerer = Callable[[web.Request], Awaitable[Answer]]

BODY_BYTES_MAX = 64 * 1024
GROUPS_PER_PAGE = 50

log = structlog.get_logger()


class Server:
    """The state of one provider and its routes. Made inside the event loop; `application()` closes it at the end."""

    def __init__(self, state: Path, initial: Config) -> None:
        self._store = Store(state)
        self._clock = Clock(float(self._store.setting("clock_offset_seconds") or 0))
        kept = self._store.setting("config")
        config = parse.config(json.loads(kept)) if kept else initial
        self._keyed = Keyed(self._store, self._clock, config)
        self._refunding = Refunding(self._store)
        self._changing = Changing(self._store, self._clock, lambda: self._keyed.config)
        self._stripe = StripeApi(self._store, self._clock, self._keyed, self._refunding, self._changing)
        self._webhooks = Webhooks(self._store, self._clock, lambda: self._keyed.config)
        self._admin = AdminApi(self._store, self._clock, self._keyed, self._changing, self._webhooks, self._settle)

    def application(self) -> web.Application:
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.add_routes([*self._own_routes(), *self._stripe_routes(), *self._admin_routes()])
        application.cleanup_ctx.append(self._running)
        return application

    def _own_routes(self) -> list[web.RouteDef]:
        provider = self._provider
        return [
            web.post("/v1/charges", self._counted(provider(self._create_charge))),
            web.get("/v1/charges", provider(self._list_charges)),
            web.get("/v1/charges/export", self._export),
            web.get("/v1/charges/{id}", provider(self._get_charge)),
            web.post("/v1/charges/{id}/cancel", provider(self._cancel_charge)),
            # Both protocols have this path; the body's form tells them apart.
            web.post("/v1/refunds", _by_form(provider(self._create_refund), self._stripes(self._stripe.create_refund))),
            web.get("/v1/refunds", _by_intent(provider(self._list_refunds), self._stripes(self._stripe.list_refunds))),
            web.get("/v1/refunds/{id}", provider(self._get_refund)),
        ]

    def _stripe_routes(self) -> list[web.RouteDef]:
        stripes, api = self._stripes, self._stripe
        return [
            web.post("/v1/payment_intents", self._counted(stripes(api.create_intent))),
            web.get("/v1/payment_intents", stripes(api.list_intents)),
            web.get("/v1/payment_intents/search", stripes(api.search_intents)),
            web.get("/v1/payment_intents/{id}", stripes(api.get_intent)),
            web.post("/v1/payment_intents/{id}/cancel", stripes(api.cancel_intent)),
        ]

    def _admin_routes(self) -> list[web.RouteDef]:
        admin = self._admin
        return [
            web.get("/admin/config", _answering(admin.get_config)),
            web.put("/admin/config", _answering(admin.put_config)),
            web.patch("/admin/config", _answering(admin.patch_config)),
            web.post("/admin/reset", _answering(admin.reset)),
            web.get("/admin/summary", _answering(admin.summary)),
            web.get("/admin/clock", _answering(admin.get_clock)),
            web.post("/admin/clock", _answering(admin.advance_clock)),
            web.post("/admin/charges/{id}/reverse", _answering(admin.reverse)),
            web.post("/admin/charges/{id}/complete", _answering(admin.complete)),
            web.get("/healthz", _answering(self._healthz)),
            web.get("/", self._page),
        ]

    # The provider's API

    async def _create_charge(self, request: web.Request) -> Answer:
        key = parse.idempotency_key(request.headers.get("Idempotency-Key"))
        charge_request = parse.charge_request(await request.read())
        return await self._keyed.answer(key, Charge(asked=charge_request, store=self._store, dialect=documents))

    async def _get_charge(self, request: web.Request) -> Answer:
        await self._settle()
        document = self._store.charge(request.match_info["id"])
        if document is None:
            return documents.not_found("This charge")
        return Answer(http_status=200, body=document)

    async def _cancel_charge(self, request: web.Request) -> Answer:
        """Answered with the charge as it then is, whatever became of it: only one that waits is changed."""
        change = await self._changing.cancel(request.match_info["id"])
        if change is None:
            return documents.not_found("This charge")
        return dataclasses.replace(documents.answer(200, change.document), dropped=change.dropped)

    async def _list_charges(self, request: web.Request) -> Answer:
        await self._settle()
        limit = parse.page_limit(request.query.get("limit", "100"))
        after, reference = request.query.get("starting_after"), request.query.get("reference")
        if reference is None:
            charges = self._store.charges_after(after, limit + 1)
        elif after is None:
            charges = self._store.charges_of_reference(reference, limit + 1)
        else:
            return documents.invalid("starting_after", "cannot be combined with reference")
        if charges is None:
            return documents.invalid("starting_after", "is no charge's id")
        return _page_of(charges, limit)

    async def _create_refund(self, request: web.Request) -> Answer:
        key = parse.idempotency_key(request.headers.get("Idempotency-Key"))
        asked = parse.refund_request(await request.read())
        await self._settle()
        found = self._store.charge(asked.charge)
        if found is None:
            return documents.not_found("This charge")
        return await self._keyed.answer(key, self._refunding.refund(asked, json.loads(found), documents))

    async def _get_refund(self, request: web.Request) -> Answer:
        await self._settle()
        document = self._store.refund(request.match_info["id"])
        return documents.not_found("This refund") if document is None else Answer(http_status=200, body=document)

    async def _list_refunds(self, request: web.Request) -> Answer:
        await self._settle()
        limit = parse.page_limit(request.query.get("limit", "100"))
        for column in ("reference", "charge"):
            if (value := request.query.get(column)) is not None:
                return _page_of(self._store.refunds_of(column, value), limit)
        refunds = self._store.refunds_after(request.query.get("starting_after"), limit + 1)
        return documents.invalid("starting_after", "is no refund's id") if refunds is None else _page_of(refunds, limit)

    async def _export(self, request: web.Request) -> web.StreamResponse:
        if not self._is_authorized(request):
            return _respond(request, documents.unauthorized())
        await self._settle()
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async with contextlib.aclosing(self._store.export()) as chunks:
            async for chunk in chunks:
                await response.write(chunk)
        await response.write_eof()
        return response

    def _provider(self, answerer: Answerer) -> Handler:
        """A handler that asks for the API key, where one is configured."""

        async def handle(request: web.Request) -> Answer:
            return await answerer(request) if self._is_authorized(request) else documents.unauthorized()

        return _answering(handle)

    def _stripes(self, answerer: Answerer) -> Handler:
        """The same for Stripe's routes, in its words."""

        async def handle(request: web.Request) -> Answer:
            if not self._is_authorized(request):
                return stripe_documents.unauthorized()
            await self._settle()
            return await answerer(request)

        return _answering(handle, stripe_documents)

    def _is_authorized(self, request: web.Request) -> bool:
        api_key = self._keyed.config.api_key
        if api_key is None:
            return True
        sent = request.headers.get("Authorization", "").encode(errors="replace")
        return hmac.compare_digest(sent, f"Bearer {api_key}".encode())

    def _counted(self, handler: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            self._keyed.counters["requests"] += 1
            response = await handler(request)
            # The caller may have left, or the answer is one of those that are to be lost.
            gone = request.transport is None or request.transport.is_closing()
            self._keyed.counters["unanswered" if gone else f"answered_{response.status}"] += 1
            return response

        return handle

    async def _settle(self) -> None:
        await self._store.settle(self._clock.now(), tell=self._keyed.config.webhook_url is not None)

    async def _healthz(self, _: web.Request) -> Answer:
        return documents.answer(200, {"status": "ok"})

    async def _page(self, request: web.Request) -> web.Response:
        await self._settle()
        try:
            view = page.view(request.query)
        except parse.FieldError as error:
            return web.Response(status=400, text=str(error))
        totals = await self._store.totals()
        groups = await self._store.page_of_groups(
            text=view.text,
            status=view.status,
            only_double=view.only_double,
            limit=GROUPS_PER_PAGE + 1,
            offset=(view.number - 1) * GROUPS_PER_PAGE,
        )
        has_more = len(groups) > GROUPS_PER_PAGE
        html = page.render(view, groups[:GROUPS_PER_PAGE], totals, has_more=has_more)
        return web.Response(text=html, content_type="text/html")

    # Start and end

    async def _running(self, application: web.Application) -> AsyncIterator[None]:
        application.on_shutdown.append(self._abandon_waiting)
        tasks = [asyncio.create_task(self._keep_counters()), asyncio.create_task(self._webhooks.run())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.save_counters(self._keyed.counters)
        await self._store.close()

    async def _abandon_waiting(self, _: web.Application) -> None:
        await self._keyed.stop()

    async def _keep_counters(self) -> None:
        """Counters are written once a second: a killed process loses the last second of counts, but no charge."""
        written: dict[str, int] = {}
        while True:
            await asyncio.sleep(1)
            if written != self._keyed.counters:
                written = dict(self._keyed.counters)
                await self._store.save_counters(written)


def _page_of(items: list[str], limit: int) -> Answer:
    has_more = "true" if len(items) > limit else "false"
    return Answer(http_status=200, body=f'{{"data": [{", ".join(items[:limit])}], "has_more": {has_more}}}')


def _by_form(own: Handler, stripes: Handler) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await (stripes if request.content_type == "application/x-www-form-urlencoded" else own)(request)

    return handle


def _by_intent(own: Handler, stripes: Handler) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await (stripes if "payment_intent" in request.query else own)(request)

    return handle


def _answering(answerer: Answerer, dialect: Dialect = documents) -> Handler:
    """A handler of aiohttp's from one of ours: refusals and our own failures become answers of the protocol."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            answer = await answerer(request)
        except parse.FieldError as error:
            answer = dialect.invalid(error.field, error.reason)
        except web.HTTPRequestEntityTooLarge:
            answer = dialect.invalid("body", f"must have at most {BODY_BYTES_MAX} bytes")
        except sqlite3.Error:
            log.exception("state_not_written", method=request.method, path=request.path)
            answer = dialect.api_error()
        return _respond(request, answer)

    return handle


def _respond(request: web.Request, answer: Answer) -> web.Response:
    if answer.dropped and request.transport is not None:
        request.transport.close()
    return web.Response(
        status=answer.http_status,
        body=answer.body.encode(),
        headers=answer.headers,
        content_type="application/json",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A server that accepts connections."""

    runner: web.AppRunner
    port: int

    async def stop(self) -> None:
        """Answers what is being processed, drops what still waits after two seconds."""
        await self.runner.cleanup()


async def listen(server: Server, host: str, port: int) -> Listening:
    """Port 0 lets the operating system choose."""
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=4096)
    await site.start()
    return Listening(runner=runner, port=runner.addresses[0][1])
