"""A server in a process of its own, for tests: start, configure, kill, restart on the same port, stop."""

import contextlib
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hack.errors import ToolError

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0


class FakeGateway:
    """One provider whose state lives in `workdir`; it stops when this process ends, however it ends."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir.resolve()
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @classmethod
    def start(cls, workdir: Path, **config: Any) -> Self:
        """Starts a server on a port that the operating system chooses; `config` as for `configure`.

        Raises ToolError with the end of its log where it does not come up.
        """
        gateway = cls(workdir)
        gateway._launch()
        if config:
            gateway.configure(**config)
        return gateway

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ToolError("the fake gateway is not running")
        return self._process.pid

    def configure(self, **fields: Any) -> dict[str, Any]:
        """Changes these fields and leaves the others; returns the whole configuration.

        Raises urllib.error.HTTPError (400) where a field is refused; nothing is changed then.
        """
        return self._call("PATCH", "/admin/config", fields)

    def summary(self) -> dict[str, Any]:
        return self._call("GET", "/admin/summary")

    def reset(self) -> None:
        """Forgets all charges, keys and counts; keeps the configuration."""
        self._call("POST", "/admin/reset")

    def advance(self, seconds: float) -> None:
        """Moves the provider's clock ahead: keys expire, pending charges settle, hanging requests go on."""
        self._call("POST", "/admin/clock", {"advance_seconds": seconds})

    def charges(self) -> Iterator[dict[str, Any]]:
        """All charges in the order of creation, streamed."""
        with urllib.request.urlopen(f"{self.url}/v1/charges/export", timeout=60) as lines:  # noqa: S310 - our own URL
            for line in lines:
                yield json.loads(line)

    def reverse(self, charge_id: str, code: str = "late_failure") -> dict[str, Any]:
        """The bank takes back a charge that had succeeded. Raises urllib.error.HTTPError where it had not."""
        return self._call("POST", f"/admin/charges/{charge_id}/reverse", {"code": code})

    def complete(self, charge_id: str, *, fails: bool = False) -> dict[str, Any]:
        """The customer does what a charge waited for, or fails. Raises urllib.error.HTTPError where it does not wait."""
        return self._call("POST", f"/admin/charges/{charge_id}/complete", {"fails": fails})

    def kill(self) -> None:
        """SIGKILL. Every charge that was answered, or whose answer was lost, is still there after `restart`."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL where that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def restart(self) -> None:
        """Starts again on the same port and state, killing what still runs."""
        self.kill()
        self._launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _launch(self) -> None:
        self._workdir.mkdir(parents=True, exist_ok=True)
        state, port = self._workdir / "fake-gateway.sqlite", str(self.port)
        command = [sys.executable, "-m", "hack.fake_gateway", "--port", port, "--state", str(state), "--stop-on-eof"]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.port = self._read_port(self._process)

    def _read_port(self, process: subprocess.Popen[str]) -> int:
        # The pipe ends with the process, so a timer that kills it bounds the wait for its first line.
        timer = threading.Timer(START_SECONDS_MAX, process.kill)
        timer.start()
        try:
            line = process.stdout.readline() if process.stdout else ""
        finally:
            timer.cancel()
        if not line:
            self.kill()
            raise ToolError(f"the fake gateway did not start; its log ends: {self._log_end()}")
        return int(json.loads(line)["port"])

    @property
    def _log_path(self) -> Path:
        return self._workdir / "fake-gateway.log"

    def _log_end(self) -> str:
        return self._log_path.read_text(errors="replace")[-2000:]

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            self._process = None

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)  # noqa: S310 - our own URL
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            result: dict[str, Any] = json.load(answer)
        return result
