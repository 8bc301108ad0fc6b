"""The test's side, under /admin: configuration, clock, counts, and what bank and customer do to a charge."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from aiohttp import web

from hack.fake_gateway import documents, parse
from hack.fake_gateway.changing import Change, Changing
from hack.fake_gateway.clock import OFFSET_MAX, Clock
from hack.fake_gateway.keyed import Keyed
from hack.fake_gateway.model import Answer, ChargeStatus, RefundStatus
from hack.fake_gateway.store import Store
from hack.fake_gateway.webhooks import Webhooks

DOUBLE_REFERENCES_SHOWN = 100

log = structlog.get_logger()


class AdminApi:
    """Handlers. `settle` settles what is due by now."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        keyed: Keyed,
        changing: Changing,
        webhooks: Webhooks,
        settle: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._keyed = keyed
        self._changing = changing
        self._webhooks = webhooks
        self._settle = settle

    async def get_config(self, _: web.Request) -> Answer:
        return documents.answer(200, parse.config_document(self._keyed.config))

    async def put_config(self, request: web.Request) -> Answer:
        return await self._configure(parse.json_object(await request.read()))

    async def patch_config(self, request: web.Request) -> Answer:
        current = parse.config_document(self._keyed.config)
        return await self._configure(current | parse.json_object(await request.read()))

    async def _configure(self, document: dict[str, Any]) -> Answer:
        config = parse.config(document)
        whole = parse.config_document(config)
        await self._store.save_setting("config", json.dumps(whole))
        self._keyed.config = config
        log.info(
            "config_changed",
            **{**whole, "api_key": "set" if config.api_key else None, "webhook_secrets": len(config.webhook_secrets)},
        )
        return documents.answer(200, whole)

    async def reset(self, _: web.Request) -> Answer:
        self._webhooks.forget()
        await self._store.clear()
        await self._set_offset(0.0)
        self._keyed.counters.clear()
        return documents.answer(200, {})

    async def summary(self, _: web.Request) -> Answer:
        await self._settle()
        totals = await self._store.totals()
        statuses = {status.value: totals["charges"].get(status.value, 0) for status in ChargeStatus}
        doubles = totals["double_charges"]
        counters = self._keyed.counters
        summary = {
            "requests": counters["requests"],
            "answers": {
                name.removeprefix("answered_"): count for name, count in sorted(counters.items()) if name.startswith("answered_")
            },
            "unanswered": counters["unanswered"],
            "replayed": counters["replayed"],
            "over_max_rps": counters["over_max_rps"],
            "in_flight": self._keyed.in_flight,
            "charges": {"total": sum(statuses.values()), **statuses},
            "refunds": {status.value: totals["refunds"].get(status.value, 0) for status in RefundStatus},
            "webhooks": self._store.event_counts(),
            "succeeded_by_currency": totals["succeeded_by_currency"],
            "faults": totals["faults"],
            "double_charges": len(doubles),
            "double_charge_references": doubles[:DOUBLE_REFERENCES_SHOWN],
            "now": documents.timestamp(self._clock.now()),
        }
        return documents.answer(200, summary)

    async def get_clock(self, _: web.Request) -> Answer:
        now = documents.timestamp(self._clock.now())
        return documents.answer(200, {"now": now, "offset_seconds": self._clock.offset_seconds})

    async def advance_clock(self, request: web.Request) -> Answer:
        seconds = parse.seconds_to_advance(parse.json_object(await request.read()))
        offset = self._clock.offset_seconds + seconds
        if offset > OFFSET_MAX:
            raise parse.FieldError("advance_seconds", f"the clock goes at most {OFFSET_MAX:.0f} s ahead of real time")
        await self._set_offset(offset)
        return await self.get_clock(request)

    async def _set_offset(self, seconds: float) -> None:
        await self._store.save_setting("clock_offset_seconds", repr(seconds))
        self._clock.set_offset(seconds)

    async def reverse(self, request: web.Request) -> Answer:
        """The bank takes back a charge that had succeeded; `code` says why."""
        code = parse.reversal_code(await request.read())
        change = await self._changing.reverse(request.match_info["id"], code)
        return _by_hand(change, "only one that succeeded is reversed")

    async def complete(self, request: web.Request) -> Answer:
        """The customer does what a charge waits for; with `fails`, in vain."""
        fails = parse.completion_fails(await request.read())
        change = await self._changing.complete(request.match_info["id"], fails=fails)
        return _by_hand(change, "only one that waits for the customer is completed")


def _by_hand(change: Change | None, only: str) -> Answer:
    if change is None:
        return documents.not_found("This charge")
    if not change.done:
        return documents.invalid("id", f"this charge is {change.document['status']}: {only}")
    return documents.answer(200, change.document)
