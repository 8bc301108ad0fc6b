"""What adapters over HTTP have in common: a session with three time-outs, and what a broken exchange tells of the money.

What may have reached the provider is `Unknown`; only what surely did not is `NotSent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import TypeAlias

import aiohttp

from billing_shards.errors import InvalidInput
from billing_shards.payments.model import Cause, NotSent, Unknown
from billing_shards.settings import GatewaySpec

ApiKey: TypeAlias = Callable[[], str | None]
"""Asked at each request, so that a replaced Secret is used at once. Raises `InvalidInput` where it cannot be read."""

RETRY_AFTER_SECONDS_MAX = 300.0
IN_FLIGHT_SECONDS = 1.0
_CODE_LENGTH_MAX = 64
_REF_LENGTH_MAX = 128  # as the column has it
_SECONDS_MAX = 31_536_000
_AMOUNT_MAX = 2**63 - 1
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)

# Whatever may go wrong in an exchange. `OSError` takes in time-outs, and what comes bare where a connection breaks within TLS.
BROKEN = (aiohttp.ClientError, OSError)


def session(spec: GatewaySpec, connections_max: int) -> aiohttp.ClientSession:
    """A session of the running event loop, which keeps no cookies: two requests have nothing to do with each other."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections_max),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(
            total=spec.timeout_seconds,
            connect=spec.connect_timeout_seconds,
            sock_connect=spec.connect_timeout_seconds,
            sock_read=spec.read_timeout_seconds,
        ),
    )


def broken(error: BaseException) -> NotSent | Unknown:
    """What an exchange that broke (`BROKEN`) leaves us knowing."""
    if isinstance(error, _NOT_CONNECTED):
        return NotSent(reason=f"not reached: {type(error).__name__}")
    return Unknown(reason=f"no answer: {type(error).__name__}")


def usable(api_key: str | None) -> str | None:
    """The API key, if a header can carry it. Raises `InvalidInput`, which does not repeat it."""
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise InvalidInput("apiKey", "holds what a header cannot carry")
    return api_key


def no_key(reason: str) -> NotSent:
    """Nothing is taken by this provider until a person has mended our key."""
    return NotSent(reason=reason, cause=Cause.CONFIG)


def turned_away(status: int, headers: Mapping[str, str]) -> NotSent | None:
    """The answers of a provider that did not look at the request; None for all others."""
    if status == 429:  # noqa: PLR2004
        return NotSent(reason="rate limited", retry_after_seconds=retry_after(headers), cause=Cause.RATE_LIMITED)
    if status in {401, 403}:
        return no_key(f"our key was refused ({status})")
    return None


def in_flight(headers: Mapping[str, str]) -> Unknown:
    """A request with this key is being worked on."""
    seconds = retry_after(headers)
    return Unknown(
        reason="in flight", retry_after_seconds=IN_FLIGHT_SECONDS if seconds is None else seconds, cause=Cause.IN_FLIGHT
    )


def failed(what: str, headers: Mapping[str, str]) -> Unknown:
    """The provider, or something before it, answered that it failed."""
    return Unknown(reason=what, retry_after_seconds=retry_after(headers), cause=Cause.FAILED)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header, at most `RETRY_AFTER_SECONDS_MAX`; None where there is none that can be read."""
    text = headers.get("Retry-After", "")
    wait: float | None
    try:
        wait = float(text)
    except ValueError:
        wait = _until(text, headers.get("Date", ""))
    return None if wait is None else min(RETRY_AFTER_SECONDS_MAX, max(0.0, wait))  # NaN counts as 0


def _until(date: str, sent: str) -> float | None:
    """Seconds to a date, from the one at which the answer was sent: a provider's clock need not be ours."""
    try:
        return (parsedate_to_datetime(date) - parsedate_to_datetime(sent)).total_seconds()
    except (TypeError, ValueError, OverflowError):  # TypeError: one of them names no time zone
        return None


def seconds(value: object) -> float | None:
    """A length of time from a document; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _SECONDS_MAX else None


def code(text: object) -> str:
    """A provider's code as we keep it: printable ASCII, bounded."""
    return "".join(c for c in str(text) if c.isascii() and c.isprintable())[:_CODE_LENGTH_MAX] or "unknown"


def ref(value: object) -> str | None:
    """A provider's name for something, if it can be kept."""
    if not isinstance(value, str) or not (value.isascii() and value.isprintable() and 0 < len(value) <= _REF_LENGTH_MAX):
        return None
    return value


def amount(value: object) -> int | None:
    """Minor units from a document; None where it is no amount of money."""
    return value if type(value) is int and 0 < value <= _AMOUNT_MAX else None
