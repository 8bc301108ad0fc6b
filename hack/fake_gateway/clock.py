"""The provider's time: the real one plus what a test has advanced it by. Sleepers notice an advance."""

import asyncio
import contextlib
import time

OFFSET_MAX = 3e9
"""Seconds; keeps every date within four-digit years."""


class Clock:
    """Runs on the monotonic clock from its start, so that a correction of the host's time moves nothing."""

    def __init__(self, offset_seconds: float = 0.0) -> None:
        self.offset_seconds = offset_seconds
        self._base = time.time() - time.monotonic()
        self._advanced = asyncio.Event()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._base + time.monotonic() + self.offset_seconds

    def set_offset(self, seconds: float) -> None:
        self.offset_seconds = seconds
        self._advanced.set()
        self._advanced = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Returns once this time has passed here, by waiting or by an advance."""
        deadline = self.now() + seconds
        while (left := deadline - self.now()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._advanced.wait()
