"""One look at everything that concerns a BillingShardSet: its Secrets, its objects, and its databases, side by side.

A database is asked in a thread of its own with a deadline, so that one that hangs delays this look and no other; while it
hangs, it is not asked again. Connections are closed after each look: an operator that keeps none can exhaust none.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as DeadlineExceeded
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from billing_shards import schema
from billing_shards.db import Database, open_database, queries, translated
from billing_shards.errors import (
    AccessDenied,
    DatabaseError,
    InvalidInput,
    InvalidSpec,
    SchemaBehind,
    SchemaTooNew,
    TlsRefused,
)
from billing_shards.jobs import store as jobs
from billing_shards.kube import manifests, names
from billing_shards.kube.api import KubeApi
from billing_shards.kube.model import (
    Behind,
    DatabaseState,
    DeploymentState,
    Desired,
    JobPhase,
    JobState,
    Key,
    Manifest,
    ObjectState,
    Observed,
    Placement,
    Refused,
    SecretState,
    ShardBacklog,
    Unreachable,
    Unusable,
    Usable,
)
from billing_shards.settings import DatabaseSpec, ShardSetSpec, parse_spec
from billing_shards.shards import shardset, store
from billing_shards.shards.map import ShardMap

_DEADLINE_SECONDS = 20.0
_ERROR = "error: "
"""How the command line begins a line that tells of an error."""
_q = queries("operator")


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
        pods = self._api.list("Pod", desired.namespace, selector)
        deployments = _ours(desired, self._api.list("Deployment", desired.namespace, selector))
        found_jobs = _ours(desired, self._api.list("Job", desired.namespace, selector))
        maps = _ours(desired, self._api.list("ConfigMap", desired.namespace, selector))
        budgets = _ours(desired, self._api.list("PodDisruptionBudget", desired.namespace, selector))
        kinds = [("ConfigMap", maps), ("PodDisruptionBudget", budgets)]
        objects: dict[Key, ObjectState] = {(kind, name(o)): _object(o) for kind, found in kinds for o in found}
        by_name = {name(found): found for found in maps}
        return Observed(
            secrets=states,
            databases=tuple(wait() for wait in asked),
            placement=_placement(by_name.get(names.placement(desired.name))),
            shard_map=_shard_map(by_name.get(names.config_map(desired.name))),
            jobs=tuple(_job(job, pods) for job in found_jobs),
            deployments={name(found): _deployment(found, pods) for found in deployments},
            objects=objects,
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
            state = SecretState(version=_version(found), keys=frozenset(data)) if found else None
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
        for key in [key for key in self._asked if key[0] == uid]:
            del self._asked[key]


def _silent(database: DatabaseSpec) -> Unreachable:
    message = f"database {database.name}: {database.host}:{database.port} gave no answer in {_DEADLINE_SECONDS:.0f} s"
    return Unreachable(name=database.name, reason="DatabaseUnavailable", message=message)


def ask(shard_set: str, spec: ShardSetSpec, database: DatabaseSpec, secrets: shardset.Secrets) -> DatabaseState:
    """What one database says of itself, asked as the application's user."""
    try:
        credentials = shardset.credentials(database, secrets)
        ca = secrets.value(database.tls.ca_secret.name, "ca.crt") if database.tls.ca_secret is not None else None
    except InvalidInput as error:
        return Unreachable(name=database.name, reason="SecretMissing", message=f"database {database.name}: {error}")
    opened: Database | None = None
    try:
        opened = open_database(database, lambda: credentials, ca=lambda: ca, pool_size=1)
        return _examine(shard_set, spec, opened)
    except AccessDenied as error:
        return Refused(name=database.name, message=f"{error} (user {credentials.username})")
    except TlsRefused as error:
        return Unreachable(name=database.name, reason="TlsRefused", message=str(error))
    except ssl.SSLError:
        message = f"database {database.name}: tls.caSecret: ca.crt holds no certificate that can be read"
        return Unreachable(name=database.name, reason="TlsRefused", message=message)
    except DatabaseError as error:
        return Unreachable(name=database.name, reason="DatabaseUnavailable", message=f"{error}, at {_address(database)}")
    except (SQLAlchemyError, OSError, ValueError) as error:
        # Not one of the failures we know. Its text is the driver's and may repeat what it was given: only its kind is told.
        message = f"database {database.name}: cannot be asked ({type(error).__name__}), at {_address(database)}"
        return Unreachable(name=database.name, reason="DatabaseUnavailable", message=message)
    finally:
        if opened is not None:
            opened.close()


def _address(database: DatabaseSpec) -> str:
    return f"{database.host}:{database.port}"


def _examine(shard_set: str, spec: ShardSetSpec, database: Database) -> DatabaseState:
    revision = schema.current_revision(database)
    try:
        schema.check(database)
    except SchemaBehind:
        return Behind(name=database.name, revision=revision)
    except SchemaTooNew as error:
        return Unusable(name=database.name, reason="SchemaTooNew", message=str(error), revision=revision)
    if revision is None:
        raise AssertionError("a schema without a revision is never current")
    with translated(database.name), database.engine.connect() as connection:
        installation = store.read_installation(connection)
        if installation is not None:
            found = (installation.shard_set, installation.shard_count, installation.database)
            if found != (shard_set, spec.shard_count, database.name):
                words = f"database {database.name}: was set up as {found[2]!r} of {found[0]!r} with {found[1]} shards"
                return Unusable(name=database.name, reason="WrongDatabase", message=words, revision=revision)
        owners = store.read_owners(connection)
        now: datetime = connection.exec_driver_sql(_q.now).scalar_one()
        waiting = jobs.backlog(connection, sorted(owners)) if owners else []
    return Usable(
        name=database.name,
        revision=revision,
        initialised=installation is not None,
        owners=owners,
        backlog=_by_shard(waiting, now),
    )


