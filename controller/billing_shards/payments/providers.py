"""The payment providers of a shard set, by name."""

from __future__ import annotations

from collections.abc import Iterable

from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.guarded import GuardedGateway


class Providers:
    """Adapters of one event loop."""

    def __init__(self, gateways: Iterable[PaymentGateway]) -> None:
        self._by_name = {gateway.name: gateway for gateway in gateways}

    def named(self, name: str) -> PaymentGateway | None:
        """The provider of this name; None where the spec does not list it (any more)."""
        return self._by_name.get(name)

    def get(self, name: str) -> PaymentGateway:
        """The provider of this name, which is there. Raises `KeyError`."""
        return self._by_name[name]

    def held_back_seconds(self, name: str) -> float:
        """For how long this provider would be sent nothing, as of now: it is failing, or asked us to wait. 0 where it would."""
        gateway = self._by_name.get(name)
        return gateway.held_back_seconds if isinstance(gateway, GuardedGateway) else 0.0

    async def close(self) -> None:
        """Close the connections of all."""
        for gateway in self._by_name.values():
            await gateway.close()
