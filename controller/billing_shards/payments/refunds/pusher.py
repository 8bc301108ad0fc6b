"""The providers of refunds in an event loop of their own, so that a thread which works refunds may wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from billing_shards.payments.providers import Providers
from billing_shards.payments.refunds import work
from billing_shards.settings import ShardSetSpec
from billing_shards.shards.transactions import ShardRouter

T = TypeVar("T")


class RefundPusher:
    """Works due refunds. Use it as a context: the providers are made at its beginning, and closed at its end.

    Not the loop of the process: a thread that waited for that one would wait for ever when the process ends.
    """

    def __init__(self, router: ShardRouter, make_providers: Callable[[], Providers], spec: ShardSetSpec) -> None:
        self._router = router
        self._make_providers = make_providers
        self._spec = spec
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="refunds", daemon=True)
        self._providers: Providers | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._providers = self._call(self._make())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._providers is not None:
            self._call(self._providers.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def step(self, database: str, shards: Sequence[int]) -> bool:
        """A batch of each of the database's shards with due refunds; whether there were any. Raises what `push_due` does."""
        if self._providers is None:
            raise AssertionError("used outside its context")
        return work.push_due(self._router, self._providers, self._call, database, shards, spec=self._spec)

    async def _make(self) -> Providers:
        return self._make_providers()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
