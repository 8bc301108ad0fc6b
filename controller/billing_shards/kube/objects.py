"""Kubernetes objects as read, in our own values. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime

from billing_shards.errors import InvalidInput
from billing_shards.kube import manifests, names
from billing_shards.kube.model import DeploymentState, Desired, JobPhase, JobState, Manifest, ObjectState, Placement

_ERROR = "error: "
"""How the command line begins a line that tells of an error."""


def name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def ours(desired: Desired, found: Iterable[Manifest]) -> list[Manifest]:
    """Objects of this very resource: not those of one of the same name that was deleted and is being cleaned up."""
    return [o for o in found if any(owner["uid"] == desired.uid for owner in o["metadata"].get("ownerReferences", []))]


def version_of(manifest: Manifest) -> str:
    """What changes when anybody changes the object, and not when it only makes progress."""
    metadata = manifest["metadata"]
    return str(metadata["generation"]) if "generation" in metadata else str(metadata["resourceVersion"])


def seen(found: Manifest) -> ObjectState:
    """An object of ours as `decide` compares it."""
    digest = found["metadata"].get("annotations", {}).get(names.DIGEST_ANNOTATION, "")
    return ObjectState(digest=digest, version=version_of(found))


def deployment(found: Manifest, pods: Iterable[Manifest]) -> DeploymentState:
    """A Deployment, and what its pods say."""
    status, wanted = found.get("status", {}), found["spec"].get("replicas", 1)
    current = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    reason = conditions.get("Progressing", {}).get("reason", "")
    same = seen(found)
    return DeploymentState(
        digest=same.digest,
        version=same.version,
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


def job(found: Manifest, pods: Iterable[Manifest]) -> JobState:
    """A schema-upgrade Job, and what its pods say."""
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


def placement(found: Manifest | None) -> Placement | None:
    """Raises `InvalidInput` where it is not as we wrote it: guessing here could give a shard two owners."""
    if found is None:
        return None
    try:
        document = json.loads(found["data"]["placement.json"])
        return Placement(databases=manifests.expand(document["ranges"]), complete=bool(document["complete"]))
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(f"ConfigMap {name(found)}", "was changed by somebody else, and cannot be read") from None


def shard_map(found: Manifest | None) -> tuple[str, ...] | None:
    """The map that pods have; None where there is none, or somebody else made it unreadable (it is then applied anew)."""
    if found is None:
        return None
    try:
        ranges = json.loads(found["data"]["shardset.json"])["spec"].get("shardMap")
        return manifests.expand(sorted(ranges, key=lambda part: part["from"])) if ranges else None
    except (KeyError, TypeError, ValueError):
        return None
