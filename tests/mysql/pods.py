"""A claimer or housekeeper as a pod runs it: the installed command, a mounted ConfigMap, mounted Secrets, and its probes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 120


def until(condition: Callable[[], object], told: Callable[[], str] = lambda: "") -> None:
    """Wait until it holds; what it was waiting for is not quick on a busy machine."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.05)


class Pod:
    """One process. Its files may be changed before and while it runs."""

    def __init__(self, folder: Path, component: str, shards: range) -> None:
        self._folder = folder
        self._component = component
        self._shards = shards
        self._versions = count()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "config").mkdir(parents=True)
        (folder / "secrets").mkdir()

    def mount_config(self, name: str, spec: Mapping[str, Any]) -> None:
        """Put the ConfigMap there, or change it as the kubelet does: all at once."""
        self.mount_text(json.dumps({"name": name, "spec": spec}))

    def mount_text(self, text: str) -> None:
        """`mount_config` with any content."""
        config = self._folder / "config"
        version = config / f"..{next(self._versions)}"
        version.mkdir()
        (version / "shardset.json").write_text(text)
        (config / "..next").symlink_to(version.name)
        (config / "..next").rename(config / "..data")
        with suppress(FileExistsError):
            (config / "shardset.json").symlink_to("..data/shardset.json")

    def mount_secret(self, name: str, values: Mapping[str, str]) -> None:
        """Put keys of a Secret there, or change them."""
        folder = self._folder / "secrets" / name
        folder.mkdir(exist_ok=True)
        for key, value in values.items():
            (folder / "..next").write_text(value)
            (folder / "..next").rename(folder / key)

    def start(self) -> None:
        """Start it; it need not be usable yet."""
        environment = {
            **os.environ,
            "BILLING_SHARDS_CONFIG_DIR": str(self._folder / "config"),
            "BILLING_SHARDS_SECRETS_DIR": str(self._folder / "secrets"),
            "BILLING_SHARDS_FIRST_SHARD": str(self._shards.start),
            "BILLING_SHARDS_LAST_SHARD": str(self._shards.stop - 1),
            "BILLING_SHARDS_METRICS_PORT": "0",
            "BILLING_SHARDS_LOG_LEVEL": "debug",
        }
        command = [str(Path(sys.executable).with_name("billing-shards")), self._component]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def _log_path(self) -> Path:
        return self._folder / "log"

    def log(self) -> str:
        """All that it has written to stdout and stderr."""
        return self._log_path.read_text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Its log's lines of one event. Every line must be JSON."""
        complete = self.log().rpartition("\n")[0]
        return [line for line in map(json.loads, complete.splitlines()) if line["event"] == event]

    def wait_for(self, event: str, *, times: int = 1) -> dict[str, Any]:
        """Wait for an event of its log; the last line of it."""
        self.until(lambda: len(self.lines(event)) >= times)
        return self.lines(event)[-1]

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until it holds, and for no longer than the process lives."""

        def holds() -> object:
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            return condition()

        until(holds, self.log)

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of one of its HTTP pages."""
        port = self.wait_for("listening")["port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self) -> bool:
        """Whether it says so itself."""
        return self.get("/readyz")[0] == 200

    def wait_until_ready(self) -> None:
        self.until(self.ready)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        samples = [line for line in self.get("/metrics")[1].splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples if all(part in line for part in wanted))

    def terminate(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None
        return self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """End it, however it is."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Gate:
    """A port through which a server is reached while the gate is open, and where nobody listens before."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        self._passing: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def open(self) -> None:
        """Let connections through from now on."""
        self._socket.listen()
        self._start(self._admit)

    def cut(self) -> None:
        """Break every connection, as a restart of the server would; new ones are let through."""
        for end in list(self._passing):
            _shut(end)

    def close(self) -> None:
        _shut(self._socket)
        while any(thread.is_alive() for thread in self._threads):
            self.cut()  # again: one may just have been admitted
            time.sleep(0.01)
        self._socket.close()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        self._threads.append(thread)

    def _admit(self) -> None:
        with suppress(OSError):
            while True:
                self._start(self._pass, self._socket.accept()[0])

    def _pass(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._target) as far:
            self._passing |= {near, far}
            back = threading.Thread(target=_pump, args=(far, near))
            back.start()
            _pump(near, far)
            back.join()
            self._passing -= {near, far}


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(65536):
            sink.sendall(chunk)
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def gate_to(host: str, port: int) -> Iterator[Gate]:
    """A gate that is still closed."""
    gate = Gate((host, port))
    try:
        yield gate
    finally:
        gate.close()
