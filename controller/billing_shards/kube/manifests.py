"""The objects that a BillingShardSet consists of, as JSON. Pure.

Pods run under the restricted Pod Security level, are given no service-account token, and see of each Secret only the keys they
need, as files that follow the Secret. Only the schema-upgrade Job is given the credentials of a schema's owner.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from billing_shards.kube import names
from billing_shards.kube.model import Apply, Desired, JobState, Manifest, Placement, Release, SecretState
from billing_shards.settings import API_GROUP, API_VERSION, KIND, DatabaseSpec, ShardSetSpec

_CONFIG_DIR = "/etc/billing-shards/config"
_SECRETS_DIR = "/etc/billing-shards/secrets"
_USER = 10001
_GRACE_SECONDS = 60
_JOB_DEADLINE_SECONDS = 900
_JOB_TTL_SECONDS = 3600
_RESOURCES = {"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretUse:
    """A key that the spec says a Secret must have; `field` is where it says so."""

    field: str
    secret: str
    key: str


def application_secrets(spec: ShardSetSpec) -> list[SecretUse]:
    """What claimers and the housekeeper need, and `broker_secrets`."""
    uses = [use for at, database in enumerate(spec.databases) for use in database_secrets(database, at)]
    for at, gateway in enumerate(spec.all_gateways):
        where = "spec.gateway" if at == 0 else f"spec.gateways[{at - 1}]"
        if gateway.api_key_secret is not None:
            uses.append(SecretUse(field=f"{where}.apiKeySecret", secret=gateway.api_key_secret.name, key="apiKey"))
        if gateway.webhook_secret is not None:
            uses.append(SecretUse(field=f"{where}.webhookSecret", secret=gateway.webhook_secret.name, key="webhookSecrets"))
    return [*uses, *broker_secrets(spec)]


def broker_secrets(spec: ShardSetSpec) -> list[SecretUse]:
    """What publishing events needs. Claimers are not given it."""
    where, broker = "spec.outbox.broker", spec.outbox.broker
    uses: list[SecretUse] = []
    if broker is not None and broker.credentials_secret is not None:
        name = broker.credentials_secret.name
        uses += [SecretUse(field=f"{where}.credentialsSecret", secret=name, key=key) for key in ("username", "password")]
    if broker is not None and broker.ca_secret is not None:
        uses.append(SecretUse(field=f"{where}.caSecret", secret=broker.ca_secret.name, key="ca.crt"))
    return uses


def database_secrets(database: DatabaseSpec, at: int) -> list[SecretUse]:
    """What the application needs for one database, the `at`th of the spec."""
    where, secret = f"spec.databases[{at}]", database.credentials_secret.name
    uses = [SecretUse(field=f"{where}.credentialsSecret", secret=secret, key=key) for key in ("username", "password")]
    if database.tls.ca_secret is not None:
        uses.append(SecretUse(field=f"{where}.tls.caSecret", secret=database.tls.ca_secret.name, key="ca.crt"))
    return uses


def schema_secrets(database: DatabaseSpec, at: int) -> list[SecretUse]:
    """What the schema-upgrade Job needs on top: the owner's credentials."""
    field, secret = f"spec.databases[{at}].schemaSecret", database.schema_secret.name
    return [SecretUse(field=field, secret=secret, key=key) for key in ("username", "password")]


def ranges_of(spec: ShardSetSpec) -> list[tuple[int, int]]:
    """The ranges of shard numbers that claimer Deployments are for: fixed, whatever database the shards are on."""
    step = spec.claimer.shards_per_deployment
    return [(first, min(first + step, spec.shard_count) - 1) for first in range(0, spec.shard_count, step)]


def config_map(desired: Desired, spec: ShardSetSpec, owners: Sequence[str] | None) -> Manifest:
    """What pods read: the spec, its shardMap replaced by the owners as the fences have them (None: left as it is)."""
    document = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    if owners is not None:
        document["shardMap"] = owner_ranges(owners)
    text = json.dumps({"name": desired.name, "spec": document}, indent=1, sort_keys=True)
    return _object(desired, "v1", "ConfigMap", names.config_map(desired.name), "config", data={"shardset.json": text})


def placement_map(desired: Desired, placement: Placement) -> Manifest:
    """The record of who was chosen to own each shard first. See `ownership`."""
    document = {"complete": placement.complete, "ranges": owner_ranges(placement.databases)}
    name = names.placement(desired.name)
    data = {"placement.json": json.dumps(document, indent=1, sort_keys=True)}
    return _object(desired, "v1", "ConfigMap", name, "placement", data=data)