def _by_shard(waiting: Iterable[Any], now: datetime) -> dict[int, ShardBacklog]:
    """All lanes of a shard together."""
    shards: dict[int, ShardBacklog] = {}
    for lane in waiting:
        age = 0.0 if lane.oldest_due_at is None else max(0.0, (now - lane.oldest_due_at).total_seconds())
        before = shards.get(lane.shard, ShardBacklog(ready=0, oldest_seconds=0.0))
        oldest = max(before.oldest_seconds, age)
        shards[lane.shard] = ShardBacklog(ready=before.ready + lane.ready, oldest_seconds=oldest)
    return shards


def name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def _ours(desired: Desired, found: Iterable[Manifest]) -> list[Manifest]:
    """Objects of this very resource: not those of one of the same name that was deleted and is being cleaned up."""
    return [o for o in found if any(owner["uid"] == desired.uid for owner in o["metadata"].get("ownerReferences", []))]


def _version(found: Manifest) -> str:
    return str(found["metadata"]["resourceVersion"])


def version_of(manifest: Manifest) -> str:
    """What changes when anybody changes the object, and not when it only makes progress."""
    metadata = manifest["metadata"]
    return str(metadata["generation"]) if "generation" in metadata else str(metadata["resourceVersion"])


def _object(found: Manifest) -> ObjectState:
    digest = found["metadata"].get("annotations", {}).get(names.DIGEST_ANNOTATION, "")
    return ObjectState(digest=digest, version=version_of(found))


def _deployment(found: Manifest, pods: Iterable[Manifest]) -> DeploymentState:
    status, wanted = found.get("status", {}), found["spec"].get("replicas", 1)
    current = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    reason = conditions.get("Progressing", {}).get("reason", "")
    seen = _object(found)
    return DeploymentState(
        digest=seen.digest,
        version=seen.version,
        replicas=wanted,
        ready=status.get("readyReplicas", 0),
        rolled_out=current and (reason == "NewReplicaSetAvailable" or wanted == 0),
        stuck=current and reason == "ProgressDeadlineExceeded",
        trouble=_trouble(found["spec"]["selector"]["matchLabels"], pods),
    )


def _trouble(labels: Mapping[str, str], pods: Iterable[Manifest]) -> str:
    """Why the first pod of these labels that does not start does not start."""
    for pod in pods:
        has = pod["metadata"].get("labels", {})
        if any(has.get(key) != value for key, value in labels.items()):
            continue
        for container in pod.get("status", {}).get("containerStatuses", []):
            reason = container.get("state", {}).get("waiting", {}).get("reason", "")
            if reason not in ("", "ContainerCreating", "PodInitializing"):
                return f"pod {name(pod)}: {reason}"
    return ""


def _job(found: Manifest, pods: Iterable[Manifest]) -> JobState:
    labels = found["metadata"].get("labels", {})
    ends = [c for c in found.get("status", {}).get("conditions", []) if c["status"] == "True"]
    failed = next((c for c in ends if c["type"] == "Failed"), None)
    done = next((c for c in ends if c["type"] == "Complete"), None)
    end = failed or done
    phase = JobPhase.FAILED if failed else JobPhase.SUCCEEDED if done else JobPhase.RUNNING
    own = [pod for pod in pods if pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name") == name(found)]
    message = _last_words(own) if failed else _trouble({}, own) if end is None else ""
    return JobState(
        name=name(found),
        database=labels.get(names.DATABASE_LABEL, ""),
        phase=phase,
        finished_at=datetime.fromisoformat(end["lastTransitionTime"]).timestamp() if end else None,
        message=message or (str(failed.get("message", "")) if failed else ""),
    )


def _last_words(pods: Iterable[Manifest], most: int = 400) -> str:
    """What the latest failed pod of ours wrote as its error, which names the field or database and the reason."""
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True):
        for container in pod.get("status", {}).get("containerStatuses", []):
            ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
            lines = str(ended.get("message", "")).splitlines()
            told = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
            if told:
                return told[-1][:most]
    return ""


def _placement(found: Manifest | None) -> Placement | None:
    """Raises `InvalidInput` where it is not as we wrote it: guessing here could give a shard two owners."""
    if found is None:
        return None
    try:
        document = json.loads(found["data"]["placement.json"])
        return Placement(databases=manifests.expand(document["ranges"]), complete=bool(document["complete"]))
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(f"ConfigMap {name(found)}", "was changed by somebody else, and cannot be read") from None


def _shard_map(found: Manifest | None) -> tuple[str, ...] | None:
    """The map that pods have; None where there is none, or somebody else made it unreadable (it is then applied anew)."""
    if found is None:
        return None
    try:
        ranges = json.loads(found["data"]["shardset.json"])["spec"].get("shardMap")
        return manifests.expand(sorted(ranges, key=lambda part: part["from"])) if ranges else None
    except (KeyError, TypeError, ValueError):
        return None


def _decoded(value: str) -> str:
    """Text of a Secret's value; a trailing newline, which editors add, is no part of a password."""
    return base64.b64decode(value).decode(errors="replace").rstrip("\n")
