"""Who sent a webhook: the signature over its raw body. Pure; the clock is given.

The header is `t=<unix seconds>,v1=<hex>[,v1=<hex>…]`, each `v1` an HMAC-SHA256 over `<t>.<raw body>`: the form of
docs/gateway-protocol.md, and Stripe's (docs.stripe.com/webhooks/signature). While a secret is being replaced the sender may sign
with two, and we may accept two: any of our secrets may match any of its signatures.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from billing_shards.errors import WebhookRefused

_HEADER_LENGTH_MAX = 4096
_SIGNATURES_MAX = 16
_DIGITS_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signed:
    time: str
    """As it was signed: digits, which the signature covers."""
    signatures: Sequence[bytes]


def verify(header: str | None, body: bytes, secrets: Sequence[bytes], *, now: float, tolerance_seconds: float) -> None:
    """Raise `WebhookRefused` unless one of `secrets` signed this body, and did so within the tolerance of `now`.

    `now`: seconds since 1970 at the receipt, not later: a webhook that waits here does not grow old. A time ahead of ours is
    refused like one behind: it would keep a recorded request good for longer. Every secret is compared with every signature in
    constant time, whether an earlier pair matched or not.
    """
    signed = _parse(header)
    if not secrets:
        raise WebhookRefused("no secret is set for this provider")
    matched = False
    for secret in secrets:
        wanted = hmac.new(secret, signed.time.encode() + b"." + body, hashlib.sha256).digest()
        for signature in signed.signatures:
            matched |= hmac.compare_digest(wanted, signature)
    if not matched:
        raise WebhookRefused("the signature is not ours")
    age = now - int(signed.time)
    if abs(age) > tolerance_seconds:
        raise WebhookRefused(f"it was signed {abs(age):.0f} s {'ago' if age > 0 else 'ahead of our clock'}")


def secrets_of(text: str) -> list[bytes]:
    """The secrets of a Secret's text: one a line, without spaces around it; empty lines are none."""
    return [line.strip().encode() for line in text.splitlines() if line.strip()]


def _parse(header: str | None) -> _Signed:
    if header is None:
        raise WebhookRefused("it carries no signature")
    if len(header) > _HEADER_LENGTH_MAX:
        raise WebhookRefused("its signature header is too long")
    times: list[str] = []
    signatures: list[bytes] = []
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name == "t":
            times.append(value)
        elif name == "v1":
            signatures.append(_unhex(value))
    if len(times) != 1 or not (times[0].isascii() and times[0].isdigit() and len(times[0]) <= _DIGITS_MAX):
        raise WebhookRefused("its signature header names no time")
    if not 0 < len(signatures) <= _SIGNATURES_MAX:
        raise WebhookRefused("its signature header holds no signature, or too many")
    return _Signed(time=times[0], signatures=signatures)


def _unhex(text: str) -> bytes:
    """What is no hexadecimal matches nothing: it may be of a scheme that we do not know."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
