"""What is read out of Kubernetes objects."""

from __future__ import annotations

from typing import Any

import pytest

from billing_shards.errors import InvalidInput
from billing_shards.kube import manifests, objects, status
from billing_shards.kube.model import JobPhase, Placement
from tests.unit.kube_world import desired


def pod(**state: Any) -> dict[str, Any]:
    metadata = {
        "name": "p",
        "labels": {"app": "x", "batch.kubernetes.io/job-name": "j"},
        "creationTimestamp": "2030-01-01T00:00:00Z",
    }
    return {"metadata": metadata, "status": {"containerStatuses": [{"state": state}]}}


def job(*conditions: dict[str, Any]) -> dict[str, Any]:
    labels = {"billingshards.io/database": "a"}
    return {"metadata": {"name": "j", "labels": labels}, "status": {"conditions": list(conditions)}}


def ended(kind: str) -> dict[str, Any]:
    return {"type": kind, "status": "True", "lastTransitionTime": "2030-01-01T00:00:10Z", "message": "BackoffLimitExceeded"}


def test_a_running_job_and_why_its_pod_does_not_start() -> None:
    assert objects.job(job(), []).phase is JobPhase.RUNNING
    assert objects.job(job(), [pod(waiting={"reason": "ContainerCreating"})]).message == ""
    assert objects.job(job(), [pod(waiting={"reason": "ErrImageNeverPull"})]).message == "pod p: ErrImageNeverPull"


def test_a_failed_job_tells_its_error_line_and_nothing_else_of_the_log() -> None:
    log = 'plain line\nerror: database a: access denied\n{"event": "x"}\ndatabase was revision\n'
    found = objects.job(job(ended("Failed")), [pod(terminated={"message": log})])
    assert (found.phase, found.message, found.database) == (JobPhase.FAILED, "database a: access denied", "a")
    assert found.finished_at == 1893456010.0
    assert objects.job(job(ended("Failed")), [pod(terminated={"message": "killed"})]).message == "BackoffLimitExceeded"
    assert objects.job(job(ended("Complete")), []).phase is JobPhase.SUCCEEDED


def deployment(generation: int, observed: int, reason: str, **more: Any) -> dict[str, Any]:
    conditions = [{"type": "Progressing", "status": "True", "reason": reason}]
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}}
    metadata = {"name": "d", "generation": generation, "annotations": {"billingshards.io/applied": "digest"}}
    return {"metadata": metadata, "spec": spec, "status": {"observedGeneration": observed, "conditions": conditions, **more}}


@pytest.mark.parametrize(
    ("observed", "reason", "rolled_out", "stuck"),
    [
        (2, "NewReplicaSetAvailable", True, False),
        (1, "NewReplicaSetAvailable", False, False),
        (2, "ReplicaSetUpdated", False, False),
        (2, "ProgressDeadlineExceeded", False, True),
        (1, "ProgressDeadlineExceeded", False, False),
    ],
)
def test_a_deployment_is_judged_by_its_own_generation(observed: int, reason: str, rolled_out: bool, stuck: bool) -> None:
    found = objects.deployment(deployment(2, observed, reason, readyReplicas=1), [])
    assert (found.rolled_out, found.stuck, found.ready, found.replicas) == (rolled_out, stuck, 1, 2)
    assert (found.digest, found.version) == ("digest", "2")


def test_trouble_is_of_the_deployments_own_pods() -> None:
    other = pod(waiting={"reason": "CrashLoopBackOff"})
    other["metadata"]["labels"] = {"app": "y"}
    assert objects.deployment(deployment(1, 1, "x"), [other]).trouble == ""
    assert objects.deployment(deployment(1, 1, "x"), [other, pod(waiting={"reason": "CrashLoopBackOff"})]).trouble


def test_objects_of_a_deleted_namesake_are_not_ours() -> None:
    mine = {"metadata": {"name": "m", "ownerReferences": [{"uid": "u-1"}]}}
    old = {"metadata": {"name": "o", "ownerReferences": [{"uid": "u-0"}]}}
    assert objects.ours(desired(), [mine, old, {"metadata": {"name": "n"}}]) == [mine]


def test_a_placement_survives_its_record() -> None:
    chosen = Placement(databases=("a", "a", "b", "a"), complete=False)
    assert objects.placement(manifests.placement_map(desired(), chosen)) == chosen
    assert objects.placement(None) is None


@pytest.mark.parametrize("text", ["", "{}", '{"ranges": 3, "complete": true}', '{"ranges": [{"from": 0}], "complete": true}'])
def test_a_placement_that_somebody_changed_is_never_guessed(text: str) -> None:
    with pytest.raises(InvalidInput, match="ConfigMap main-placement: was changed by somebody else"):
        objects.placement({"metadata": {"name": "main-placement"}, "data": {"placement.json": text}})


def test_a_config_map_that_somebody_changed_tells_nothing() -> None:
    assert objects.shard_map({"metadata": {"name": "c"}, "data": {"shardset.json": "{"}}) is None
    assert objects.shard_map({"metadata": {"name": "c"}}) is None
    ours = manifests.config_map(desired(), parsed(), ["a"] * 3 + ["b"] * 5)
    assert objects.shard_map(ours) == ("a",) * 3 + ("b",) * 5


def parsed() -> Any:
    return desired().spec


@pytest.mark.parametrize(
    ("value", "shown"), [(0, 0), (0.2, 1), (7, 7), (42, 42), (99, 99), (101, 110), (1234, 1300), (9999, 10000)]
)
def test_numbers_in_status_are_coarse_and_never_too_low(value: float, shown: int) -> None:
    assert status.coarse(value) == shown
