"""Real message brokers for tests and development: a NATS server built from its Go module, RabbitMQ from Debian's packages."""

from hack.brokers.nats import NatsServer
from hack.brokers.rabbitmq import RabbitServer
from hack.brokers.server import BrokerServer

__all__ = ["BrokerServer", "NatsServer", "RabbitServer"]
