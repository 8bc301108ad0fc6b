"""What every process has: probes, the watch on its ConfigMap, waiting for databases, exit codes, and logs without loss."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
from prometheus_client import Counter, Gauge, Histogram
from structlog.testing import capture_logs

from billing_shards import process, telemetry
from billing_shards.errors import BillingShardsError, DatabaseUnavailable, InvalidInput
from billing_shards.process import Probes, until_usable, watch_paused
from billing_shards.settings import ProcessSettings
from billing_shards.shards.transactions import ShardRouter

SENTINEL = "sentinel-7f3a"
PATIENCE_SECONDS = 60.0

T = TypeVar("T")


async def within_patience(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


# Probes


def probing(body: Callable[[Probes, Callable[[str], Awaitable[tuple[int, str]]]], Awaitable[T]]) -> T:
    """Run `body` with probes that are served, and a function that asks one of them."""

    async def main() -> T:
        probes = Probes()
        async with probes.serve(0) as port, aiohttp.ClientSession() as session:

            async def ask(path: str) -> tuple[int, str]:
                async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                    return answer.status, await answer.text()

            return await body(probes, ask)

    return asyncio.run(main())


def test_a_process_is_alive_before_it_is_ready() -> None:
    async def body(probes: Probes, ask: Callable[[str], Awaitable[tuple[int, str]]]) -> None:
        assert await ask("/healthz") == (200, "ok\n")
        assert await ask("/readyz") == (503, "not ready\n")
        probes.ready = True
        assert await ask("/readyz") == (200, "ok\n")
        probes.ready = False
        assert (await ask("/readyz"))[0] == 503

    probing(body)


def test_a_loop_that_does_not_turn_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(_: Probes, ask: Callable[[str], Awaitable[tuple[int, str]]]) -> None:
        monkeypatch.setattr(process, "_BEAT_SECONDS_MAX", -1)
        status, text = await ask("/healthz")
        assert status == 503
        assert text.startswith("stuck ")

    probing(body)


def collectors() -> list[Counter | Gauge | Histogram]:
    return [value for value in vars(telemetry).values() if isinstance(value, Counter | Gauge | Histogram)]


def test_every_metric_is_served_and_named_in_base_units() -> None:
    async def body(_: Probes, ask: Callable[[str], Awaitable[tuple[int, str]]]) -> str:
        return (await ask("/metrics"))[1]

    shown = probing(body)
    assert len(collectors()) > 10
    for collector in collectors():
        (family,) = collector.describe()
        kind = {"counter": "_total", "histogram": "_seconds", "gauge": ""}[family.type]
        name = family.name + ("_total" if family.type == "counter" else "")
        assert name.startswith("billing_shards_")
        assert name.endswith(kind)
        assert family.documentation
        assert f"# TYPE {name} {family.type}" in shown


def test_a_port_that_is_taken_is_an_error() -> None:
    async def body(_: Probes, __: Callable[[str], Awaitable[tuple[int, str]]]) -> None:
        async with Probes().serve(0) as port:
            with pytest.raises(OSError, match="ddress already in use"):
                async with Probes().serve(port):
                    pass

    probing(body)


# The watch on the ConfigMap


def mount(folder: Path, number: int, content: str) -> None:
    """Change the file as the kubelet does: a new folder, and a link that is swapped."""
    data = folder / f"..{number}"
    data.mkdir()
    (data / "shardset.json").write_text(content)
    link = folder / "..next"
    link.symlink_to(data.name)
    link.rename(folder / "..data")
    if not (folder / "shardset.json").is_symlink():
        (folder / "shardset.json").symlink_to("..data/shardset.json")


def config(*, paused: bool) -> str:
    database = {"name": "a", "host": "db", "credentialsSecret": {"name": "app"}, "schemaSecret": {"name": "owner"}}
    return json.dumps({"name": "main", "spec": {"databases": [database], "gateway": {"url": "http://gateway"}, "paused": paused}})


def _tells(logs: Sequence[Mapping[str, Any]], event: str) -> bool:
    return any(entry["event"] == event for entry in logs)


def test_paused_is_followed_and_a_config_that_cannot_be_read_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_WATCH_SECONDS", 0.01)
    adopted: list[bool] = []

    async def main() -> None:
        mount(tmp_path, 1, config(paused=False))
        watch = asyncio.create_task(watch_paused(ProcessSettings(config_dir=tmp_path), adopted.append))
        await within_patience(lambda: adopted == [False])
        mount(tmp_path, 2, config(paused=True))
        await within_patience(lambda: adopted == [False, True])
        for number, broken in enumerate(["", "[]", "{}", '{"name": "main", "spec": {}}']):
            with capture_logs() as logs:
                mount(tmp_path, 3 + number, broken)
                await within_patience(partial(_tells, logs, "config_unreadable"))
        assert adopted == [False, True]
        mount(tmp_path, 9, config(paused=False))
        await within_patience(lambda: adopted == [False, True, False])
        watch.cancel()

    asyncio.run(main())


# Waiting for databases


class Opened(ShardRouter):
    """A router over no databases that knows whether it was closed."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    "error", [DatabaseUnavailable("eu-1", "not reachable"), InvalidInput("secret app", "key password cannot be read")]
)
def test_what_a_person_can_mend_is_waited_for(error: BillingShardsError) -> None:
    results: list[BillingShardsError | Opened] = [error, made := Opened()]

    def open_router() -> ShardRouter:
        result = results.pop(0)
        if isinstance(result, BillingShardsError):
            raise result
        return result

    with capture_logs() as logs:
        assert asyncio.run(until_usable(open_router, asyncio.Event())) is made
    assert [(entry["event"], entry["error"]) for entry in logs] == [("not_usable_yet", str(error))]


