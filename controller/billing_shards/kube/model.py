"""Values of the operator: what is wanted, what was seen, what shall be done. All frozen; nothing here does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from billing_shards.errors import InvalidSpec
from billing_shards.settings import ShardSetSpec
from billing_shards.shards.model import Owner

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What the operator was installed with: the image it runs pods from, and the schema revision it needs."""

    image: str
    revision: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """One BillingShardSet, as read from the API server."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: ShardSetSpec | InvalidSpec
    status: Mapping[str, Any]
    """The status it has, to keep transition times and to write only what changed."""


# What was seen of one database ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """It could not be asked. It may be empty or full: nothing follows from this but to ask again."""

    name: str
    reason: str
    """One word: SecretMissing, DatabaseUnavailable, TlsRefused."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The server answered, and does not know the application's user, its password or its rights (yet)."""

    name: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """Its schema is missing or older than this release needs."""

    name: str
    revision: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """It answered, and must not be touched: a newer schema, or another BillingShardSet's."""

    name: str
    reason: str
    """One word: SchemaTooNew, WrongDatabase."""
    message: str
    revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBacklog:
    """Due jobs of one shard, all lanes together."""

    ready: int
    oldest_seconds: float
    """Since the oldest fell due, by the server's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """Its schema is current. Not `initialised`: no BillingShardSet was ever set up on it."""

    name: str
    revision: str
    initialised: bool
    owners: Mapping[int, Owner]
    backlog: Mapping[int, ShardBacklog]


DatabaseState: TypeAlias = Unreachable | Refused | Behind | Unusable | Usable


# What was seen in the cluster -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretState:
    """A Secret's keys and version; never its contents."""

    version: str
    keys: frozenset[str]


class JobPhase(Enum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A schema-upgrade Job."""

    name: str
    database: str
    phase: JobPhase
    finished_at: float | None = None
    """Seconds since 1970; None while it runs."""
    message: str = ""
    """Last words of its pod where it failed, or why its pod does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectState:
    """An object of ours: the digest of what we applied, and what changes when anybody changes it."""

    digest: str
    version: str
    """`generation` where the kind has one, otherwise `resourceVersion`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentState(ObjectState):
    """How far a Deployment is. `rolled_out`: its latest template once had all its pods available."""

    replicas: int
    ready: int
    rolled_out: bool
    stuck: bool
    trouble: str = ""
    """Why a pod of it does not start, where one does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which database was chosen to own each shard first, written down before the first ownership row.

    `complete`: all of them were seen to own their shards. From then on only the fences count, and no row is ever made again.
    """

    databases: tuple[str, ...]
    complete: bool


Key: TypeAlias = tuple[str, str]
"""Kind and name of an object of the resource's namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything seen in one look."""

    secrets: Mapping[str, SecretState | None]
    databases: tuple[DatabaseState, ...]
    placement: Placement | None
    shard_map: tuple[str, ...] | None
    """Of the ConfigMap that pods are given: the owners as last known."""
    jobs: tuple[JobState, ...]
    deployments: Mapping[str, DeploymentState]
    objects: Mapping[Key, ObjectState]
    """ConfigMaps, PodDisruptionBudgets and Services (Deployments and Jobs have their own fields)."""


# What is remembered between two looks, and may be lost ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMemory:
    """Of one Deployment: when it was last late, and when it was last given another number of replicas."""

    late_at: float
    scaled_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of one BillingShardSet. Losing it (a restart) delays scaling down and applies everything once more."""

    scale: Mapping[str, ScaleMemory] = field(default_factory=dict)
    applied: Mapping[Key, str] = field(default_factory=dict)
    """`version` of each object right after we applied it: another one now means that somebody else changed it."""


# What shall be done ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Server-side apply of an object."""

    manifest: Manifest
    digest: str

    @property
    def key(self) -> Key:
        return (self.manifest["kind"], self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Make an object unless one of its name is there: a Job's template cannot be changed."""

    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove an object that is not wanted any more."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialise:
    """Make a database the first owner of shards (none: it only joins). Once in its life; see `ownership`."""

    database: str
    shards: tuple[int, ...]


Action: TypeAlias = Apply | Create | Delete | Initialise


class EventType(Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a person who looks at the resource wants to know happened."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that keeps the resource from being ready: a problem, or a step still under way."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one part of `decide` found and wants done."""

    actions: tuple[Action, ...] = ()
    problems: tuple[Finding, ...] = ()
    progress: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer of `decide.reconcile`."""

    actions: tuple[Action, ...]
    status: Mapping[str, Any]
    events: tuple[Event, ...]
    memory: Memory
    again_seconds: float
    """When to look again, unless something happens before."""
