"""Values of the queue."""

from __future__ import annotations

import hashlib
import time
from datetime import date, datetime
from enum import IntEnum
from typing import NamedTuple

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former is Linux's


class Lane(int):
    """A part of the queue with its own share of what a process holds claimed.

    Lanes come in pairs: 2n takes renewals, 2n + 1 what is tried or looked at again. Pair 0 is common; each service of the spec
    has a pair of its own (`services[].lane`).
    """

    __slots__ = ()

    @property
    def pair(self) -> int:
        """Which pair: 0, or `services[].lane`."""
        return self >> 1

    @property
    def again(self) -> Lane:
        """The lane of the pair for retries and looks at open attempts."""
        return Lane(self | 1)

    @property
    def is_retry(self) -> bool:
        """Whether it is the pair's lane for retries."""
        return bool(self & 1)


RENEWAL = Lane(0)
RETRY = Lane(1)


class Status(IntEnum):
    """Where a job is. `READY` and `PROCESSING` are on their way; the others are ends, until a person or a customer acts."""

    READY = 0
    PROCESSING = 1
    SUCCEEDED = 2
    FAILED = 3
    AWAITING_CUSTOMER = 4
    REVIEW = 5


NEVER = datetime(9999, 12, 31)  # noqa: DTZ001 - UTC and naive, as the database has it
"""When a job is due that waits for the customer, and that nobody looks at meanwhile."""


def known_due(due_at: datetime) -> datetime | None:
    """A job's `due_at`; None where nothing will make it due but the customer."""
    return None if due_at == NEVER else due_at


class Job(NamedTuple):
    """A claimed job: what a worker needs to charge it, and the token it must show to finish it.

    A tuple, because thousands are made a second: a frozen dataclass takes three times as long.
    """

    shard: int
    id: int
    lane: Lane
    subscription: str
    invoice: int
    amount: int
    """Minor units of `currency`."""
    currency: str
    payment_method: str
    provider: str
    """Where the open attempt goes, or went: an attempt is resolved at its own provider, whatever the spec says by now."""
    key: bytes
    attempt_no: int
    """Of the attempt that is open now."""
    checks: int
    """How often an open attempt has been looked at before; 0 where the attempt is new."""
    resumed: bool
    """The attempt was opened by an earlier claim, and its outcome is unknown: it must be resolved, never begun anew."""
    canceling: bool
    """The charge of the open attempt waited for the customer: it is to be canceled, so that a new one may begin."""
    attempt_age: float
    """Seconds since the attempt was opened, by the server's clock, when the job was claimed; 0 where it is new."""
    claimed_at: float
    """By `clock`, before the claim began."""
    grace_seconds: int
    """Left, at the time of the claim, for attempts to begin in; negative where it is over."""
    token: int

    @property
    def attempt_key(self) -> bytes:
        """What the provider is given: the same for every send of one attempt, and never for two attempts."""
        return attempt_key(self.key, self.attempt_no)

    @property
    def reference(self) -> str:
        """Our reference at the provider: how an attempt is found again when its answer was lost."""
        return f"{self.shard}/{self.invoice}/{self.attempt_no}"


def clock() -> float:
    """Seconds by a clock of this machine that also runs while the machine sleeps: how old an attempt is when it is sent."""
    return time.clock_gettime(_CLOCK)


def job_key(subscription: str, period_start: date, charge_type: int) -> bytes:
    """The key of the one charge of a period: the same for whoever computes it."""
    return hashlib.sha256(f"{subscription}|{period_start.isoformat()}|{charge_type}".encode()).digest()


def attempt_key(key: bytes, attempt_no: int) -> bytes:
    """The idempotency key of one attempt at a job."""
    return hashlib.sha256(key + str(attempt_no).encode()).digest()
