"""What the operator says of a set that is not ready, when it looks again, and where the limits of its rules are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from billing_shards.kube import decide
from billing_shards.kube.model import (
    Apply,
    Behind,
    Create,
    Delete,
    JobPhase,
    Plan,
    Refused,
    SecretState,
    ShardBacklog,
    Unreachable,
)
from tests.unit.kube_world import SECRETS, SERVED, World, condition, desired, empty, owning

DOWN = Unreachable(name="b", reason="DatabaseUnavailable", message="database b: not reachable")
LATE = ShardBacklog(ready=9, oldest_seconds=901.0)


def applied(plan: Plan, kind: str) -> list[str]:
    return [action.key[1] for action in plan.actions if isinstance(action, Apply) and action.key[0] == kind]


def settled(**changes: Any) -> World:
    world = World(desired(**changes), SERVED)
    world.settle()
    return world


def test_when_it_looks_again() -> None:
    waits = (decide.SOON_SECONDS, decide.BUSY_SECONDS, decide.TROUBLED_SECONDS, decide.CALM_SECONDS, decide.JOB_RETRY_SECONDS)
    assert waits == (0.3, 2.0, 5.0, 15.0, 60.0)
    world = World(desired(), SERVED)
    assert world.step().again_seconds == 0.3
    while (plan := world.step()).actions:
        pass
    assert (plan.again_seconds, condition(plan, "Progressing")["reason"]) == (2.0, "RollingOut")
    world.settle()
    world.database(DOWN)
    assert world.step().again_seconds == 5.0


# Schema upgrades


def upgraded(state: Refused | Behind, seconds_ago: float) -> Plan:
    """The look after a Job that says it succeeded, while the database looks as before."""
    world = World(desired(), (state, owning("b")))
    world.step()
    finished: dict[str, Any] = {"phase": JobPhase.SUCCEEDED, "finished_at": world.now - seconds_ago}
    world.see(jobs=tuple(replace(job, **finished) for job in world.observed.jobs))
    return world.step()


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (Behind(name="a", revision="0000"), "succeeded, yet its schema has revision 0000"),
        (Refused(name="a", message="database a: access denied"), "succeeded, yet database a: access denied"),
    ],
)
def test_an_upgrade_that_changed_nothing_is_told_once_the_database_was_looked_at_after_it(
    state: Refused | Behind, found: str
) -> None:
    soon = upgraded(state, 3.9)
    assert condition(soon, "Progressing")["reason"] == "UpgradingSchema"
    assert condition(soon, "Degraded")["status"] == "False"
    late = upgraded(state, 4.0)
    assert condition(late, "Degraded")["reason"] == "SchemaUpgradeIneffective"
    assert found in condition(late, "Degraded")["message"]


@pytest.mark.parametrize(
    "owner", [None, SecretState(version="2", keys=frozenset({"username"}))], ids=["missing", "without a key"]
)
def test_no_upgrade_begins_without_every_key_of_its_secrets(owner: SecretState | None) -> None:
    world = World(desired(), (Behind(name="a", revision=None), Behind(name="b", revision=None)))
    world.see(secrets={**SECRETS, "owner": owner})
    assert not [action for action in world.step().actions if isinstance(action, Create)]


# Secrets


def test_a_schema_secret_is_missed_before_it_is_needed() -> None:
    world = World(desired(), SERVED)
    world.see(secrets={**SECRETS, "owner": None})
    degraded = condition(world.step(), "Degraded")
    assert degraded["reason"] == "SecretMissing"
    assert "spec.databases[1].schemaSecret: Secret owner is missing" in degraded["message"]


def test_a_secret_without_its_key_is_incomplete_and_its_pods_wait() -> None:
    world = World(desired(), SERVED)
    world.see(secrets={**SECRETS, "gateway": SecretState(version="4", keys=frozenset())})
    for _ in range(3):
        plan = world.step()
        assert condition(plan, "Degraded")["reason"] == "SecretIncomplete"
        assert applied(plan, "Deployment") == []


def test_a_missing_secret_is_not_told_again_for_the_database_that_needs_it() -> None:
    world = World(desired(), SERVED)
    world.see(secrets={**SECRETS, "app": None})
    world.database(*(Unreachable(name=name, reason="SecretMissing", message="told twice") for name in "ab"))
    assert "told twice" not in condition(world.step(), "Degraded")["message"]


# Owners


def test_shards_are_placed_when_every_database_is_ready() -> None:
    world = World(desired(), (empty("a"), DOWN))
    waiting = condition(world.step(), "Progressing")
    assert waiting["reason"] == "WaitingForDatabases"
    assert waiting["message"].endswith("not yet: b")
    world.database(empty("b"))
    assert condition(world.step(), "Progressing")["reason"] == "PlacingShards"


def test_pods_are_told_what_is_seen_before_what_is_remembered() -> None:
    world = settled()
    world.database(owning("a", 0, 1, 2, 3, 4), DOWN)
    world.step()
    assert world.observed.shard_map == (*"aaaaabbb",)


def test_no_pod_is_rolled_while_a_database_waits_for_its_upgrade() -> None:
    world = settled()
    world.database(Behind(name="b", revision="0000"))
    world.edit(retry={"attemptsMax": 3})
    assert applied(world.step(), "Deployment") == []


# Pods


def test_claimers_are_counted_without_the_housekeeper() -> None:
    assert settled().step().status["claimers"] == {"deployments": 2, "replicas": 2, "ready": 2}


def test_a_deployment_that_may_grow_has_a_disruption_budget() -> None:
    budgets = [
        key for key in settled(claimer={"shardsPerDeployment": 4, "maxReplicas": 2}).observed.objects if "Budget" in key[0]
    ]
    assert len(budgets) == 2


def test_what_is_wanted_no_more_is_deleted_in_order() -> None:
    world = settled()
    world.see(deployments=dict(reversed(list(world.observed.deployments.items()))))
    world.edit(claimer={"shardsPerDeployment": 8})
    deleted = [(action.kind, action.name) for action in world.step().actions if isinstance(action, Delete)]
    assert len(deleted) == 4
    assert deleted == sorted(deleted)


@pytest.mark.parametrize("shard", [4, 7])
def test_one_late_shard_of_a_range_is_enough_for_another_pod(shard: int) -> None:
    world = settled()
    world.database(owning("b", 4, 5, 6, 7, backlog={shard: LATE, 5: replace(LATE, oldest_seconds=1.0)}))
    world.step()
    assert world.observed.deployments["main-claimer-004-007"].replicas == 2


def test_a_range_that_is_seen_in_part_keeps_its_pods() -> None:
    world = settled(claimer={"shardsPerDeployment": 8})
    world.database(owning("a", 0, 1, 2, 3, backlog={0: LATE}), DOWN)
    world.step()
    assert world.observed.deployments["main-claimer-000-007"].replicas == 1


def test_as_many_pods_as_the_least_that_was_asked_for_must_be_ready() -> None:
    world = settled(claimer={"shardsPerDeployment": 8, "minReplicas": 2})
    one = replace(world.observed.deployments["main-claimer-000-007"], ready=1)
    world.see(deployments={**world.observed.deployments, "main-claimer-000-007": one})
    degraded = condition(world.step(), "Degraded")
    assert (degraded["reason"], degraded["message"]) == ("PodsNotReady", "Deployment main-claimer-000-007: 1 of 2 pods ready")


def test_pods_of_an_older_template_are_still_being_replaced() -> None:
    world = settled()
    rolling = replace(world.observed.deployments["main-housekeeper"], rolled_out=False)
    world.see(deployments={**world.observed.deployments, "main-housekeeper": rolling})
    progressing = condition(world.step(), "Progressing")
    assert (progressing["reason"], progressing["message"]) == ("RollingOut", "Deployment main-housekeeper: 1 of 1 pods ready")


def test_a_deployment_that_is_being_applied_hides_no_other_in_trouble() -> None:
    world = settled()
    stuck = replace(world.observed.deployments["main-housekeeper"], ready=0, stuck=True)
    world.see(deployments={"main-housekeeper": stuck})
    assert condition(world.step(), "Degraded")["reason"] == "PodsNotReady"
