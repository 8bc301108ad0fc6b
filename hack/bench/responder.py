"""A provider that is no bottleneck: takes every charge after a time, or never answers. It keeps keys, and counts what came twice.

`hack/fake_gateway` keeps each charge on disk and takes 0.3 ms of a core for it; on two cores, which claimer and MySQL share with
it, that is much of what is measured. This one parses only what aiohttp's client sends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hack.errors import ToolError

_ROOT = Path(__file__).resolve().parents[2]
_BACKLOG = 4096


class Responder(asyncio.Protocol):
    """One connection. `delay` in seconds; None: never answer."""

    def __init__(self, delay: float | None, keys: Counter[bytes]) -> None:
        self._delay = delay
        self._keys = keys
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(headers.get(b"content-length", 0)):
            return
        self._received = b""  # the client sends one request at a time
        self._keys[headers[b"idempotency-key"]] += 1
        if self._delay is not None:
            asyncio.get_running_loop().call_later(self._delay, self._answer, json.loads(body))

    def _answer(self, charge: dict[str, Any]) -> None:
        charge |= {"id": "ch_" + charge["reference"], "status": "succeeded"}
        content = json.dumps(charge).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(head + content)


async def _serve(delay: float | None) -> None:
    keys: Counter[bytes] = Counter()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    server = await loop.create_server(lambda: Responder(delay, keys), "127.0.0.1", 0, backlog=_BACKLOG)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    gc.freeze()
    await ended.wait()
    print(json.dumps({"charges": len(keys), "repeated": keys.total() - len(keys)}), flush=True)


class Running:
    """A responder in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{self._line()['port']}"

    def counts(self) -> dict[str, int]:
        """End it; `charges` (keys it was sent) and `repeated` (requests with a key it knew)."""
        if self._process.stdin is None:
            raise ToolError("the responder has no standard input")
        self._process.stdin.close()
        return self._line()

    def _line(self) -> dict[str, int]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise ToolError("the responder ended")
        document: dict[str, int] = json.loads(line)
        return document


@contextmanager
def responder(delay_ms: float | None) -> Iterator[Running]:
    """A provider that answers after `delay_ms`, or never where that is None."""
    words = [sys.executable, "-m", "hack.bench.responder", "never" if delay_ms is None else str(delay_ms)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=_ROOT, text=True, stdin=pipe, stdout=pipe) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(_serve(None if sys.argv[1] == "never" else float(sys.argv[1]) / 1000))
