"""The one error that the tools under `hack` raise on purpose, and how their commands show it."""

import sys
from collections.abc import Callable


class ToolError(RuntimeError):
    """A server, cluster or image could not be started or built; the message says which, and where its log is."""


def run_command(app: Callable[[], object]) -> None:
    """Run a command line; a ToolError becomes one line on standard error and exit code 1, without a traceback."""
    try:
        app()
    except ToolError as error:
        sys.exit(f"error: {error}")
