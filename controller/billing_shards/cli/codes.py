"""What the exit code tells a script. See docs/cli.md."""

from __future__ import annotations

from enum import IntEnum

from billing_shards.errors import BillingShardsError, DatabaseError, InvalidInput, NotFound


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    PROBLEMS = 1
    """The audit found problems, or a provider breaks a rule of the protocol."""
    BAD_INPUT = 2
    """An option, a file or a field of the resource is wrong; nothing was changed."""
    DATABASE = 3
    """A database cannot be used: not reachable, refused, not set up, or of another release."""
    NOT_FOUND = 4
    """The thing asked for does not exist."""
    FAILED = 5
    """It could not be done now, for the reason given; trying again may help."""
    CRASHED = 70
    """A fault of this program: the traceback is on stderr."""


TEXT = """Exit codes: 0 done; 1 the audit found problems, or a provider breaks a rule; 2 wrong input; 3 a database cannot be used;
4 not found; 5 not possible now; 70 a fault of this program."""


def code_of(error: BillingShardsError) -> ExitCode:
    """The exit code of an expected error."""
    match error:
        case InvalidInput():
            return ExitCode.BAD_INPUT
        case DatabaseError():
            return ExitCode.DATABASE
        case NotFound():
            return ExitCode.NOT_FOUND
        case _:
            return ExitCode.FAILED