def owner_ranges(owners: Sequence[str]) -> list[dict[str, Any]]:
    """One database's name for each shard, as the fewest ranges."""
    runs = groupby(range(len(owners)), key=lambda shard: owners[shard])
    spans = [(database, list(shards)) for database, shards in runs]
    return [{"from": span[0], "to": span[-1], "database": database} for database, span in spans]


def expand(ranges: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The inverse of `owner_ranges`."""
    return tuple(part["database"] for part in ranges for _ in range(part["from"], part["to"] + 1))


def claimer(desired: Desired, spec: ShardSetSpec, release: Release, shards: tuple[int, int], replicas: int) -> Manifest:
    """The claimer Deployment of one range of shard numbers."""
    name = names.claimer(desired.name, *shards)
    return _deployment(desired, spec, release, name=name, component="claimer", shards=shards, replicas=replicas)


def housekeeper(desired: Desired, spec: ShardSetSpec, release: Release) -> Manifest:
    """The housekeeper Deployment. One pod: a second one would only wait for the first one's tasks."""
    shards = (0, spec.shard_count - 1)
    name = names.housekeeper(desired.name)
    return _deployment(desired, spec, release, name=name, component="housekeeper", shards=shards, replicas=1)


def takes_webhooks(spec: ShardSetSpec) -> bool:
    """Whether any provider's webhooks are wanted."""
    return any(gateway.webhook_secret is not None for gateway in spec.all_gateways)


def webhook_service(desired: Desired) -> Manifest:
    """What an Ingress sends the providers' webhooks to: the housekeeper. Without TLS, inside the cluster only."""
    spec = {
        "selector": names.labels(desired.name, "housekeeper"),
        "ports": [{"name": "webhooks", "port": names.WEBHOOK_PORT, "targetPort": "webhooks", "protocol": "TCP"}],
    }
    return _object(desired, "v1", "Service", names.webhooks(desired.name), "housekeeper", spec=spec)


def disruption_budget(desired: Desired, shards: tuple[int, int]) -> Manifest:
    """Drains take one claimer of a Deployment at a time. A single one may be taken: a drain is never blocked."""
    name = names.claimer(desired.name, *shards)
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": _pod_labels(desired.name, "claimer", shards)},
    }
    return _object(desired, "policy/v1", "PodDisruptionBudget", name, "claimer", spec=spec)


