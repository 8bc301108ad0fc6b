"""`python -m hack.demo`: exit code 0 where everything is right, 1 where a check fails, 130 where it was interrupted."""

import fcntl
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from hack.cache import cache_dir, locked
from hack.cluster import Cluster
from hack.demo.logbook import Logbook
from hack.demo.narrator import Narrator
from hack.demo.site import Site
from hack.demo.story import Story
from hack.errors import ToolError, run_command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_INTERRUPTED = 128 + signal.SIGINT


@app.command()
def demo(
    stay: Annotated[bool, typer.Option("--stay", help="Set all up, charge nothing, and leave it running.")] = False,
    subscriptions: Annotated[int, typer.Option(min=2000, help="How many are imported.")] = 20_000,
) -> None:
    """Bill subscriptions on a real cluster over two MySQL servers, while processes are killed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logbook = Logbook.begin()
    narrator = Narrator()
    narrator.print(f"billing-shards: {'a development cluster' if stay else 'the main job, end to end'}")
    narrator.print(f"details go to {logbook.folder}\n")
    story = Story(site=Site(Cluster(), logbook), narrator=narrator, subscriptions=subscriptions)
    lock = cache_dir() / "demo" / "lock"
    if _is_held(lock):
        narrator.print("another run is under way on this machine: waiting for its end\n")
    with locked(lock):
        narrator.begin()
        sys.exit(_stay(story) if stay else _show(story))


def _is_held(lock: Path) -> bool:
    """Whether somebody holds the lock; only for a word about it, it may be otherwise a moment later."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _show(story: Story) -> int:
    try:
        code = _run(story)
    finally:
        # From here on nothing may interrupt: what was started must go.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        story.clean_up()
    story.narrator.print(f"\nlogs: {story.site.logbook.folder}")
    return code


def _run(story: Story) -> int:
    try:
        story.set_up(anew=True)
        return 0 if story.bill() else 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ToolError:
        story.explain()  # the step has printed the error itself
        return 1


def _stay(story: Story) -> int:
    try:
        story.set_up(anew=False)
    except ToolError:
        story.explain()
        story.narrator.print("\nIt is left as it is, for a closer look; `make down` takes it away.")
        return 1
    story.tell_what_is_next()
    return 0


if __name__ == "__main__":
    run_command(app)