def test_a_fault_of_our_own_is_not_waited_for() -> None:
    def open_router() -> ShardRouter:
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        asyncio.run(until_usable(open_router, asyncio.Event()))


def test_waiting_ends_when_told_to_stop() -> None:
    async def main() -> ShardRouter | None:
        stop = asyncio.Event()

        def open_router() -> ShardRouter:
            loop.call_soon_threadsafe(stop.set)
            raise DatabaseUnavailable("eu-1", "not reachable")

        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(until_usable(open_router, stop), PATIENCE_SECONDS)

    assert asyncio.run(main()) is None


def test_a_router_that_opens_after_the_stop_is_closed_and_not_used() -> None:
    """Otherwise a SIGTERM that arrives while a database is being opened is lost, and the pod is killed after its grace."""
    made = Opened()

    async def main() -> ShardRouter | None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def open_router() -> ShardRouter:
            asyncio.run_coroutine_threadsafe(set_it(), loop).result(PATIENCE_SECONDS)
            return made

        async def set_it() -> None:
            stop.set()

        return await asyncio.wait_for(until_usable(open_router, stop), PATIENCE_SECONDS)

    assert asyncio.run(main()) is None
    assert made.closed


# Exit codes and logs, in a process of its own: both are set up once for all of it

_SCRIPT = f"""
import json, logging
from billing_shards.errors import DatabaseUnavailable
from billing_shards.process import run_process
from billing_shards.settings import ProcessSettings

async def fine(settings):
    logging.getLogger("library").info("chatter")

async def refused(settings):
    raise DatabaseUnavailable("eu-1", "not reachable")

async def crashes(settings):
    connect("{SENTINEL}")

def connect(password):
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise RuntimeError("outer") from error

async def library_fails(settings):
    try:
        connect("{SENTINEL}")
    except RuntimeError:
        logging.getLogger("library").exception("request %s failed", 7)
    logging.getLogger("library").warning("odd: %r", object)

settings = ProcessSettings(metrics_port=0)
print(json.dumps([run_process(settings, work) for work in (fine, refused, crashes, library_fails)]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    codes: list[int]
    stderr: str
    lines: list[dict[str, Any]]

    def line(self, event: str) -> dict[str, Any]:
        (found,) = [line for line in self.lines if line["event"].startswith(event)]
        return found


@pytest.fixture(scope="module")
def ended() -> Ended:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    return Ended(codes=json.loads(done.stdout), stderr=done.stderr, lines=[json.loads(line) for line in done.stderr.splitlines()])


def test_a_process_exits_by_how_it_ended(ended: Ended) -> None:
    assert ended.codes == [0, 1, 1, 0]


def test_every_line_is_json_with_event_level_and_time(ended: Ended) -> None:
    assert [line["event"] for line in ended.lines] == [
        "process_failed",
        "process_crashed",
        "request 7 failed",
        "odd: <class 'object'>",
    ]
    assert [line["level"] for line in ended.lines] == ["error", "error", "error", "warning"]
    assert all(line["timestamp"].endswith("Z") for line in ended.lines)


def test_an_expected_error_is_its_message_without_a_traceback(ended: Ended) -> None:
    line = ended.line("process_failed")
    assert line["error"] == "database eu-1: not reachable"
    assert "exception" not in line


@pytest.mark.parametrize("event", ["process_crashed", "request 7 failed"])
def test_a_traceback_is_part_of_its_line_with_its_cause(ended: Ended, event: str) -> None:
    """Our own crash, and what a library logs by the standard library."""
    outer, inner = ended.line(event)["exception"]
    assert (outer["exc_type"], outer["exc_value"]) == ("RuntimeError", "outer")
    assert (inner["exc_type"], inner["is_cause"]) == ("KeyError", True)
    assert "connect" in [frame["name"] for frame in outer["frames"]]


def test_a_traceback_holds_no_variables(ended: Ended) -> None:
    assert SENTINEL not in ended.stderr


def test_a_traceback_for_the_terminal_holds_no_variables() -> None:
    script = (
        "import structlog; from billing_shards import telemetry; telemetry.configure_logs(as_json=False)\n"
        f"def connect(password): raise RuntimeError('outer')\ntry: connect('{SENTINEL}'[:])\n"
        "except RuntimeError: structlog.get_logger().exception('crashed')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert "RuntimeError: outer" in done.stderr
    assert SENTINEL not in done.stderr
