"""Receiving a webhook: verify, read, store. Nothing is acted upon, and nothing answered, before it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from billing_shards.errors import InvalidInput
from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.model import WebhookEvent
from billing_shards.payments.signature import verify
from billing_shards.payments.webhooks import store
from billing_shards.payments.webhooks.model import Reference, parse_reference
from billing_shards.shards.model import shard_of
from billing_shards.shards.transactions import ShardRouter

_ACTED_UPON = frozenset({"charge.succeeded", "charge.failed", "charge.reversed", "refund.succeeded", "refund.failed"})
_KEPT_WHOLE = frozenset({"charge.failed", "charge.reversed", "refund.failed"})
# As the columns have them.
_REF_LENGTH = 128
_REFERENCE_LENGTH = 64
_CURRENCY_LENGTH = 3
_CODE_LENGTH = 64
_AMOUNT_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A webhook that is proved to be its provider's."""

    event: WebhookEvent
    body: bytes
    shard: int
    result: str | None
    """What is known to come of it already: nothing to apply. None: to be applied."""


def accept(
    gateway: PaymentGateway,
    body: bytes,
    header: str | None,
    secrets: Sequence[bytes],
    *,
    now: float,
    tolerance_seconds: float,
    shard_count: int,
) -> Received:
    """Verify a webhook and read it. `now`: seconds since 1970 when it was received.

    Raises `WebhookRefused` where it is not proved to be the provider's, `InvalidInput` where it is no event.
    """
    verify(header, body, secrets, now=now, tolerance_seconds=tolerance_seconds)
    return received(gateway.name, gateway.parse_webhook(body), body, shard_count)


def received(provider: str, told: WebhookEvent, body: bytes, shard_count: int) -> Received:
    """An event that is proved to be its provider's, as it is stored. Raises `InvalidInput` where it cannot be."""
    event = _storable(told)
    reference = parse_reference(event.reference, shard_count)
    result = None
    if event.kind not in _ACTED_UPON:
        result = "ignored"
    elif reference is None:
        result = "no_reference"
    return Received(event=event, body=body, shard=_shard(provider, event, reference, shard_count), result=result)


def keep(router: ShardRouter, gateway: str, received: Received) -> None:
    """Store it on its shard; what is there already stays as it is. Raises what `ShardRouter.run` raises."""
    event = received.event
    body = received.body if event.kind in _KEPT_WHOLE else None
    # Run twice it does no harm: the second one finds it there.
    router.run(
        received.shard,
        lambda transaction: store.insert(transaction, gateway, event, body=body, result=received.result),
        committed=lambda _: None,
    )


def _shard(provider: str, event: WebhookEvent, reference: Reference | None, shard_count: int) -> int:
    """The shard of the attempt or the refund; what names none of ours is spread over all."""
    return shard_of(f"{provider}/{event.id}", shard_count) if reference is None else reference.shard


def _storable(event: WebhookEvent) -> WebhookEvent:
    """The event as the table holds it. What does not fit says nothing to us; without its id it would be another each time."""
    if not _fits(event.id, _REF_LENGTH):
        raise InvalidInput("webhook", "its id is not 1 to 128 printable ASCII characters")
    return replace(
        event,
        reference=_kept(event.reference, _REFERENCE_LENGTH),
        provider_ref=_kept(event.provider_ref, _REF_LENGTH),
        currency=_kept(event.currency, _CURRENCY_LENGTH),
        code=_kept(event.code, _CODE_LENGTH),
        amount=event.amount if event.amount is not None and 0 < event.amount <= _AMOUNT_MAX else None,
    )


def _kept(text: str | None, length_max: int) -> str | None:
    return text if text is not None and _fits(text, length_max) else None


def _fits(text: str, length_max: int) -> bool:
    return text.isascii() and text.isprintable() and 0 < len(text) <= length_max
