"""The payment providers of a shard set, by name."""

from __future__ import annotations

from collections.abc import Iterable

from billing_shards.payments.gateway import PaymentGateway


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

    async def close(self) -> None:
        """Close the connections of all."""
        for gateway in self._by_name.values():
            await gateway.close()
