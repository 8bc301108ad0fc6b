"""The whole plan for one resource: gates in order, nothing done twice, nothing done too early, and the truth in status."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from billing_shards.errors import InvalidSpec
from billing_shards.kube import decide, names
from billing_shards.kube.model import (
    Apply,
    Behind,
    Create,
    Delete,
    EventType,
    Initialise,
    JobPhase,
    Refused,
    SecretState,
    ShardBacklog,
    Unreachable,
    Unusable,
)
from billing_shards.settings import Credentials
from tests.unit.kube_world import NOW, SERVED, World, condition, desired, document, empty, owning

DOWN = Unreachable(name="b", reason="DatabaseUnavailable", message="database b: not reachable, at b.example:3306")


def kinds(actions: Any) -> list[str]:
    return [a.manifest["kind"] if isinstance(a, (Apply, Create)) else type(a).__name__ for a in actions]


def test_from_nothing_to_ready() -> None:
    world = World(desired(), (Refused(name="a", message="denied"), Behind(name="b", revision=None)))
    plan = world.step()
    assert kinds(plan.actions) == ["ConfigMap", "Job", "Job"]
    assert condition(plan, "Progressing")["reason"] == "UpgradingSchema"
    assert condition(plan, "Ready")["status"] == "False"
    assert world.step().actions == ()
    world.database(empty("a"), empty("b"))
    plan = world.step()
    assert [a.manifest["metadata"]["name"] for a in plan.actions if isinstance(a, Create)] == ["main-placement"]
    plan = world.step()
    assert plan.actions == (Initialise(database="a", shards=(0, 1, 2, 3)), Initialise(database="b", shards=(4, 5, 6, 7)))
    plan = world.step()
    deployments = [a.key[1] for a in plan.actions if isinstance(a, Apply) and a.key[0] == "Deployment"]
    assert deployments == ["main-claimer-000-003", "main-claimer-004-007", "main-housekeeper"]
    assert condition(plan, "Ready")["status"] == "False"
    plan = world.settle()
    assert condition(plan, "Ready")["status"] == "True"
    assert plan.status["databasesReachable"] == "2/2"
    assert plan.again_seconds == decide.CALM_SECONDS


def test_a_settled_set_is_left_alone_and_its_status_stays_the_same() -> None:
    world = World(desired(), SERVED)
    first = world.settle()
    second = world.step()
    assert second.actions == ()
    assert second.status == first.status
    assert second.events == ()


def test_killed_between_two_databases_it_goes_on_with_the_recorded_choice() -> None:
    world = World(desired(), (empty("a"), empty("b")))
    world.step()
    world.database(owning("a", 0, 1, 2, 3))
    shards = {"from": 0, "to": 7, "database": "b"}
    world.edit(shardMap=[shards])
    plan = world.step()
    assert [a for a in plan.actions if isinstance(a, Initialise)] == [Initialise(database="b", shards=(4, 5, 6, 7))]


@pytest.mark.parametrize("silent", [DOWN, Refused(name="b", message="denied"), Behind(name="b", revision="0000")])
def test_no_owner_is_made_while_one_database_cannot_be_judged(silent: Any) -> None:
    world = World(desired(), (empty("a"), silent))
    for _ in range(3):
        plan = world.step()
        assert not [a for a in plan.actions if isinstance(a, Initialise)]
        assert world.observed.placement is None
        assert condition(plan, "Ready")["status"] == "False"
    assert not world.observed.deployments


def test_a_database_that_goes_down_later_changes_no_pod_and_is_named() -> None:
    world = World(desired(), SERVED)
    world.settle()
    world.database(DOWN)
    plan = world.step()
    assert plan.actions == ()
    assert condition(plan, "DatabasesReachable")["reason"] == "DatabaseUnavailable"
    assert "database b" in condition(plan, "Ready")["message"]
    assert plan.status["databasesReachable"] == "1/2"
    assert plan.status["owners"] == [{"from": 0, "to": 3, "database": "a"}]
    world.database(SERVED[1])
    assert condition(world.step(), "Ready")["status"] == "True"


def test_missing_secrets_are_named_by_field_and_pods_wait() -> None:
    world = World(desired(), SERVED)
    world.see(secrets={**world.observed.secrets, "app": None})
    world.database(*(Unreachable(name=name, reason="SecretMissing", message="x") for name in "ab"))
    plan = world.step()
    message = condition(plan, "Degraded")["message"]
    assert "spec.databases[0].credentialsSecret: Secret app is missing" in message
    assert "spec.databases[1].credentialsSecret: Secret app is missing" in message
    assert condition(plan, "Degraded")["reason"] == "SecretMissing"
    assert condition(plan, "DatabasesReachable")["status"] == "False"
    assert kinds(plan.actions) == ["ConfigMap"]


def test_a_secret_without_the_key_is_named() -> None:
    world = World(desired(), SERVED)
    incomplete = replace(world.observed.secrets["gateway"], keys=frozenset({"other"}))  # type: ignore[type-var]
    world.see(secrets={**world.observed.secrets, "gateway": incomplete})
    assert "spec.gateway.apiKeySecret: Secret gateway has no key apiKey" in condition(world.step(), "Ready")["message"]


def fail_job(world: World, message: str, finished_at: float) -> None:
    jobs = [replace(j, phase=JobPhase.FAILED, finished_at=finished_at, message=message) for j in world.observed.jobs]
    world.see(jobs=tuple(jobs))


def test_a_failed_upgrade_is_told_and_tried_again_after_a_while_or_when_its_secret_changes() -> None:
    world = World(desired(), (Refused(name="a", message="denied"), owning("b")))
    world.step()
    fail_job(world, "database a: access denied", NOW)
    plan = world.step()
    assert condition(plan, "Degraded")["reason"] == "SchemaUpgradeFailed"
    assert "spec.databases[0].schemaSecret" in condition(plan, "Degraded")["message"]
    assert "database a: access denied" in condition(plan, "Ready")["message"]
    assert plan.actions == ()
    (old,) = world.observed.jobs
    world.see(secrets={**world.observed.secrets, "owner": replace(world.observed.secrets["owner"], version="9")})  # type: ignore[type-var]
    plan = world.step()
    assert Delete(kind="Job", name=old.name) in plan.actions
    (new,) = world.observed.jobs
    assert new.name != old.name
    fail_job(world, "again", world.now)
    world.now += decide.JOB_RETRY_SECONDS
    assert world.step().actions == (Delete(kind="Job", name=new.name),)
    assert kinds(world.step().actions) == ["Job"]


def test_an_upgrade_that_cannot_start_is_told() -> None:
    world = World(desired(), (Refused(name="a", message="denied"), owning("b")))
    world.step()
    world.see(jobs=tuple(replace(job, message="pod x: ErrImagePull") for job in world.observed.jobs))
    degraded = condition(world.step(), "Degraded")
    assert degraded["reason"] == "SchemaUpgradeStuck"
    assert "ErrImagePull" in degraded["message"]


def test_a_newer_schema_or_another_sets_database_stops_everything_for_this_set() -> None:
    world = World(desired(), SERVED)
    world.settle()
    world.database(Unusable(name="b", reason="WrongDatabase", message="database b: was set up as 'x' of 'other'"))
    world.edit(claimer={"shardsPerDeployment": 8})
    plan = world.step()
    assert kinds(plan.actions) == ["ConfigMap"]
    assert condition(plan, "Degraded")["reason"] == "WrongDatabase"


def test_an_edited_map_is_a_pending_plan_and_nothing_else() -> None:
    world = World(desired(), SERVED)
    world.settle()
    before = dict(world.manifests)
    world.edit(shardMap=[{"from": 0, "to": 1, "database": "a"}, {"from": 2, "to": 7, "database": "b"}])
    plan = world.step()
    assert plan.status["pendingPlan"]["moves"] == [{"from": 2, "to": 3, "source": "a", "target": "b"}]
    assert plan.status["pendingPlan"]["shards"] == 2
    assert not [a for a in plan.actions if not isinstance(a, Apply)]
    assert world.manifests == before
    assert condition(plan, "Progressing")["reason"] == "PlanPending"
    assert condition(plan, "Progressing")["status"] == "False"
    assert condition(plan, "Ready")["status"] == "True"
    assert condition(plan, "Ready")["observedGeneration"] == 2
    assert [event.reason for event in plan.events] == ["PlanPending"]
    assert world.step().events == ()
    world.database(DOWN)
    assert world.step().status["pendingPlan"] == plan.status["pendingPlan"]
    world.database(SERVED[1])
    assert "PlanPending" not in [event.reason for event in world.step().events]


def test_pods_are_told_the_owners_as_the_fences_have_them() -> None:
    world = World(desired(), (owning("a", 0, 1, 2, 3, 4, 5), owning("b", 6, 7)))
    plan = world.settle()
    config = json.loads(world.manifests["ConfigMap", "main-config"]["data"]["shardset.json"])
    assert config["spec"]["shardMap"] == [{"from": 0, "to": 5, "database": "a"}, {"from": 6, "to": 7, "database": "b"}]
    assert config["name"] == "main"
    assert "pendingPlan" in plan.status or plan.status["owners"] == config["spec"]["shardMap"]


def test_without_a_map_the_fewest_shards_would_move_to_a_new_database() -> None:
    databases = [*document()["databases"], {**document()["databases"][0], "name": "c", "host": "c.example"}]
    world = World(desired(), SERVED)
    world.settle()
    world.edit(databases=databases)
    world.database(empty("c"))
    plan = world.settle()
    assert plan.status["pendingPlan"]["shards"] == 2
    assert {move["target"] for move in plan.status["pendingPlan"]["moves"]} == {"c"}
    assert world.observed.databases[2] == owning("c")


def test_pausing_reaches_pods_by_the_config_map_and_restarts_none() -> None:
    world = World(desired(), SERVED)
    world.settle()
    world.edit(paused=True)
    plan = world.step()
    assert kinds(plan.actions) == ["ConfigMap"]
    assert '"paused": true' in world.manifests["ConfigMap", "main-config"]["data"]["shardset.json"]


def test_a_changed_setting_rolls_the_pods_and_the_set_is_not_ready_before_they_are() -> None:
    world = World(desired(), SERVED)
    world.settle()
    world.edit(retry={"attemptsMax": 3})
    plan = world.step()
    assert kinds(plan.actions) == ["ConfigMap", "Deployment", "Deployment", "Deployment"]
    assert condition(plan, "Ready") | {"lastTransitionTime": None} == {
        "type": "Ready",
        "status": "False",
        "reason": "RollingOut",
        "message": condition(plan, "Ready")["message"],
        "observedGeneration": 2,
        "lastTransitionTime": None,
    }


def test_what_somebody_else_changed_is_put_back() -> None:
    world = World(desired(), SERVED)
    world.settle()
    changed = {n: replace(d, version="7") for n, d in world.observed.deployments.items() if n == "main-housekeeper"}
    world.see(deployments={**world.observed.deployments, **changed})
    assert [a.key[1] for a in world.step().actions if isinstance(a, Apply)] == ["main-housekeeper"]


def test_other_ranges_replace_the_old_deployments() -> None:
    world = World(desired(), SERVED)
    world.settle()
    world.edit(claimer={"shardsPerDeployment": 8, "maxReplicas": 1})
    world.settle()
    assert set(world.observed.deployments) == {"main-claimer-000-007", "main-housekeeper"}
    assert [key for key in world.observed.objects if key[0] == "PodDisruptionBudget"] == []


def test_webhooks_are_led_to_the_housekeeper_where_they_are_wanted() -> None:
    world = World(desired(), SERVED)
    world.settle()
    key = ("Service", "webhooks-main")
    assert key not in world.observed.objects
    world.edit(gateway={"url": "http://provider", "webhookSecret": {"name": "hooks"}})
    world.see(secrets={**world.observed.secrets, "hooks": SecretState(version="1", keys=frozenset({"webhookSecrets"}))})
    plan = world.step()
    (service,) = [a.manifest for a in plan.actions if isinstance(a, Apply) and a.key == key]
    (pod,) = [a.manifest["spec"]["template"] for a in plan.actions if isinstance(a, Apply) and a.key[1] == "main-housekeeper"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert {"name": "webhooks", "containerPort": 9465} in pod["spec"]["containers"][0]["ports"]
    world.settle()
    assert key in world.observed.objects
    world.edit(gateway={"url": "http://provider"})
    world.settle()
    assert key not in world.observed.objects


def test_a_services_name_holds_no_dot() -> None:
    assert names.webhooks("main") == "webhooks-main"
    assert names.webhooks("2.main").startswith("webhooks-2-main-")
    assert names.webhooks("a.b") != names.webhooks("a-b")


def test_late_jobs_get_one_more_pod_and_only_where_they_are_late() -> None:
    world = World(desired(), SERVED)
    world.settle()
    world.database(owning("b", 4, 5, 6, 7, backlog={5: ShardBacklog(ready=1234, oldest_seconds=901.0)}))
    plan = world.step()
    replicas = {name: state.replicas for name, state in world.observed.deployments.items()}
    assert replicas == {"main-claimer-000-003": 1, "main-claimer-004-007": 2, "main-housekeeper": 1}
    assert plan.status["backlog"] == 1300
    assert plan.status["oldestDueSeconds"] == 910
    assert [event.reason for event in plan.events] == ["Scaled"]


def test_one_pod_of_a_growing_deployment_is_enough_to_stay_ready() -> None:
    world = World(desired(), SERVED)
    world.settle()
    world.database(owning("b", 4, 5, 6, 7, backlog={5: ShardBacklog(ready=1, oldest_seconds=901.0)}))
    world.step()
    states = world.observed.deployments
    growing = replace(states["main-claimer-004-007"], ready=1, rolled_out=True)
    world.see(deployments={**states, "main-claimer-004-007": growing})
    assert condition(world.step(), "Ready")["status"] == "True"


def test_pods_that_fail_are_a_problem_not_progress() -> None:
    world = World(desired(), SERVED)
    world.settle()
    states = world.observed.deployments
    broken = replace(states["main-housekeeper"], ready=0, trouble="pod x: CrashLoopBackOff")
    world.see(deployments={**states, "main-housekeeper": broken})
    plan = world.step()
    assert condition(plan, "Degraded")["reason"] == "PodsNotReady"
    assert "CrashLoopBackOff" in condition(plan, "Ready")["message"]
    assert [(event.type, event.reason) for event in plan.events] == [(EventType.WARNING, "PodsNotReady")]


def test_a_spec_that_is_wrong_says_so_and_changes_nothing() -> None:
    world = World(desired(), SERVED)
    ready = world.settle()
    wrong = replace(world.desired, generation=5, spec=InvalidSpec("spec.shardMap[1]", "overlaps"))
    plan = decide.refuse(wrong, InvalidSpec("spec.shardMap[1]", "overlaps"), world.memory, NOW)
    assert plan.actions == ()
    assert condition(plan, "Ready")["status"] == "False"
    assert condition(plan, "SpecValid") | {"lastTransitionTime": None} == {
        "type": "SpecValid",
        "status": "False",
        "reason": "InvalidSpec",
        "message": "spec.shardMap[1]: overlaps",
        "observedGeneration": 5,
        "lastTransitionTime": None,
    }
    assert plan.status["owners"] == ready.status["owners"]


def test_taking_a_database_off_the_list_that_owns_shards_is_refused() -> None:
    world = World(desired(), SERVED)
    world.settle()
    world.edit(databases=document()["databases"][:1])
    world.see(databases=(SERVED[0],))
    before = dict(world.manifests)
    plan = world.step()
    assert condition(plan, "SpecValid")["reason"] == "DatabaseInUse"
    assert plan.actions == ()
    assert world.manifests == before


def test_transition_times_change_only_with_the_status() -> None:
    world = World(desired(), SERVED)
    first = condition(world.settle(), "Ready")["lastTransitionTime"]
    world.now += 3600
    world.edit(paused=True)
    world.step()
    assert condition(world.step(), "Ready")["lastTransitionTime"] == first
    world.database(DOWN)
    assert condition(world.step(), "Ready")["lastTransitionTime"] != first


def test_secrets_never_reach_a_manifest() -> None:
    assert "password" not in repr(Credentials(username="u", password="hunter2"))
    world = World(desired(), (Refused(name="a", message="denied"), Behind(name="b", revision=None)))
    world.step()
    job = next(manifest for (kind, _), manifest in world.manifests.items() if kind == "Job")
    mounted = {v["secret"]["secretName"] for v in job["spec"]["template"]["spec"]["volumes"] if "secret" in v}
    assert mounted == {"app", "owner", "ca"}
    world.database(*SERVED)
    world.settle()
    for (kind, name), manifest in world.manifests.items():
        if kind == "Deployment":
            volumes = manifest["spec"]["template"]["spec"]["volumes"]
            assert {v["secret"]["secretName"] for v in volumes if "secret" in v} == {"app", "ca", "gateway"}, name
            assert "env" in manifest["spec"]["template"]["spec"]["containers"][0]
            assert "secretKeyRef" not in json.dumps(manifest)


def test_pods_are_restricted() -> None:
    world = World(desired(), (Behind(name="a", revision=None), Behind(name="b", revision=None)))
    world.step()
    world.database(*SERVED)
    world.settle()
    pods = [m["spec"]["template"]["spec"] for (kind, _), m in world.manifests.items() if kind in ("Deployment", "Job")]
    assert len(pods) == 5
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not [mount for mount in container["volumeMounts"] if "subPath" in mount]


def test_longest_names_fit() -> None:
    name = names.schema_job("s" * 40, "d" * 63, "01234567")
    assert len(name) <= 63
    assert name.endswith("-01234567")
    assert len(names.claimer("s" * 40, 240, 255)) <= 63
