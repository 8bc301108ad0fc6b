"""The providers of a housekeeper in an event loop of their own, so that a thread which asks them may wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from billing_shards.payments import customers
from billing_shards.payments.providers import Providers
from billing_shards.payments.refunds import work
from billing_shards.settings import ShardSetSpec
from billing_shards.shards.transactions import ShardRouter

T = TypeVar("T")


class Asker:
    """Works due refunds, and looks at charges that wait for the customer. Use it as a context: the providers are made at its
    beginning, and closed at its end.

    Not the loop of the process: a thread that waited for that one would wait for ever when the process ends.
    """

    def __init__(self, router: ShardRouter, make_providers: Callable[[], Providers], spec: ShardSetSpec) -> None:
        self._router = router
        self._make_providers = make_providers
        self._spec = spec
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asker", daemon=True)
        self._made: Providers | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._made = self._call(self._make())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._made is not None:
            self._call(self._made.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def refunds(self, database: str, shards: Sequence[int]) -> bool:
        """A batch of each of the database's shards with due refunds; whether there were any. Raises what `push_due` does."""
        return work.push_due(self._router, self._providers, self._call, database, shards, spec=self._spec)

    def customers(self, database: str, shards: Sequence[int]) -> bool:
        """A batch of each lane of the database with charges to be looked at; whether there were any. Raises what `look` does."""
        return customers.look(self._router, self._providers, self._call, database, shards, policy=self._spec.retry)

    @property
    def _providers(self) -> Providers:
        if self._made is None:
            raise AssertionError("used outside its context")
        return self._made

    async def _make(self) -> Providers:
        return self._make_providers()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
