"""Where Kopf calls us. Every event, the clock and the start do the same thing: one more round for the resource.

Each resource has one daemon, so rounds of one resource never overlap, while a resource that hangs or fails delays no other.
Events only wake the daemon; what changed is of no interest, for a round reads everything anew. There are no create or update
handlers, which would lose edits and copy the spec into an annotation. Rounds block and run in a pool of threads of our own,
because Kopf's would quietly let a daemon wait for a free one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import Any

import kopf
import structlog

from billing_shards.errors import KubernetesError
from billing_shards.kube import names
from billing_shards.kube.api import KubeApi
from billing_shards.kube.model import Event, EventType, Memory
from billing_shards.kube.objects import name
from billing_shards.kube.round import Outcome, Rounds
from billing_shards.settings import API_GROUP, API_VERSION, KIND

_log = structlog.get_logger(__name__)
_RESOURCE = (API_GROUP, API_VERSION, names.PLURAL)
_CANCEL_SECONDS = 10.0
_PODS_GONE_WITHIN_SECONDS = 90.0
_LOOK_AGAIN_SECONDS = 2.0
_OVERDUE_SECONDS = 180.0


class _Resource:
    """What is kept for one resource while this process lives."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.lock = asyncio.Lock()
        self.memory = Memory()
        self.generation = 0


class Handlers:
    """The handlers, bound to what they work with. Used from one event loop."""

    def __init__(
        self,
        rounds: Rounds,
        api: KubeApi,
        pool: Executor,
        namespaces: tuple[str, ...],
        overdue_seconds: float = _OVERDUE_SECONDS,
    ) -> None:
        """A resource not looked at for `overdue_seconds` means that this process does not do its work."""
        self._rounds = rounds
        self._overdue_seconds = overdue_seconds
        self._api = api
        self._pool = pool
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._looked_at: dict[str, float] = {}
        self._started = time.monotonic()

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Tell Kopf of the handlers."""
        kopf.on.login(registry=registry)(kopf.login_via_client)
        kopf.on.event(*_RESOURCE, registry=registry, id="seen")(self.seen)
        kopf.daemon(*_RESOURCE, registry=registry, id="keep", cancellation_timeout=_CANCEL_SECONDS)(self.keep)
        # Only where it is being deleted: Kopf would otherwise record the spec of every resource in an annotation.
        kopf.on.delete(*_RESOURCE, registry=registry, id="delete", when=_is_going)(self.delete)
        kopf.on.probe(registry=registry, id="rounds")(self.probe)

    async def seen(self, memo: kopf.Memo, meta: kopf.Meta, **_: Any) -> None:
        """An event: wake the daemon, unless it only tells of a status that we wrote."""
        kept = _kept(memo)
        if meta.get("generation", 0) != kept.generation or "deletionTimestamp" in meta:
            kept.wake.set()

    async def keep(
        self, stopped: kopf.DaemonStopped, memo: kopf.Memo, body: kopf.Body, namespace: str | None, name: str, uid: str, **_: Any
    ) -> None:
        """Round after round, until the resource is deleted or the operator ends."""
        kept = _kept(memo)
        while not stopped:
            kept.wake.clear()
            kept.generation = body.metadata.get("generation", 0)
            async with kept.lock:
                try:
                    outcome = await self._run(self._rounds.run, namespace, name, uid, kept.memory)
                finally:  # a round that raises is Kopf's to log and to repeat; only one that hangs is overdue
                    self._looked_at[uid] = time.monotonic()
            if isinstance(outcome, Outcome):
                kept.memory = outcome.memory
                _post(body, outcome.events)
            await _sleep(kept.wake, outcome.again_seconds if outcome is not None else _LOOK_AGAIN_SECONDS)

    async def delete(
        self, memo: kopf.Memo, meta: Mapping[str, Any], namespace: str | None, name: str, uid: str, **_: Any
    ) -> None:
        """Let the resource go once its pods have ended, or at the latest when they have had the time to."""
        async with _kept(memo).lock:
            try:
                pods = await self._run(self._rounds.clean_up, namespace, name, uid)
            except KubernetesError as error:
                raise kopf.TemporaryError("the Kubernetes API refused to clean up", delay=_LOOK_AGAIN_SECONDS) from error
        waited = (datetime.now(UTC) - datetime.fromisoformat(meta["deletionTimestamp"])).total_seconds()
        if pods and waited < _PODS_GONE_WITHIN_SECONDS:
            raise kopf.TemporaryError(f"waits for {pods} pods to end", delay=_LOOK_AGAIN_SECONDS)
        self._looked_at.pop(uid, None)
        await self._run(self._rounds.forget, namespace, name, uid)
        _log.info("shardset_deleted", namespace=namespace, shardset=name, pods_left=pods)

    async def probe(self, **_: Any) -> int:
        """The number of resources; fails the liveness probe where one of them is not being looked at.

        That is how a watch that died unnoticed shows. An API server that does not answer is no reason to restart.
        """
        try:
            found = [part for at in self._namespaces for part in await self._run(self._api.list, KIND, at)]
        except KubernetesError as error:
            if error.status == 0:
                return -1
            raise kopf.PermanentError(f"resources cannot be listed (HTTP {error.status})") from error
        now = time.monotonic()
        for resource in found:
            metadata = resource["metadata"]
            age = (datetime.now(UTC) - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds()
            since = self._looked_at.get(metadata["uid"], max(self._started, now - age))
            if now - since > self._overdue_seconds and "deletionTimestamp" not in metadata:
                raise kopf.PermanentError(f"{metadata['namespace']}/{name(resource)} was not looked at for {now - since:.0f} s")
        return len(found)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


def _is_going(meta: Mapping[str, Any], **_: Any) -> bool:
    return "deletionTimestamp" in meta


def _kept(memo: kopf.Memo) -> _Resource:
    if "resource" not in memo:
        memo["resource"] = _Resource()
    kept: _Resource = memo["resource"]
    return kept


async def _sleep(wake: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await wake.wait()
    except TimeoutError:
        return


def _post(body: kopf.Body, events: tuple[Event, ...]) -> None:
    for event in events:
        post = kopf.warn if event.type is EventType.WARNING else kopf.info
        post(body, reason=event.reason, message=event.message)
