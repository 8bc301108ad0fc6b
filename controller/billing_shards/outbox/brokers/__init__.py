"""The port to a message broker, and the adapter that a spec asks for.

An adapter never reconnects by itself, and keeps nothing to be sent later: what was not confirmed is read from the outbox again,
and a message out of a client's own buffer would come late and out of order.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from billing_shards.errors import BrokerUnavailable
from billing_shards.outbox.model import Message
from billing_shards.settings import BrokerSpec, Credentials
from billing_shards.shards.shardset import Secrets

_TLS_SCHEMES = frozenset({"tls", "amqps"})


class Broker(Protocol):
    """A connection to a broker."""

    async def publish(self, message: Message) -> None:
        """Return once the broker has confirmed that it has the message safely.

        Raises `EventRefused` where it surely has not and will not, `BrokerUnavailable` where it may or may not: then this
        connection is of no more use.
        """

    async def close(self) -> None:
        """Give the connection up. Nothing that was not confirmed is sent after it."""


Connect: TypeAlias = Callable[[], Awaitable[Broker]]
"""Opens a connection. Raises `BrokerUnavailable`, or `InvalidInput` where a Secret is missing."""


def connector(spec: BrokerSpec, secrets: Secrets, *, retention_seconds: int) -> Connect:
    """How to reach the spec's broker. Secrets are read at every connection, so that a changed one is taken."""
    # Each client is imported only where it is used: they are large.
    if spec.type == "nats":
        from billing_shards.outbox.brokers.nats import connect as connect_nats  # noqa: PLC0415

        return partial(connect_nats, spec, secrets, retention_seconds=retention_seconds)
    from billing_shards.outbox.brokers.rabbitmq import connect as connect_rabbitmq  # noqa: PLC0415

    return partial(connect_rabbitmq, spec, secrets)


def credentials(spec: BrokerSpec, secrets: Secrets) -> Credentials | None:
    """User and password, where the spec names a Secret. Raises `InvalidInput`."""
    if spec.credentials_secret is None:
        return None
    name = spec.credentials_secret.name
    return Credentials(username=secrets.value(name, "username"), password=secrets.value(name, "password"))


def tls_context(spec: BrokerSpec, secrets: Secrets) -> ssl.SSLContext | None:
    """A context that checks chain and host name, where the URL asks for TLS. Raises `InvalidInput`, `BrokerUnavailable`."""
    if urlsplit(spec.url).scheme not in _TLS_SCHEMES:
        return None
    if spec.ca_secret is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cadata=secrets.value(spec.ca_secret.name, "ca.crt"))
    except (ssl.SSLError, ValueError) as error:
        raise BrokerUnavailable(f"secret {spec.ca_secret.name}: ca.crt is no certificate in PEM") from error