def schema_job(
    desired: Desired, release: Release, database: DatabaseSpec, at: int, secrets: Mapping[str, SecretState | None]
) -> Manifest:
    """The Job that upgrades one database's schema and grants the application's user its rights."""
    uses = database_secrets(database, at) + schema_secrets(database, at)
    versions = sorted({(use.secret, _version(secrets.get(use.secret))) for use in uses})
    connection = database.model_dump(mode="json", by_alias=True, exclude={"weight"})
    version = names.digest([release.revision, release.image, versions, connection], length=8)
    container = _container(release, uses, args=["schema", "upgrade", "--database", database.name], env=[])
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    pod = _pod(desired, release, "schema-upgrade", container, uses) | {"restartPolicy": "Never"}
    labels = names.labels(desired.name, "schema-upgrade") | {names.DATABASE_LABEL: database.name}
    job = {
        "backoffLimit": 0,  # what failed is told at once; `decide` runs it again
        "activeDeadlineSeconds": _JOB_DEADLINE_SECONDS,
        "ttlSecondsAfterFinished": _JOB_TTL_SECONDS,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    name = names.schema_job(desired.name, database.name, version)
    manifest = _object(desired, "batch/v1", "Job", name, "schema-upgrade", spec=job)
    manifest["metadata"]["labels"] = labels
    return manifest


def _version(secret: SecretState | None) -> str:
    return "" if secret is None else secret.version


def superseded(jobs: Iterable[JobState], database: str, name: str) -> list[JobState]:
    """Jobs for the same database that are not the wanted one."""
    return [job for job in jobs if job.database == database and job.name != name]


def applied(manifest: Manifest) -> Apply:
    """The action that applies an object, marked with the digest by which it is recognised later."""
    digest = names.digest(manifest)
    metadata = manifest["metadata"] | {"annotations": {names.DIGEST_ANNOTATION: digest}}
    return Apply(manifest=manifest | {"metadata": metadata}, digest=digest)


def config_digest(spec: ShardSetSpec) -> str:
    """Changes when pods must be restarted: not with shardMap and `paused`, which they watch, nor with what only we use."""
    document = spec.model_dump(mode="json", by_alias=True, exclude={"shard_map", "paused", "migration"})
    for field in ("minReplicas", "maxReplicas", "targetBacklogAgeSeconds", "shardsPerDeployment"):
        del document["claimer"][field]
    for database in document["databases"]:
        del database["weight"], database["schemaSecret"]
    return names.digest(document)


def _object(desired: Desired, version: str, kind: str, name: str, component: str, **content: Any) -> Manifest:
    owner = {
        "apiVersion": f"{API_GROUP}/{API_VERSION}",
        "kind": KIND,
        "name": desired.name,
        "uid": desired.uid,
        "controller": True,
    }
    metadata = {
        "name": name,
        "namespace": desired.namespace,
        "labels": names.labels(desired.name, component),
        "ownerReferences": [owner],
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def _pod_labels(shard_set: str, component: str, shards: tuple[int, int]) -> dict[str, str]:
    return names.labels(shard_set, component) | {f"{API_GROUP}/shards": f"{shards[0]:03}-{shards[1]:03}"}


def _deployment(
    desired: Desired,
    spec: ShardSetSpec,
    release: Release,
    *,
    name: str,
    component: str,
    shards: tuple[int, int],
    replicas: int,
) -> Manifest:
    withheld = broker_secrets(spec) if component == "claimer" else []
    uses = [use for use in application_secrets(spec) if use not in withheld]
    env = [
        {"name": "BILLING_SHARDS_FIRST_SHARD", "value": str(shards[0])},
        {"name": "BILLING_SHARDS_LAST_SHARD", "value": str(shards[1])},
    ]
    container = _container(release, uses, args=[component], env=env) | _probes()
    if component == "housekeeper" and takes_webhooks(spec):
        container["ports"] = [*container["ports"], {"name": "webhooks", "containerPort": names.WEBHOOK_PORT}]
        container["env"] = [*container["env"], {"name": "BILLING_SHARDS_WEBHOOK_PORT", "value": str(names.WEBHOOK_PORT)}]
    labels = _pod_labels(desired.name, component, shards)
    pod = _pod(desired, release, component, container, uses)
    pod["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": names.labels(desired.name, component)},
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]
    template = {"metadata": {"labels": labels, "annotations": {names.CONFIG_ANNOTATION: config_digest(spec)}}, "spec": pod}
    rollout = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    content = {
        "replicas": replicas,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": 180,
        "selector": {"matchLabels": labels},
        "strategy": rollout,
        "template": template,
    }
    return _object(desired, "apps/v1", "Deployment", name, component, spec=content)


def _pod(desired: Desired, release: Release, component: str, container: Manifest, uses: Sequence[SecretUse]) -> Manifest:
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container | {"name": component}],
        "volumes": [
            {"name": "config", "configMap": {"name": names.config_map(desired.name)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            *(_secret_volume(at, *named) for at, named in enumerate(_by_secret(uses).items())),
        ],
    }
    if release.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in release.pull_secrets]
    return pod


def _container(release: Release, uses: Sequence[SecretUse], *, args: list[str], env: list[dict[str, str]]) -> Manifest:
    pod_name = {"name": "BILLING_SHARDS_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return {
        "image": release.image,
        "imagePullPolicy": release.pull_policy,
        "args": args,
        "env": [*env, {"name": "BILLING_SHARDS_METRICS_PORT", "value": str(names.METRICS_PORT)}, pod_name],
        "ports": [{"name": "metrics", "containerPort": names.METRICS_PORT}],
        "resources": dict(release.resources) or _RESOURCES,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": _CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  the root file system is read-only
            *(  # whole folders: a file mounted by subPath never follows its Secret
                {"name": f"secret-{at}", "mountPath": f"{_SECRETS_DIR}/{secret}", "readOnly": True}
                for at, secret in enumerate(_by_secret(uses))
            ),
        ],
    }


def _secret_volume(at: int, secret: str, keys: Sequence[str]) -> Manifest:
    items = [{"key": key, "path": key} for key in keys]
    return {"name": f"secret-{at}", "secret": {"secretName": secret, "items": items, "defaultMode": 0o440}}


def _by_secret(uses: Sequence[SecretUse]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for use in uses:
        found.setdefault(use.secret, set()).add(use.key)
    return {secret: sorted(found[secret]) for secret in sorted(found)}


def _probes() -> Manifest:
    def get(path: str) -> Manifest:
        return {"httpGet": {"path": path, "port": "metrics"}, "timeoutSeconds": 5}

    return {
        "startupProbe": get("/healthz") | {"periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": get("/healthz") | {"periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": get("/readyz") | {"periodSeconds": 5, "failureThreshold": 3},
    }
