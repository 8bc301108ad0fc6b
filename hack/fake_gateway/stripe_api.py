"""The routes of Stripe's API that an off-session charge needs, over the same store, keys and faults as this provider's own."""

import dataclasses
import json
from typing import Any

from aiohttp import web

from hack.fake_gateway import documents, parse, stripe_documents, stripe_parse
from hack.fake_gateway.changing import Changing
from hack.fake_gateway.charging import Charge
from hack.fake_gateway.clock import Clock
from hack.fake_gateway.keyed import Keyed
from hack.fake_gateway.model import Answer, ChargeStatus
from hack.fake_gateway.refunding import Refunding
from hack.fake_gateway.store import Store

PREFIX = "pi_"
CANCELABLE = frozenset({ChargeStatus.REQUIRES_ACTION, ChargeStatus.FAILED})
"""An intent that failed waits for another payment method, at Stripe: it can be canceled too."""


class StripeApi:
    """Handlers; each answers in Stripe's words."""

    def __init__(self, store: Store, clock: Clock, keyed: Keyed, refunding: Refunding, changing: Changing) -> None:
        self._store = store
        self._clock = clock
        self._keyed = keyed
        self._refunding = refunding
        self._changing = changing

    async def create_intent(self, request: web.Request) -> Answer:
        key = parse.idempotency_key(request.headers.get("Idempotency-Key"))
        asked = stripe_parse.payment_intent(await request.read())
        operation = Charge(
            asked=asked, store=self._store, dialect=stripe_documents, answer=stripe_documents.intent_answer, prefix=PREFIX
        )
        return await self._keyed.answer(key, operation)

    async def get_intent(self, request: web.Request) -> Answer:
        found = self._store.charge(request.match_info["id"])
        if found is None or not request.match_info["id"].startswith(PREFIX):
            return stripe_documents.missing("payment_intent", "intent")
        return documents.answer(200, stripe_documents.payment_intent(json.loads(found)))

    async def cancel_intent(self, request: web.Request) -> Answer:
        """Refused where the intent is beyond it; the refusal carries it as it is."""
        intent_id, reason = request.match_info["id"], stripe_parse.cancellation_reason(await request.read())
        if not intent_id.startswith(PREFIX):
            return stripe_documents.missing("payment_intent", "intent")
        fields = {"canceled_at": documents.timestamp(self._clock.now()), "cancellation_reason": reason}
        change = await self._changing.cancel(intent_id, CANCELABLE, fields)
        if change is None:
            return stripe_documents.missing("payment_intent", "intent")
        answer = stripe_documents.cancel_answer(change.document, done=change.done)
        return dataclasses.replace(answer, dropped=change.dropped)

    async def search_intents(self, request: web.Request) -> Answer:
        """Stripe's search sees what is new only after a while; `search_lag_seconds` says how long."""
        reference = stripe_parse.searched_reference(request.query)
        newest = documents.timestamp(self._clock.now() - self._keyed.config.search_lag_seconds)
        charges = map(json.loads, self._store.charges_of_reference(reference, 100))
        intents = [
            stripe_documents.payment_intent(charge)
            for charge in charges
            if charge["id"].startswith(PREFIX) and charge["created"] <= newest
        ]
        return documents.answer(200, stripe_documents.searched("/v1/payment_intents/search", intents))

    async def list_intents(self, request: web.Request) -> Answer:
        """In the order of creation, newest first; the page of one customer where one is named."""
        limit = parse.page_limit(request.query.get("limit", "10"))
        charges = self._store.newest_charges(
            PREFIX, request.query.get("customer"), request.query.get("starting_after"), limit + 1
        )
        intents = [stripe_documents.payment_intent(json.loads(charge)) for charge in charges[:limit]]
        return documents.answer(200, stripe_documents.listed("/v1/payment_intents", intents, has_more=len(charges) > limit))

    async def create_refund(self, request: web.Request) -> Answer:
        key = parse.idempotency_key(request.headers.get("Idempotency-Key"))
        body = await request.read()
        found = self._store.charge(stripe_parse.refunded_intent(body))
        if found is None:
            return stripe_documents.missing("payment_intent", "payment_intent")
        charge: dict[str, Any] = json.loads(found)
        asked = stripe_parse.refund(body, charge["currency"])
        operation = self._refunding.refund(asked, charge, stripe_documents, stripe_documents.refund_answer)
        return await self._keyed.answer(key, operation)

    async def list_refunds(self, request: web.Request) -> Answer:
        refunds = self._store.refunds_of("charge", request.query.get("payment_intent", ""))
        limit = parse.page_limit(request.query.get("limit", "10"))
        after = request.query.get("starting_after")
        items = [stripe_documents.refund(json.loads(refund)) for refund in refunds]
        if after is not None:
            ids = [item["id"] for item in items]
            items = items[ids.index(after) + 1 :] if after in ids else []
        return documents.answer(200, stripe_documents.listed("/v1/refunds", items[:limit], has_more=len(items) > limit))
