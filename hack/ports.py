"""Ports for servers that are killed and started again on the port they had."""

import random
import socket
from pathlib import Path

from hack.errors import ToolError

# Not the module's own generator: tests seed that one alike in every process, which would then all try the same port.
_random = random.SystemRandom()


def free_port(bind: str = "127.0.0.1") -> int:
    """A free port below the range that the kernel gives to outgoing connections.

    A server keeps its port while it is down: a port of that range could then go to any client of the machine, even to
    the one that is trying to reconnect (a connection to itself).
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        port = _random.randrange(10_000, lowest) if lowest > 10_100 else 0
        with socket.socket() as probe:
            try:
                probe.bind((bind, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ToolError(f"no free port on {bind} in 100 tries")
