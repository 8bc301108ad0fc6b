"""The adapter for Stripe, over its official SDK: each attempt is a PaymentIntent that is confirmed at once, the customer away.

The SDK's own retries are off and our idempotency key is the only one (stripe-php 637: retries put another key in its place). What
an answer says is read in `stripe_answers`. A payment method is `cus_…/pm_…`, or `pm_…` alone where it belongs to no customer.

Search sees a new intent only after a while ("less than a minute under normal conditions"), so a young attempt is sent again under
its key instead of being looked for; what search finds is then read by its id, for it may have changed since it was indexed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import aiohttp
import stripe

from billing_shards.errors import InvalidInput
from billing_shards.payments import stripe_answers as answers
from billing_shards.payments import wire
from billing_shards.payments.http_answers import Answer
from billing_shards.payments.model import (
    Capabilities,
    Cause,
    ChargeRequest,
    Failed,
    Found,
    NotFound,
    NotSent,
    Outcome,
    RefundFound,
    RefundOutcome,
    RefundRequest,
    Unknown,
    Unresolvable,
    WebhookEvent,
)
from billing_shards.payments.stripe_units import to_stripes
from billing_shards.settings import GatewaySpec

_SEARCH_LAG_SECONDS = 60.0
_FOUND_MAX = 10
_REFUNDS_PAGE = 100
_REFUND_PAGES_MAX = 20

T = TypeVar("T")

stripe.enable_telemetry = False  # it would tell Stripe of the machine, and write a file to name it by


class StripeGateway:
    """A `PaymentGateway`. To be made, used and closed within one event loop."""

    capabilities = Capabilities(refunds=True, signature_header="Stripe-Signature", find_lag_seconds=_SEARCH_LAG_SECONDS)

    def __init__(self, spec: GatewaySpec, api_key: wire.ApiKey, *, connections_max: int) -> None:
        self.name = spec.name
        self.key_ttl_seconds = float(spec.key_ttl_seconds)
        self._api_key = api_key
        self._http = _Http(wire.session(spec, connections_max))
        client = stripe.StripeClient(
            "given with each request",
            base_addresses={"api": spec.url.rstrip("/")},
            max_network_retries=0,
            http_client=self._http,
        )
        self._intents, self._refunds = client.v1.payment_intents, client.v1.refunds

    async def charge(self, request: ChargeRequest) -> Outcome:
        """See `PaymentGateway`."""
        try:
            amount = to_stripes(request.amount, request.currency)
        except InvalidInput as error:
            return Unresolvable(reason=f"refused: {error}", cause=Cause.REFUSED)
        params = _intent(request, amount)
        ask = partial(self._intents.create_async, params)
        return await self._ask(ask, partial(answers.outcome, request.reference), key=request.key)

    async def find(self, reference: str) -> Found:
        """See `PaymentGateway`."""
        query = f"metadata['reference']:'{_quoted(reference)}'"
        ask = partial(self._intents.search_async, {"query": query, "limit": _FOUND_MAX})
        ids = await self._ask(ask, answers.ids)
        if not isinstance(ids, list):
            return ids
        outcomes = [await self._now(intent, reference) for intent in ids]
        return answers.most_telling(outcomes)

    async def cancel(self, reference: str, provider_ref: str) -> Found:
        """See `PaymentGateway`."""
        return await self._ask(partial(self._intents.cancel_async, provider_ref, None), partial(answers.canceled, reference))

    async def refund(self, request: RefundRequest) -> RefundOutcome:
        """See `PaymentGateway`."""
        try:
            amount = to_stripes(request.amount, request.currency)
        except InvalidInput:
            return Failed(code="amount_not_representable")
        params: stripe.params.RefundCreateParams = {
            "payment_intent": request.provider_ref,
            "amount": amount,
            "metadata": {"reference": request.reference},
        }
        ask = partial(self._refunds.create_async, params)
        return await self._ask(ask, partial(answers.refund_outcome, request.reference), key=request.key)

    async def find_refund(self, reference: str, provider_ref: str) -> RefundFound:
        """See `PaymentGateway`."""
        params: stripe.params.RefundListParams = {"payment_intent": provider_ref, "limit": _REFUNDS_PAGE}
        for _ in range(_REFUND_PAGES_MAX):
            page = await self._ask(partial(self._refunds.list_async, params), partial(answers.refund_page, reference))
            if not isinstance(page, answers.RefundPage):
                return page
            if page.found is not None:
                return page.found
            if page.next_after is None:
                return NotFound()
            params["starting_after"] = page.next_after
        return Unknown(reason="more refunds than are looked through", cause=Cause.FAILED)

    def parse_webhook(self, body: bytes) -> WebhookEvent:
        """See `PaymentGateway`."""
        return answers.webhook(body)

    async def referenced(self, event: WebhookEvent) -> WebhookEvent | NotSent | Unknown:
        """See `PaymentGateway`. A dispute names the intent, and only the intent has our reference."""
        if event.reference is not None or event.kind != "charge.reversed" or event.provider_ref is None:
            return event
        return await self._ask(
            partial(self._intents.retrieve_async, event.provider_ref, None), partial(answers.referenced, event)
        )

    async def close(self) -> None:
        """See `PaymentGateway`."""
        await self._http.close_async()

    async def _now(self, intent: str, reference: str) -> Found:
        return await self._ask(partial(self._intents.retrieve_async, intent, None), partial(answers.found, reference))

    async def _ask(
        self,
        ask: Callable[[stripe.RequestOptions], Awaitable[stripe.StripeObject]],
        read: Callable[[Answer], T],
        *,
        key: str | None = None,
    ) -> T | NotSent | Unknown:
        """One request, and what `read` makes of its answer."""
        try:
            options = self._options(key)
        except InvalidInput as error:
            return wire.no_key(str(error))
        try:
            document = await ask(options)
            answer = Answer(status=200, headers={}, document=document.to_dict())
        except wire.BROKEN as error:
            return wire.broken(error)
        except stripe.StripeError as error:
            answer = _of_error(error)
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of what was sent back, money may have been taken
            return Unknown(reason=f"not understood: {type(error).__name__}", cause=Cause.FAILED)
        return wire.turned_away(answer.status, answer.headers) or read(answer)

    def _options(self, key: str | None) -> stripe.RequestOptions:
        api_key = wire.usable(self._api_key())
        if not api_key:
            raise InvalidInput("apiKey", "Stripe takes nothing without one: name a Secret in spec.gateway.apiKeySecret")
        return {"api_key": api_key} if key is None else {"api_key": api_key, "idempotency_key": key}


class _Http(stripe.HTTPClient):
    """The SDK's requests over a session of ours: with time-outs, and without following redirects, which would hand on our key.

    Its errors are the session's own, which tell more of what reached Stripe than the SDK's single one.
    """

    name = "aiohttp"

    def __init__(self, session: aiohttp.ClientSession) -> None:
        super().__init__()
        self._session = session

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """One request, sent once."""
        async with self._session.request(method, url, headers=headers, data=post_data, allow_redirects=False) as response:
            return await response.read(), response.status, response.headers

    async def close_async(self) -> None:
        """Close the session."""
        await self._session.close()


def _intent(request: ChargeRequest, amount: int) -> stripe.params.PaymentIntentCreateParams:
    customer, _, method = request.payment_method.rpartition("/")
    metadata = {"reference": request.reference}
    if request.service is not None:
        metadata["service"] = request.service
    params: stripe.params.PaymentIntentCreateParams = {
        "amount": amount,
        "currency": request.currency.lower(),
        "payment_method": method,
        "confirm": True,
        "off_session": True,
        # Nobody is there to act. An intent that waited for it could still take the money after another attempt had been made.
        "error_on_requires_action": True,
        "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
        "metadata": metadata,
    }
    if customer:
        params["customer"] = customer
    return params


def _of_error(error: stripe.StripeError) -> Answer:
    """What came back, from the error that the SDK made of it. `http_status` is missing only where nothing came."""
    document, headers = error.json_body, cast("object", error.headers)
    if not headers and not isinstance(document, dict):
        headers = document  # where the SDK puts them if the answer was not JSON
    status = error.http_status or 0
    if isinstance(error, stripe.RateLimitError):  # once a 400 with a code
        status = 429
    return Answer(
        status=status,
        headers=headers if isinstance(headers, Mapping) else {},
        document=document if isinstance(document, dict) else {},
    )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
