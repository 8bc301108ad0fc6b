"""One look at everything that concerns a BillingShardSet: its Secrets, its objects, and its databases, side by side.

A database is asked in a thread of its own with a deadline, so that one that hangs delays this look and no other; while it
hangs, it is not asked again. Connections are closed after each look: an operator that keeps none can exhaust none.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as DeadlineExceeded
from dataclasses import dataclass

from billing_shards.errors import InvalidInput, InvalidSpec
from billing_shards.kube import manifests, names, objects
from billing_shards.kube.api import KubeApi
from billing_shards.kube.databases import ask
from billing_shards.kube.model import DatabaseState, Desired, Key, Manifest, ObjectState, Observed, SecretState, Unreachable
from billing_shards.settings import DatabaseSpec, ShardSetSpec, parse_spec
from billing_shards.shards.map import ShardMap

_DEADLINE_SECONDS = 20.0


def desired_of(resource: Manifest) -> Desired:
    """A resource as read from the API server. A spec that breaks a rule is a value here, not an error."""
    spec: ShardSetSpec | InvalidSpec
    try:
        spec = parse_spec(resource.get("spec"))
        ShardMap.from_spec(spec)
    except InvalidSpec as error:
        spec = error
    metadata = resource["metadata"]
    return Desired(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        spec=spec,
        status=resource.get("status", {}),
    )


@dataclass(frozen=True, slots=True)
class ApiSecrets:
    """The Secrets of one look. Their values are handed to connections and to nothing else; `repr` shows none."""

    contents: Mapping[str, Mapping[str, str]]

    def __repr__(self) -> str:
        return f"ApiSecrets({sorted(self.contents)})"

    def value(self, secret: str, key: str) -> str:
        """See `shardset.Secrets`."""
        try:
            return self.contents[secret][key]
        except KeyError:
            raise InvalidInput(f"secret {secret}", f"key {key} is missing") from None


class Observer:
    """Looks at one BillingShardSet after another; several threads may look at different ones at once."""

    def __init__(self, api: KubeApi, pool: ThreadPoolExecutor) -> None:
        self._api = api
        self._pool = pool
        self._asked: dict[tuple[str, str], Future[DatabaseState]] = {}

    def look(self, desired: Desired, spec: ShardSetSpec) -> Observed:
        """See everything. Raises `KubernetesError`; what is wrong with a database is part of the answer."""
        states, secrets = self._secrets(desired.namespace, spec)
        asked = [self._ask(desired, spec, database, secrets) for database in spec.databases]
        selector = f"{names.SHARD_SET_LABEL}={desired.name}"

        def owned(kind: str) -> list[Manifest]:
            return objects.ours(desired, self._api.list(kind, desired.namespace, selector))

        pods = self._api.list("Pod", desired.namespace, selector)
        others = {kind: owned(kind) for kind in ("ConfigMap", "PodDisruptionBudget", "Service")}
        seen: dict[Key, ObjectState] = {
            (kind, objects.name(found)): objects.seen(found) for kind, all_of in others.items() for found in all_of
        }
        maps = {objects.name(found): found for found in others["ConfigMap"]}
        return Observed(
            secrets=states,
            databases=tuple(wait() for wait in asked),
            placement=objects.placement(maps.get(names.placement(desired.name))),
            shard_map=objects.shard_map(maps.get(names.config_map(desired.name))),
            jobs=tuple(objects.job(found, pods) for found in owned("Job")),
            deployments={objects.name(found): objects.deployment(found, pods) for found in owned("Deployment")},
            objects=seen,
        )

    def secrets(self, namespace: str, spec: ShardSetSpec) -> ApiSecrets:
        """The Secrets of the application as they are now. Raises `KubernetesError`."""
        return self._secrets(namespace, spec)[1]

    def _secrets(self, namespace: str, spec: ShardSetSpec) -> tuple[dict[str, SecretState | None], ApiSecrets]:
        """Of a schema owner's Secret only the keys are looked at: its values are the upgrade Job's alone."""
        used = {use.secret for use in manifests.application_secrets(spec)}
        named = used | {database.schema_secret.name for database in spec.databases}
        states: dict[str, SecretState | None] = {}
        contents: dict[str, dict[str, str]] = {}
        for secret in sorted(named):
            found = self._api.get("Secret", namespace, secret)
            data = (found or {}).get("data") or {}
            if secret in used:
                contents[secret] = {key: _decoded(value) for key, value in data.items()}
            state = SecretState(version=str(found["metadata"]["resourceVersion"]), keys=frozenset(data)) if found else None
            states[secret] = state
        return states, ApiSecrets(contents)

    def _ask(
        self, desired: Desired, spec: ShardSetSpec, database: DatabaseSpec, secrets: ApiSecrets
    ) -> Callable[[], DatabaseState]:
        key = (desired.uid, database.name)
        before = self._asked.get(key)
        if before is not None and not before.done():
            return lambda: _silent(database)
        future = self._asked[key] = self._pool.submit(ask, desired.name, spec, database, secrets)

        def wait() -> DatabaseState:
            try:
                return future.result(timeout=_DEADLINE_SECONDS)
            except DeadlineExceeded:
                return _silent(database)

        return wait

    def forget(self, uid: str) -> None:
        """Drop what is kept about a resource that is gone."""
        for key in list(self._asked):  # a copy: other threads add theirs meanwhile
            if key[0] == uid:
                del self._asked[key]


def _silent(database: DatabaseSpec) -> Unreachable:
    message = f"database {database.name}: {database.host}:{database.port} gave no answer in {_DEADLINE_SECONDS:.0f} s"
    return Unreachable(name=database.name, reason="DatabaseUnavailable", message=message)


def _decoded(value: str) -> str:
    """Text of a Secret's value; a trailing newline, which editors add, is no part of a password."""
    return base64.b64decode(value).decode(errors="replace").rstrip("\n")
