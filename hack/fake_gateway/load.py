"""`python -m hack.fake_gateway.load`: how many charges a second the fake gateway makes, as one line of JSON.

The client writes prepared bytes to sockets and reads no more than it must, so that the server is what is measured.
"""

import argparse
import asyncio
import collections
import json
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from hack.fake_gateway.process import FakeGateway

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _request(run: str, number: int) -> bytes:
    body = {
        "amount": 1000 + number % 9000,
        "currency": ("USD", "EUR", "JPY", "KWD")[number % 4],
        "payment_method": "pm_card",
        "reference": f"{number % 256}/{run}-{number}/1",
        "metadata": {"service": "load"},
    }
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/charges HTTP/1.1\r\nHost: load\r\nIdempotency-Key: {run}-{number}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def _answer(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line[15:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    await reader.readexactly(int(length))
    return head[9:12].decode()


async def _worker(port: int, requests: "collections.deque[bytes]", answers: "collections.Counter[str]") -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while requests:
        writer.write(requests.popleft())
        answers[await _answer(reader)] += 1
    writer.close()
    await writer.wait_closed()


async def _drive(port: int, requests: "collections.deque[bytes]", workers: int) -> "collections.Counter[str]":
    answers: collections.Counter[str] = collections.Counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(_worker(port, requests, answers))
    return answers


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def measure(charges: int, in_flight: int, delay_ms: float) -> dict[str, Any]:
    """Starts a gateway of its own and charges it; the CPU time is the server's alone."""
    run = uuid.uuid4().hex[:8]
    requests = collections.deque(_request(run, number) for number in range(charges))
    with tempfile.TemporaryDirectory() as folder, FakeGateway.start(Path(folder), delay_ms=delay_ms) as gateway:
        cpu, start = _cpu_seconds(gateway.pid), time.perf_counter()
        answers = asyncio.run(_drive(gateway.port, requests, in_flight))
        seconds = time.perf_counter() - start
        cpu = _cpu_seconds(gateway.pid) - cpu
        made = gateway.summary()["charges"]["succeeded"]
    return {
        "charges": made,
        "answers": dict(answers),
        "in_flight": in_flight,
        "delay_ms": delay_ms,
        "seconds": round(seconds, 2),
        "charges_per_second": round(made / seconds),
        "server_cpu_seconds": round(cpu, 2),
        "charges_per_server_cpu_second": round(made / cpu),
    }


def main() -> int:
    """Returns 1 where a charge is missing."""
    parser = argparse.ArgumentParser(prog="fake_gateway.load", description=__doc__)
    parser.add_argument("--charges", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, default=200)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    result = measure(arguments.charges, arguments.in_flight, arguments.delay_ms)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if result["charges"] == arguments.charges else 1


if __name__ == "__main__":
    sys.exit(main())
