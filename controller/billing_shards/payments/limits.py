"""How much is asked of one provider at once, and how fast: our own limits, and the provider's word when it has had too much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiolimiter import AsyncLimiter

from billing_shards.settings import GatewaySpec

WAIT_SECONDS_MAX = 2.0
"""A request waits this long at the most for the provider's sake; a longer wait would keep a worker from other providers."""


class Limits:
    """The limits of one provider in one process; of the running event loop. `clock` counts seconds and never goes back."""

    def __init__(self, spec: GatewaySpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_flight = None if spec.in_flight_max is None else asyncio.Semaphore(spec.in_flight_max)
        rate = spec.requests_per_second_max
        # A tenth of a second at a time: a limiter of whole seconds would send each second's requests as one burst.
        self._rate = None if rate is None else AsyncLimiter(max(1.0, rate / 10), max(0.1, 1 / rate))
        self._open_at = 0.0

    def hold(self, seconds: float) -> None:
        """Send nothing more for this long: the provider said so."""
        self._open_at = max(self._open_at, self._clock() + seconds)

    @property
    def held_seconds(self) -> float:
        """How long nothing is to be sent; 0 where something may."""
        return max(0.0, self._open_at - self._clock())

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """Wait for one's turn, by number and by rate. Gives the seconds for which the provider is held all the same: 0, or more
        than a worker may wait for.
        """
        async with _Nothing() if self._in_flight is None else self._in_flight:
            if self._rate is not None:
                await self._rate.acquire()
            while 0 < (wait := self.held_seconds) <= WAIT_SECONDS_MAX:  # noqa: ASYNC110 - a time, which may be put off meanwhile
                await asyncio.sleep(wait)
            yield wait


class _Nothing:
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *_: object) -> None: ...
