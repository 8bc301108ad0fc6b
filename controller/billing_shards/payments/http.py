"""The adapter for a provider that speaks the protocol of docs/gateway-protocol.md: JSON over HTTP.

What may have reached the provider is `Unknown`; only what surely did not is `NotSent`. A 500 is unknown: the provider may have
taken the money before it failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import structlog
from aiolimiter import AsyncLimiter

from billing_shards import telemetry
from billing_shards.payments.declines import classify
from billing_shards.payments.model import (
    ActionRequired,
    ChargeRequest,
    Declined,
    Found,
    NotFound,
    NotSent,
    Outcome,
    Pending,
    Succeeded,
    Unknown,
    Unresolvable,
)
from billing_shards.settings import GatewaySpec

_log = structlog.get_logger(__name__)

_CONNECT_SECONDS = 5
_RETRY_AFTER_SECONDS_MAX = 300.0
_REFUSED_SECONDS = 5.0  # between requests while our key is refused
_CODE_LENGTH_MAX = 64


class HttpGateway:
    """A `PaymentGateway`. To be made, used and closed within one event loop."""

    def __init__(self, spec: GatewaySpec, api_key: Callable[[], str | None], *, connections_max: int) -> None:
        self.name = spec.name
        self.key_ttl_seconds = float(spec.key_ttl_seconds)
        self._url = spec.url.rstrip("/")
        self._api_key = api_key
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections_max),
            timeout=aiohttp.ClientTimeout(total=spec.timeout_seconds, sock_connect=_CONNECT_SECONDS),
        )
        rate = spec.requests_per_second_max
        # A tenth of a second at a time: a limiter of whole seconds would send each second's requests as one burst.
        self._limiter = None if rate is None else AsyncLimiter(max(1.0, rate / 10), max(0.1, 1 / rate))
        self._open_at = 0.0

    async def charge(self, request: ChargeRequest) -> Outcome:
        """See `PaymentGateway`."""
        body = {
            "amount": request.amount,
            "currency": request.currency,
            "payment_method": request.payment_method,
            "reference": request.reference,
        }
        await self._turn()
        with telemetry.GATEWAY_SECONDS.labels("charge").time():
            try:
                async with self._session.post(f"{self._url}/v1/charges", json=body, headers=self._headers(request.key)) as answer:
                    return self._outcome(answer.status, answer.headers, await _document(answer))
            except aiohttp.ClientConnectorError as error:
                return NotSent(reason=f"not reached: {type(error).__name__}")
            except (aiohttp.ClientError, TimeoutError) as error:
                return Unknown(reason=f"no answer: {type(error).__name__}")

    async def find(self, reference: str) -> Found:
        """See `PaymentGateway`."""
        await self._turn()
        with telemetry.GATEWAY_SECONDS.labels("find").time():
            try:
                async with self._session.get(
                    f"{self._url}/v1/charges", params={"reference": reference}, headers=self._headers(None)
                ) as answer:
                    document = await _document(answer)
                    if answer.status != 200:  # noqa: PLR2004
                        self._slow_down(answer.headers)
                        return Unknown(reason=f"look-up answered {answer.status}")
                    return _found(document.get("data"))
            except (aiohttp.ClientError, TimeoutError) as error:
                return Unknown(reason=f"look-up: {type(error).__name__}")

    async def close(self) -> None:
        """See `PaymentGateway`."""
        await self._session.close()

    async def _turn(self) -> None:
        """Wait until the provider may be asked: its Retry-After first, then our rate."""
        wait = self._open_at - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        if self._limiter is not None:
            await self._limiter.acquire()

    def _headers(self, key: str | None) -> dict[str, str]:
        headers = {} if key is None else {"Idempotency-Key": key}
        api_key = self._api_key()
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        return headers

    def _outcome(self, status: int, headers: Mapping[str, str], document: Mapping[str, Any]) -> Outcome:
        match status:
            case 200 | 402:
                charge = document if status == 200 else document.get("charge")  # noqa: PLR2004
                outcome = _of_charge(charge, document.get("error"))
                return outcome or Unknown(reason=f"answer {status} was not understood")
            case 409:
                return Unknown(reason="in flight", retry_after_seconds=_retry_after(headers) or 1.0)
            case 429:
                return NotSent(reason="rate limited", retry_after_seconds=self._slow_down(headers))
            case 401 | 403:
                _log.error("gateway_refuses_our_key", status=status)
                self._open_at = time.monotonic() + _REFUSED_SECONDS
                return NotSent(reason=f"our key was refused ({status})")
            case 400 | 404 | 422:
                return self._refused(document)
            case _:
                return Unknown(reason=f"answered {status}")

    def _refused(self, document: Mapping[str, Any]) -> Outcome:
        """The provider found fault with the request itself. Unless it is the payment method, a person must look: the fault may
        be ours, and no customer is suspended for it.
        """
        error = document.get("error")
        code = _code(error.get("code") or "invalid_request") if isinstance(error, dict) else "invalid_request"
        if code == "resource_missing":
            return Declined(decline_class=classify(code, None), code=code)
        return Unresolvable(reason=f"refused: {code}")

    def _slow_down(self, headers: Mapping[str, str]) -> float | None:
        seconds = _retry_after(headers)
        if seconds is not None:
            self._open_at = max(self._open_at, time.monotonic() + seconds)
        return seconds


async def _document(answer: aiohttp.ClientResponse) -> Mapping[str, Any]:
    """The answer's JSON object; empty where it is something else (an error page of a proxy)."""
    try:
        document = await answer.json(content_type=None)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _of_charge(charge: object, error: object = None) -> Succeeded | Declined | ActionRequired | Pending | None:
    if not isinstance(charge, dict) or not isinstance(charge.get("id"), str):
        return None
    ref: str = charge["id"]
    match charge.get("status"):
        case "succeeded":
            return Succeeded(provider_ref=ref)
        case "pending":
            return Pending(provider_ref=ref, next_check_seconds=charge.get("next_check_seconds"))
        case "requires_action":
            return ActionRequired(provider_ref=ref)
        case "failed":
            reason = error if isinstance(error, dict) else charge.get("failure") or {}
            code = _code(reason.get("decline_code") or reason.get("code") or "generic_decline")
            return Declined(decline_class=classify(code, reason.get("advice_code")), code=code, provider_ref=ref)
        case _:
            return None


def _found(charges: object) -> Found:
    if not isinstance(charges, list):
        return Unknown(reason="look-up was not understood")
    outcomes = [_of_charge(charge) for charge in charges]
    if not outcomes:
        return NotFound()
    for wanted in (Succeeded, Pending, ActionRequired, Declined):
        for outcome in outcomes:
            if isinstance(outcome, wanted):
                return outcome
    return Unknown(reason="look-up was not understood")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header; its form as a date is not used by payment providers."""
    try:
        return min(_RETRY_AFTER_SECONDS_MAX, max(0.0, float(headers["Retry-After"])))
    except (KeyError, ValueError):
        return None


def _code(text: object) -> str:
    """A provider's code as we keep it: printable ASCII, bounded."""
    return "".join(c for c in str(text) if c.isascii() and c.isprintable())[:_CODE_LENGTH_MAX] or "unknown"
