"""One round: read the resource, look, decide, act, write the status. Blocking: called in a thread.

The resource is read anew from the API server each time and never taken from a watch: a watch that has silently died can delay
a round, but cannot make it act on an old spec.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from billing_shards.errors import BillingShardsError, InvalidSpec
from billing_shards.kube import decide, metrics, names, status
from billing_shards.kube.api import KubeApi
from billing_shards.kube.apply import Applier
from billing_shards.kube.model import Desired, Event, Finding, Manifest, Memory, Release
from billing_shards.kube.objects import name
from billing_shards.kube.observe import Observer, desired_of
from billing_shards.settings import API_GROUP, API_VERSION, KIND

_log = structlog.get_logger(__name__)
_RETRY_SECONDS = 5.0
_OWNED = ("Deployment", "Job", "PodDisruptionBudget", "Service", "ConfigMap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a round came to."""

    events: tuple[Event, ...]
    memory: Memory
    again_seconds: float


class Rounds:
    """Safe to use from several threads, for different resources."""

    def __init__(self, api: KubeApi, observer: Observer, release: Release) -> None:
        self._api = api
        self._observer = observer
        self._applier = Applier(api, observer)
        self._release = release

    def run(self, namespace: str, resource: str, uid: str, memory: Memory) -> Outcome | None:
        """One round; None where the resource is gone or going. Raises `KubernetesError` where even its status is refused."""
        with metrics.ROUND_SECONDS.time():
            found = self._api.get(KIND, namespace, resource)
            if found is None or found["metadata"]["uid"] != uid or "deletionTimestamp" in found["metadata"]:
                return None
            desired = desired_of(found)
            try:
                outcome, after = self._round(desired, memory)
                metrics.ROUNDS.labels("done").inc()
            except Exception as error:  # noqa: BLE001  logged with its traceback, and told in the status
                outcome, after = self._failed(desired, error, memory)
                metrics.ROUNDS.labels("failed").inc()
            self._write_status(desired, after)
            metrics.tell(namespace, resource, after, time.time())
            return outcome

    def _round(self, desired: Desired, memory: Memory) -> tuple[Outcome, Mapping[str, Any]]:
        if isinstance(desired.spec, InvalidSpec):
            plan = decide.refuse(desired, desired.spec, memory, time.time())
        else:
            observed = self._observer.look(desired, desired.spec)
            plan = decide.reconcile(desired, desired.spec, observed, self._release, memory, time.time())
            memory = self._applier.do(desired, desired.spec, plan.actions, plan.memory)
        return Outcome(events=plan.events, memory=memory, again_seconds=plan.again_seconds), plan.status

    def _failed(self, desired: Desired, error: Exception, memory: Memory) -> tuple[Outcome, Mapping[str, Any]]:
        """Something was refused on the way: say so instead of leaving an old Ready standing, and try again.

        Only our own errors are told in their own words: what others say may repeat what they were given.
        """
        _log.warning("round_failed", namespace=desired.namespace, shardset=desired.name, exc_info=True)
        ours = isinstance(error, BillingShardsError)
        message = str(error) if ours else f"internal error ({type(error).__name__}), see the operator's log"
        after = status.failed(desired, Finding(reason="ReconcileFailed", message=message), time.time())
        events = status.events(desired.status, after)
        return Outcome(events=events, memory=memory, again_seconds=_RETRY_SECONDS), after

    def _write_status(self, desired: Desired, after: Mapping[str, Any]) -> None:
        if after == desired.status:
            return
        manifest = {
            "apiVersion": f"{API_GROUP}/{API_VERSION}",
            "kind": KIND,
            "metadata": {"namespace": desired.namespace, "name": desired.name},
            "status": after,
        }
        self._api.apply(manifest, subresource="status")

    def clean_up(self, namespace: str, resource: str, uid: str) -> int:
        """Remove what the resource owns; the number of its pods that still run. Databases are not asked: one may be down.

        Kubernetes would remove it all by owner references anyway, but some time after the resource is gone. Here it goes
        first, so that once the resource is gone nothing charges any more.
        """
        selector = f"{names.SHARD_SET_LABEL}={resource}"
        for kind in _OWNED:
            for found in self._api.list(kind, namespace, selector):
                if _owned_by(found, uid) and "deletionTimestamp" not in found["metadata"]:
                    self._api.delete(kind, namespace, name(found))
        return len(self._api.list("Pod", namespace, selector))

    def forget(self, namespace: str, resource: str, uid: str) -> None:
        """Drop what is kept in memory about a resource that is gone."""
        self._observer.forget(uid)
        metrics.forget(namespace, resource)


def _owned_by(manifest: Manifest, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in manifest["metadata"].get("ownerReferences", []))
