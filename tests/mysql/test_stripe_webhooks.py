"""What Stripe tells us by itself, from its own sender through our door onto the right shard."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from billing_shards.payments.model import ChargeRequest, Succeeded
from billing_shards.payments.providers import Providers
from billing_shards.payments.stripe import StripeGateway
from billing_shards.receiver import Door, Receiver
from billing_shards.settings import GatewaySpec
from hack.fake_gateway import FakeGateway
from tests.mysql.shard_set import ShardSet

SECRET = "whsec_7f3a"
SHARD = 3
REFERENCE = f"{SHARD}/17/1"
PATIENCE_SECONDS = 30.0


def test_a_dispute_that_does_not_name_us_reaches_the_shard_of_its_charge(shard_set: ShardSet, tmp_path: Path) -> None:
    """A dispute carries the intent's name and not our reference. While Stripe cannot be asked for it, nothing is stored, and the
    event is sent again.
    """
    with FakeGateway.start(tmp_path, webhook_secrets=[SECRET], webhook_retry_seconds=0.1) as fake:
        asyncio.run(_told(shard_set, fake))
    query = "SELECT kind, reference, amount, currency, code FROM webhook WHERE shard_id = %(shard)s ORDER BY kind"
    assert [tuple(row) for row in shard_set.rows(SHARD, query)] == [
        ("charge.reversed", REFERENCE, 990, "USD", "insufficient_funds"),
        ("charge.succeeded", REFERENCE, 990, "USD", None),
    ]
    assert shard_set.count("webhook") == 2


async def _told(shard_set: ShardSet, fake: FakeGateway) -> None:
    spec = GatewaySpec(type="stripe", name="cards", url=fake.url)
    providers = Providers([StripeGateway(spec, lambda: "sk_test", connections_max=5)])
    door = Door(secrets=lambda: [SECRET.encode()], tolerance_seconds=300)
    receiver = Receiver(shard_set.router, providers, {"cards": door}, shard_set.spec.shard_count)
    try:
        async with receiver.serve(0) as port:
            await asyncio.to_thread(fake.configure, webhook_url=f"http://127.0.0.1:{port}/webhooks/cards")
            charged = await providers.get("cards").charge(
                ChargeRequest(key="k", amount=990, currency="USD", payment_method="cus_1/pm_card", reference=REFERENCE)
            )
            assert isinstance(charged, Succeeded)
            await _until(fake, told=1, waiting=0)
            await asyncio.to_thread(fake.configure, api_key="sk_another")
            await asyncio.to_thread(fake.reverse, charged.provider_ref, "insufficient_funds")
            with pytest.raises(TimeoutError):
                await _until(fake, told=2, waiting=0, seconds=1)
            assert shard_set.count("webhook") == 1
            await asyncio.to_thread(fake.configure, api_key=None)
            await _until(fake, told=2, waiting=0)
    finally:
        await providers.close()


async def _until(fake: FakeGateway, *, told: int, waiting: int, seconds: float = PATIENCE_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while (await asyncio.to_thread(fake.summary))["webhooks"] != {"told": told, "waiting": waiting}:
            await asyncio.sleep(0.1)
