"""The adapter for a provider that speaks the protocol of docs/gateway-protocol.md: JSON over HTTP.

The requests are here; what an answer says is read in `http_answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp

from billing_shards.errors import InvalidInput
from billing_shards.payments import http_answers as answers
from billing_shards.payments import wire
from billing_shards.payments.http_answers import Answer
from billing_shards.payments.model import (
    Capabilities,
    ChargeRequest,
    Found,
    NotSent,
    Outcome,
    RefundFound,
    RefundOutcome,
    RefundRequest,
    Unknown,
    WebhookEvent,
)
from billing_shards.settings import GatewaySpec

T = TypeVar("T")


class HttpGateway:
    """A `PaymentGateway`. To be made, used and closed within one event loop."""

    capabilities = Capabilities(refunds=True, signature_header="Webhook-Signature", find_lag_seconds=0.0)

    def __init__(self, spec: GatewaySpec, api_key: wire.ApiKey, *, connections_max: int) -> None:
        self.name = spec.name
        self.key_ttl_seconds = float(spec.key_ttl_seconds)
        self._url = spec.url.rstrip("/")
        self._api_key = api_key
        self._session = wire.session(spec, connections_max)

    async def charge(self, request: ChargeRequest) -> Outcome:
        """See `PaymentGateway`."""
        body: dict[str, Any] = {
            "amount": request.amount,
            "currency": request.currency,
            "payment_method": request.payment_method,
            "reference": request.reference,
        }
        if request.service is not None:
            body["metadata"] = {"service": request.service}
        read = partial(answers.outcome, request.reference)
        return await self._ask("POST", "/v1/charges", read, key=request.key, json=body)

    async def find(self, reference: str) -> Found:
        """See `PaymentGateway`."""
        return await self._ask("GET", "/v1/charges", partial(answers.found, reference), params={"reference": reference})

    async def cancel(self, reference: str, provider_ref: str) -> Found:
        """See `PaymentGateway`."""
        path = f"/v1/charges/{quote(provider_ref, safe='')}/cancel"
        return await self._ask("POST", path, partial(answers.canceled, reference))

    async def refund(self, request: RefundRequest) -> RefundOutcome:
        """See `PaymentGateway`."""
        body = {
            "charge": request.provider_ref,
            "amount": request.amount,
            "currency": request.currency,
            "reference": request.reference,
        }
        read = partial(answers.refund_outcome, request.reference)
        return await self._ask("POST", "/v1/refunds", read, key=request.key, json=body)

    async def find_refund(self, reference: str, provider_ref: str) -> RefundFound:  # noqa: ARG002 - our reference is enough
        """See `PaymentGateway`."""
        return await self._ask("GET", "/v1/refunds", partial(answers.refund_found, reference), params={"reference": reference})

    def parse_webhook(self, body: bytes) -> WebhookEvent:
        """See `PaymentGateway`."""
        return answers.webhook(body)

    async def referenced(self, event: WebhookEvent) -> WebhookEvent | NotSent | Unknown:
        """See `PaymentGateway`. Each event of the protocol carries it."""
        return event

    async def close(self) -> None:
        """See `PaymentGateway`."""
        await self._session.close()

    async def _ask(
        self, method: str, path: str, read: Callable[[Answer], T], *, key: str | None = None, **content: Any
    ) -> T | NotSent | Unknown:
        """One request, and what `read` makes of its answer. Redirects are not followed: nobody else is told our key."""
        try:
            headers = self._headers(key)
        except InvalidInput as error:
            return wire.no_key(str(error))
        try:
            async with self._session.request(
                method, self._url + path, headers=headers, allow_redirects=False, **content
            ) as response:
                answer = Answer(status=response.status, headers=response.headers, document=await _document(response))
        except wire.BROKEN as error:
            return wire.broken(error)
        return wire.turned_away(answer.status, answer.headers) or read(answer)

    def _headers(self, key: str | None) -> dict[str, str]:
        headers = {} if key is None else {"Idempotency-Key": key}
        api_key = wire.usable(self._api_key())
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        return headers


async def _document(response: aiohttp.ClientResponse) -> Mapping[str, Any]:
    """The answer's JSON object; empty where it is something else (an error page of a proxy)."""
    try:
        document = await response.json(content_type=None)
    except (ValueError, LookupError, RecursionError):  # LookupError: a charset that nobody knows
        return {}
    return document if isinstance(document, dict) else {}
