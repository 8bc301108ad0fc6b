"""What a person sees: one line a step when it is done, with its seconds; on a terminal, what is going on meanwhile."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from hack.errors import ToolError

_PLAIN_PROGRESS_SECONDS = 10
_BAR_WIDTH = 30
_LOOKS_PER_SECOND = 4
_PLAIN_WIDTH = 120


class Step:
    """A step that is under way. Safe to use from several threads."""

    def __init__(self, narrator: "Narrator", number: int, title: str, status: Status | None) -> None:
        self._narrator = narrator
        self._number = number
        self._status = status
        self._told_progress = time.monotonic()
        self._lock = threading.Lock()
        self.title = title
        self.started = time.monotonic()
        self.result = "done"
        """What is said of it in the end."""
        self.failed = False
        """It has come to its end, but something is wrong."""

    def doing(self, what: str) -> None:
        """What is going on; shown on a terminal alone."""
        if self._status is not None:
            self._status.update(Text(f"{self._number}. {self.title}: {what}"))

    def note(self, text: str, style: str = "") -> None:
        """A line that stays, below the step."""
        with self._lock:
            seconds = time.monotonic() - self._narrator.started
            self._narrator.print(Text.assemble((f"     {seconds:5.0f} s  ", "dim"), (text, style)))

    def progress(self, done: int, total: int, text: str) -> None:
        """How far it is: a bar on a terminal, elsewhere a line every ten seconds."""
        if self._status is not None:
            row = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=max(total, 1), completed=done, width=_BAR_WIDTH)
            row.add_row(Text(f"{self._number}. {self.title}"), bar, Text(text))
            self._status.update(row)
        elif time.monotonic() - self._told_progress >= _PLAIN_PROGRESS_SECONDS:
            self._told_progress = time.monotonic()
            self.note(text)


class Narrator:
    """Prints to one console."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _console()
        self.started = time.monotonic()
        self._number = 0

    def begin(self) -> None:
        """Count the time from now on."""
        self.started = time.monotonic()

    def print(self, content: RenderableType = "") -> None:
        """Print below what is there."""
        self.console.print(content)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Number a step, time it, and print its line when it has ended."""
        self._number += 1
        status = (
            self.console.status(Text(f"{self._number}. {title}"), refresh_per_second=_LOOKS_PER_SECOND)
            if self.console.is_terminal
            else None
        )
        step = Step(self, self._number, title, status)
        if status is not None:
            status.start()
        try:
            yield step
        except BaseException as error:
            self._end(step, status, "✗", "red", _reason(error))
            raise
        mark, style = ("✗", "red") if step.failed else ("✓", "green")
        self._end(step, status, mark, style, step.result)

    def _end(self, step: Step, status: Status | None, mark: str, style: str, result: str) -> None:
        if status is not None:
            status.stop()
        now = time.monotonic()
        times = f"{now - step.started:.1f} s, {_clock(now - self.started)} in all"
        line = Text.assemble((f"{mark} {self._number}. {step.title}: ", f"bold {style}"), result, (f"  ({times})", "dim"))
        self.print(line)


def _console() -> Console:
    """As wide as the terminal; where there is none (80 columns are assumed) wide enough for the tables."""
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _reason(error: BaseException) -> str:
    match error:
        case ToolError():
            return str(error)
        case KeyboardInterrupt():
            return "interrupted"
        case _:
            return f"{type(error).__name__}: {error}"
