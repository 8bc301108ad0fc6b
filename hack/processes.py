"""Starting and ending processes by identity, never by name.

A process id alone may belong to a stranger once its first owner is gone, so an identity is the id plus the time the
kernel says it began. A process is either *tied* to its starter (the kernel kills it when the starter dies, even by
SIGKILL) or *detached* (it outlives the command that started it).
"""

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from hack.errors import ToolError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process for the whole life of the machine: its id and its start, in clock ticks after boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity":
        """Identify a living process; raises ToolError where there is none."""
        fields = _stat(pid)
        if fields is None:
            raise ToolError(f"process {pid} ended at once")
        return cls(pid=pid, started=int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether any of its threads still runs; a zombie without threads does not."""
        _reap(self.pid)
        fields = _stat(self.pid)
        if fields is None or int(fields[19]) != self.started:
            return False
        # A killed process shows as a zombie while its last threads are still ending, with its files still open.
        return fields[0] not in {"Z", "X"} or int(fields[17]) > 1

    def send(self, number: signal.Signals) -> None:
        """Send a signal to exactly this process; a dead one is left alone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return
        finally:
            os.close(handle)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until it is gone; False where it is still there after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def stop(self, *, grace_seconds: float = 30.0) -> None:
        """Ask it to end, and kill it where it has not after the grace time."""
        self.send(signal.SIGTERM)
        if not self.wait(grace_seconds):
            self.kill()

    def kill(self) -> None:
        """End it by SIGKILL and wait until it is gone."""
        self.send(signal.SIGKILL)
        if not self.wait(30.0):
            raise ToolError(f"process {self.pid} survived SIGKILL for 30 seconds")


def spawn(argv: Sequence[str | Path], *, log: Path, tied: bool) -> ProcessIdentity:
    """Start a process in a session of its own, with its output appended to `log`."""
    words = [str(part) for part in argv]
    if tied:
        words = ["setpriv", "--pdeathsig", "KILL", "--", *words]
        return ProcessIdentity.of(_spawner.spawn(words, log))
    return ProcessIdentity.of(_spawn(words, log))


def _spawn(words: list[str], log: Path) -> int:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ]
        return os.posix_spawnp(words[0], words, os.environ, file_actions=actions, setsid=True)
    except FileNotFoundError as error:
        raise ToolError(f"command not found: {words[0]}") from error
    finally:
        os.close(output)


class _Spawner:
    """Starts tied processes from one thread that lives as long as the program.

    The kernel's parent-death signal means the death of the *thread* that started the child: started from a pool's
    thread, a server would be killed as soon as that pool is shut down.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[list[str], Path, Future[int]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._owner = 0

    def spawn(self, words: list[str], log: Path) -> int:
        with self._lock:
            if self._owner != os.getpid():  # a forked child has none of its parent's threads
                self._owner = os.getpid()
                threading.Thread(target=self._serve, name="spawner", daemon=True).start()
        future: Future[int] = Future()
        self._requests.put((words, log, future))
        return future.result()

    def _serve(self) -> None:
        while True:
            words, log, future = self._requests.get()
            try:
                future.set_result(_spawn(words, log))
            except (OSError, ToolError) as error:
                future.set_exception(error)


_spawner = _Spawner()


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name (which may hold spaces and brackets)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
