"""Real MySQL servers for tests, benchmarks and development: in Docker where it works, otherwise in a chroot."""

from hack.mysql.server import Connection, MySQLServer
from hack.mysql.tls import Authority, client_context, wrong_ca

__all__ = ["Authority", "Connection", "MySQLServer", "client_context", "wrong_ca"]
