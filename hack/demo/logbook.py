"""The folder of one run, with everything that would be noise on the screen: commands and their output, logs of pods, JSON."""

import json
import shlex
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hack.cache import cache_dir, remove

_RUNS_KEPT = 5


class Logbook:
    """Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._started = time.monotonic()

    @classmethod
    def begin(cls) -> "Logbook":
        """A new folder, named by the time; the oldest ones are removed."""
        runs = cache_dir() / "demo" / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        for old in sorted(runs.iterdir())[: -_RUNS_KEPT + 1]:
            remove(old)
        folder = runs / datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
        folder.mkdir(exist_ok=True)
        return cls(folder)

    def command(self, words: Sequence[object], output: str, *, seconds: float, code: int) -> None:
        """Note a command that has ended."""
        said = output if output.endswith("\n") or not output else output + "\n"
        line = shlex.join(str(word) for word in words)
        self.note(f"$ {line}\n{said}[exit code {code}, {seconds:.1f} s]")

    def note(self, text: str) -> None:
        """Add to the log of commands, with the seconds since the beginning."""
        with self._lock, (self.folder / "commands.log").open("a") as file:
            file.write(f"+{time.monotonic() - self._started:.1f} s  {text}\n")

    def text(self, name: str, content: str) -> Path:
        """Write a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def document(self, name: str, content: Any) -> Path:
        """Write a file of JSON."""
        return self.text(name, json.dumps(content, indent=2) + "\n")
