"""The adapter for a provider that speaks the protocol of docs/gateway-protocol.md: JSON over HTTP.

What may have reached the provider is `Unknown`; only what surely did not is `NotSent`. A 500 is unknown: the provider may have
taken the money before it failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import aiohttp
import structlog
from aiolimiter import AsyncLimiter

from billing_shards import telemetry
from billing_shards.errors import InvalidInput
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
_REF_LENGTH_MAX = 128  # as the column has it
_SECONDS_MAX = 31_536_000
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, whoever sent it."""

    status: int
    headers: Mapping[str, str]
    document: Mapping[str, Any]
    """Its JSON object; empty where it holds something else."""


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
        return await self._ask("charge", "POST", partial(_outcome, request.reference), key=request.key, json=body)

    async def find(self, reference: str) -> Found:
        """See `PaymentGateway`."""
        return await self._ask("find", "GET", partial(_found, reference), params={"reference": reference})

    async def close(self) -> None:
        """See `PaymentGateway`."""
        await self._session.close()

    async def _turn(self) -> None:
        """Wait until the provider may be asked: its Retry-After first, then our rate."""
        while (wait := self._open_at - time.monotonic()) > 0:  # noqa: ASYNC110 - a time, which may be put off meanwhile
            await asyncio.sleep(wait)
        if self._limiter is not None:
            await self._limiter.acquire()

    async def _ask(
        self, operation: str, method: str, read: Callable[[Answer], T], *, key: str | None = None, **content: Any
    ) -> T | NotSent | Unknown:
        """One request, and what `read` makes of its answer. Redirects are not followed: nobody else is told our key."""
        await self._turn()
        try:
            headers = self._headers(key)
        except InvalidInput as error:
            return self._no_key(str(error))
        with telemetry.GATEWAY_SECONDS.labels(operation).time():
            try:
                async with self._session.request(
                    method, f"{self._url}/v1/charges", headers=headers, allow_redirects=False, **content
                ) as response:
                    answer = Answer(status=response.status, headers=response.headers, document=await _document(response))
            except _NOT_CONNECTED as error:
                return NotSent(reason=f"not reached: {type(error).__name__}")
            except (aiohttp.ClientError, TimeoutError) as error:
                return Unknown(reason=f"no answer: {type(error).__name__}")
        return self._turned_away(answer) or read(answer)

    def _headers(self, key: str | None) -> dict[str, str]:
        headers = {} if key is None else {"Idempotency-Key": key}
        api_key = self._api_key()
        if api_key is not None:
            if not (api_key.isascii() and api_key.isprintable()):
                raise InvalidInput("apiKey", "holds what a header cannot carry")
            headers["Authorization"] = f"Bearer {api_key}"
        return headers

    def _turned_away(self, answer: Answer) -> NotSent | None:
        """The answers of a provider that did not look at the request."""
        seconds = _retry_after(answer.headers)
        if seconds is not None and answer.status in {429, 503}:
            self._open_at = max(self._open_at, time.monotonic() + seconds)
        if answer.status == 429:  # noqa: PLR2004
            return NotSent(reason="rate limited", retry_after_seconds=seconds)
        if answer.status in {401, 403}:
            return self._no_key(f"our key was refused ({answer.status})")
        return None

    def _no_key(self, reason: str) -> NotSent:
        _log.error("gateway_key_unusable", reason=reason)
        self._open_at = max(self._open_at, time.monotonic() + _REFUSED_SECONDS)
        return NotSent(reason=reason)


async def _document(response: aiohttp.ClientResponse) -> Mapping[str, Any]:
    """The answer's JSON object; empty where it is something else (an error page of a proxy)."""
    try:
        document = await response.json(content_type=None)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _outcome(reference: str, answer: Answer) -> Outcome:
    """What a POST's answer says. What does not look like the provider's own words says nothing about the charge."""
    match answer.status:
        case 200:
            return _of_charge(answer.document, reference) or Unknown(reason="answer 200 was not understood")
        case 402:
            declined = _of_charge(answer.document.get("charge"), reference, answer.document.get("error"))
            return declined or Unknown(reason="answer 402 was not understood")
        case 409:
            return Unknown(reason="in flight", retry_after_seconds=_retry_after(answer.headers) or 1.0)
        case 400 | 404 | 422:
            return _refused(answer)
        case _:
            return Unknown(reason=f"answered {answer.status}")


def _refused(answer: Answer) -> Outcome:
    """The provider found fault with the request itself. Unless it is the payment method, a person must look: the fault may
    be ours, and no customer is suspended for it.
    """
    error = answer.document.get("error")
    if not isinstance(error, dict):  # a proxy's page: the provider may never have seen the request
        return Unknown(reason=f"answered {answer.status}")
    code = _code(error.get("code") or "invalid_request")
    if code == "resource_missing":
        return Declined(decline_class=classify(code, None), code=code)
    return Unresolvable(reason=f"refused: {code}")


Known: TypeAlias = Succeeded | Declined | ActionRequired | Pending


def _of_charge(charge: object, reference: str, error: object = None) -> Known | None:
    """What a charge's document says; None where it is not understood, or is not the charge that was asked for."""
    if not isinstance(charge, dict) or charge.get("reference") != reference:
        return None
    ref = charge.get("id")
    if not isinstance(ref, str) or not (ref.isascii() and ref.isprintable() and 0 < len(ref) <= _REF_LENGTH_MAX):
        return None
    match charge.get("status"):
        case "succeeded":
            return Succeeded(provider_ref=ref)
        case "pending":
            return Pending(provider_ref=ref, next_check_seconds=_seconds(charge.get("next_check_seconds")))
        case "requires_action":
            return ActionRequired(provider_ref=ref)
        case "failed":
            return _declined(ref, error if isinstance(error, dict) else charge.get("failure"))
        case _:
            return None


def _declined(ref: str, failure: object) -> Declined:
    reason = failure if isinstance(failure, dict) else {}
    code = _code(reason.get("decline_code") or reason.get("code") or "generic_decline")
    advice = reason.get("advice_code")
    return Declined(decline_class=classify(code, advice if isinstance(advice, str) else None), code=code, provider_ref=ref)


def _found(reference: str, answer: Answer) -> Found:
    """What a look-up says. One charge that is not understood makes all uncertain, unless another one took the money."""
    if answer.status != 200:  # noqa: PLR2004
        return Unknown(reason=f"look-up answered {answer.status}")
    charges = answer.document.get("data")
    if not isinstance(charges, list):
        return Unknown(reason="look-up was not understood")
    outcomes = [_of_charge(charge, reference) for charge in charges]
    for wanted in (Succeeded, None, Pending, ActionRequired, Declined):
        for outcome in outcomes:
            if wanted is None and outcome is None:
                return Unknown(reason="look-up was not understood")
            if wanted is not None and isinstance(outcome, wanted):
                return outcome
    return NotFound()


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header; its form as a date is not used by payment providers."""
    try:
        return min(_RETRY_AFTER_SECONDS_MAX, max(0.0, float(headers["Retry-After"])))
    except (KeyError, ValueError):
        return None


def _seconds(value: object) -> float | None:
    """A length of time from a document; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _SECONDS_MAX else None


def _code(text: object) -> str:
    """A provider's code as we keep it: printable ASCII, bounded."""
    return "".join(c for c in str(text) if c.isascii() and c.isprintable())[:_CODE_LENGTH_MAX] or "unknown"
