"""A small world for the operator's pure rules: a spec, what is seen of it, and the objects that a plan would leave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from billing_shards.kube import decide, manifests, names
from billing_shards.kube.model import (
    Apply,
    Create,
    DatabaseState,
    Delete,
    DeploymentState,
    Desired,
    Initialise,
    JobPhase,
    JobState,
    Memory,
    ObjectState,
    Observed,
    Placement,
    Plan,
    Release,
    SecretState,
    Usable,
)
from billing_shards.settings import parse_spec
from billing_shards.shards.model import Owner, OwnerState

NOW = 1_700_000_000.0
RELEASE = Release(image="billing-shards/claimer:1", revision="0001")


def document(**changes: Any) -> dict[str, Any]:
    databases = [
        {
            "name": name,
            "host": f"{name}.example",
            "credentialsSecret": {"name": "app"},
            "schemaSecret": {"name": "owner"},
            "tls": {"caSecret": {"name": "ca"}},
        }
        for name in ("a", "b")
    ]
    return {
        "shardCount": 8,
        "databases": databases,
        "claimer": {"shardsPerDeployment": 4},
        "gateway": {"url": "http://gateway", "apiKeySecret": {"name": "gateway"}},
        **changes,
    }


def desired(generation: int = 1, status: Mapping[str, Any] | None = None, **changes: Any) -> Desired:
    return Desired(
        namespace="ns",
        name="main",
        uid="u-1",
        generation=generation,
        spec=parse_spec(document(**changes)),
        status=status or {},
    )


SECRETS: dict[str, SecretState | None] = {
    "app": SecretState(version="1", keys=frozenset({"username", "password"})),
    "owner": SecretState(version="2", keys=frozenset({"username", "password"})),
    "ca": SecretState(version="3", keys=frozenset({"ca.crt"})),
    "gateway": SecretState(version="4", keys=frozenset({"apiKey"})),
}


def empty(name: str) -> Usable:
    return Usable(name=name, revision="0001", initialised=False, owners={}, backlog={})


def owning(name: str, *shards: int, **more: Any) -> Usable:
    owners = {shard: Owner(shard=shard, epoch=1, state=OwnerState.OWNER) for shard in shards}
    return Usable(name=name, revision="0001", initialised=True, owners=owners, backlog=more.get("backlog", {}))


SERVED: tuple[DatabaseState, ...] = (owning("a", 0, 1, 2, 3), owning("b", 4, 5, 6, 7))


class World:
    """What a cluster would be after the plans: advanced by `step`, changed by tests in between."""

    def __init__(self, wanted: Desired, databases: tuple[DatabaseState, ...]) -> None:
        self.desired = wanted
        self.now = NOW
        self.memory = Memory()
        self.observed = Observed(
            secrets=dict(SECRETS),
            databases=databases,
            placement=None,
            shard_map=None,
            jobs=(),
            deployments={},
            objects={},
        )
        self.manifests: dict[tuple[str, str], dict[str, Any]] = {}

    def see(self, **changes: Any) -> None:
        self.observed = replace(self.observed, **changes)

    def database(self, *states: DatabaseState) -> None:
        known = {state.name: state for state in self.observed.databases} | {state.name: state for state in states}
        self.see(databases=tuple(known.values()))

    def edit(self, **changes: Any) -> None:
        again = desired(self.desired.generation + 1, self.desired.status, **changes)
        self.desired = again

    def step(self) -> Plan:
        """Decide, do it, and remember the status."""
        spec = self.desired.spec
        assert not isinstance(spec, Exception)
        plan = decide.reconcile(self.desired, spec, self.observed, RELEASE, self.memory, self.now)
        applied = dict(plan.memory.applied)
        for action in plan.actions:
            match action:
                case Apply():
                    self.put(action)
                    applied[action.key] = "1"
                case Create(manifest=manifest):
                    self.create(manifest)
                case Delete():
                    self.drop(action)
                case Initialise(database=name, shards=shards):
                    self.database(owning(name, *shards))
        self.memory = replace(plan.memory, applied=applied)
        self.desired = replace(self.desired, status=plan.status)
        self.now += plan.again_seconds
        return plan

    def put(self, action: Apply) -> None:
        self.manifests[action.key] = action.manifest
        kind, name = action.key
        if kind == "Deployment":
            replicas = action.manifest["spec"]["replicas"]
            state = DeploymentState(digest=action.digest, version="1", replicas=replicas, ready=0, rolled_out=False, stuck=False)
            self.see(deployments={**self.observed.deployments, name: state})
            return
        self.see(objects={**self.observed.objects, action.key: ObjectState(digest=action.digest, version="1")})
        if name == names.placement("main"):
            self.create(action.manifest)
        if name == names.config_map("main"):
            self.see(shard_map=expanded(action.manifest))

    def create(self, manifest: dict[str, Any]) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self.manifests[kind, name] = manifest
        if kind == "Job":
            database = manifest["metadata"]["labels"][names.DATABASE_LABEL]
            self.see(jobs=(*self.observed.jobs, JobState(name=name, database=database, phase=JobPhase.RUNNING)))
        else:
            document = json.loads(manifest["data"]["placement.json"])
            databases = manifests.expand(document["ranges"])
            self.see(placement=Placement(databases=databases, complete=document["complete"]))

    def drop(self, action: Delete) -> None:
        self.manifests.pop((action.kind, action.name), None)
        self.see(
            jobs=tuple(job for job in self.observed.jobs if job.name != action.name),
            deployments={n: d for n, d in self.observed.deployments.items() if (action.kind, n) != ("Deployment", action.name)},
            objects={key: state for key, state in self.observed.objects.items() if key != (action.kind, action.name)},
        )

    def roll_out(self) -> None:
        """All pods become ready."""
        done = {n: replace(d, ready=d.replicas, rolled_out=True) for n, d in self.observed.deployments.items()}
        self.see(deployments=done)

    def settle(self) -> Plan:
        """Step until there is nothing left to do."""
        for _ in range(12):
            plan = self.step()
            self.roll_out()
            if not plan.actions and condition(plan, "Progressing")["status"] != "True":
                return plan
        raise AssertionError(f"never settles: {plan.actions}")


def expanded(manifest: Mapping[str, Any]) -> tuple[str, ...] | None:
    ranges = json.loads(manifest["data"]["shardset.json"])["spec"].get("shardMap")
    return manifests.expand(ranges) if ranges else None


def condition(plan: Plan, kind: str) -> dict[str, Any]:
    (found,) = [c for c in plan.status["conditions"] if c["type"] == kind]
    return dict(found)
