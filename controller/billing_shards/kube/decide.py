"""What to do about one BillingShardSet, given all that was seen. Pure: the same look gives the same plan.

The order is a chain of gates, each judged from what *is*, never from what was done before: Secrets, the ConfigMap, a schema
upgrade for each database, owners of the shards, pods. A gate that is shut stops what comes after it for this resource, says
why in a condition, and is judged anew at the next look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from billing_shards.errors import InvalidSpec
from billing_shards.kube import manifests, names, ownership, scale, status
from billing_shards.kube.model import (
    Action,
    Apply,
    Behind,
    Create,
    DatabaseState,
    Delete,
    DeploymentState,
    Desired,
    Event,
    EventType,
    Finding,
    JobPhase,
    JobState,
    Key,
    Memory,
    ObjectState,
    Observed,
    Placement,
    Plan,
    Refused,
    Release,
    ScaleMemory,
    Step,
    Unreachable,
    Unusable,
    Usable,
)
from billing_shards.settings import DatabaseSpec, ShardSetSpec
from billing_shards.shards.map import ShardMap, place

SOON_SECONDS = 0.3
"""After something was done: to see what came of it."""
BUSY_SECONDS = 2.0
TROUBLED_SECONDS = 5.0
CALM_SECONDS = 15.0
JOB_RETRY_SECONDS = 60.0


def reconcile(desired: Desired, spec: ShardSetSpec, observed: Observed, release: Release, memory: Memory, now: float) -> Plan:
    """The next steps and the status. `now` in seconds since 1970."""
    asked = [ShardMap.from_spec(spec).database_of(shard) for shard in range(spec.shard_count)]
    owned = ownership.judge(observed.databases, observed.placement, asked, observed.shard_map)
    secrets = _secrets(spec, observed)
    schemas = _schemas(desired, spec, observed, release, now)
    owning = _owners(desired, owned, observed)
    open_gate = not secrets.problems and not any(
        isinstance(database, (Refused, Behind, Unusable)) for database in observed.databases
    )
    pods, scales = Step(), memory.scale
    if open_gate and isinstance(owned, (ownership.Owned, ownership.PartlySeen)):
        pods, scales = _pods(desired, spec, observed, release, memory, now)
    config = _config(desired, spec, owned, observed, memory)
    steps = [secrets, config, schemas, owning, pods]
    plan = _pending(spec, owned, observed.shard_map)
    problems = [problem for step in steps for problem in step.problems]
    progress = [doing for step in steps for doing in step.progress]
    after = status.build(
        desired,
        observed.databases,
        problems=problems,
        progress=progress,
        in_use=next((problem for problem in problems if problem.reason == "DatabaseInUse"), None),
        plan=plan,
        deployments={n: d for n, d in observed.deployments.items() if n != names.housekeeper(desired.name)},
        now=now,
    )
    actions = tuple(action for step in steps for action in step.actions)
    return Plan(
        actions=actions,
        status=after,
        events=status.events(desired.status, after) + _scalings(observed, actions),
        memory=replace(memory, scale=scales),
        again_seconds=_again(actions, problems, progress),
    )


def _again(actions: Sequence[Action], problems: Sequence[Finding], progress: Sequence[Finding]) -> float:
    if actions:
        return SOON_SECONDS
    if progress:
        return BUSY_SECONDS
    return TROUBLED_SECONDS if problems else CALM_SECONDS


def refuse(desired: Desired, error: InvalidSpec, memory: Memory, now: float) -> Plan:
    """The answer to a spec that breaks a rule: say so, and leave everything as it is."""
    after = status.invalid(desired, error, now)
    events = status.events(desired.status, after)
    return Plan(actions=(), status=after, events=events, memory=memory, again_seconds=CALM_SECONDS)


def _secrets(spec: ShardSetSpec, observed: Observed) -> Step:
    uses = manifests.application_secrets(spec)
    uses += [use for at, database in enumerate(spec.databases) for use in manifests.schema_secrets(database, at)]
    problems = []
    for use in uses:
        secret = observed.secrets.get(use.secret)
        if secret is None:
            problems.append(Finding(reason="SecretMissing", message=f"{use.field}: Secret {use.secret} is missing"))
        elif use.key not in secret.keys:
            message = f"{use.field}: Secret {use.secret} has no key {use.key}"
            problems.append(Finding(reason="SecretIncomplete", message=message))
    return Step(problems=tuple(dict.fromkeys(problems)))


def _config(desired: Desired, spec: ShardSetSpec, owned: ownership.Ownership, observed: Observed, memory: Memory) -> Step:
    """Pods are told who owns what, not who shall own it one day. A map that is not understood is left as it is."""
    key = ("ConfigMap", names.config_map(desired.name))
    if isinstance(owned, ownership.Broken) and key in observed.objects:
        return Step()
    owners: Sequence[str] | None = observed.shard_map if observed.placement and observed.placement.complete else None
    if isinstance(owned, ownership.Owned):
        owners = owned.owners
    elif isinstance(owned, ownership.PartlySeen) and owners is not None:
        owners = [owned.owners.get(shard, known) for shard, known in enumerate(owners)]
    wanted = manifests.applied(manifests.config_map(desired, spec, owners))
    return Step(actions=_unless_there(wanted, observed.objects.get(key), memory))


def _schemas(desired: Desired, spec: ShardSetSpec, observed: Observed, release: Release, now: float) -> Step:
    actions: list[Action] = []
    problems: list[Finding] = []
    progress: list[Finding] = []
    for at, (database, state) in enumerate(zip(spec.databases, observed.databases, strict=True)):
        manifest = manifests.schema_job(desired, release, database, at, observed.secrets)
        name = manifest["metadata"]["name"]
        old = manifests.superseded(observed.jobs, database.name, name)
        actions += [Delete(kind="Job", name=job.name) for job in old]
        match state:
            case Unreachable(reason=reason, message=message) | Unusable(reason=reason, message=message):
                if reason != "SecretMissing":  # told by `_secrets`, with the field
                    problems.append(Finding(reason=reason, message=message))
            case Refused() | Behind() if _can_upgrade(database, at, observed):
                job = next((job for job in observed.jobs if job.name == name), None)
                step = _upgrade(database, at, state, job, Create(manifest=manifest), now)
                actions += step.actions
                problems += step.problems
                progress += step.progress
            case Refused() | Behind() | Usable():
                pass
    return Step(actions=tuple(actions), problems=tuple(problems), progress=tuple(progress))


def _can_upgrade(database: DatabaseSpec, at: int, observed: Observed) -> bool:
    uses = manifests.database_secrets(database, at) + manifests.schema_secrets(database, at)
    return all(use.key in secret.keys if (secret := observed.secrets.get(use.secret)) else False for use in uses)


def _upgrade(database: DatabaseSpec, at: int, state: Refused | Behind, job: JobState | None, create: Create, now: float) -> Step:
    """A failed Job is reported, and run again after a while, or at once when its Secrets change (its name does then)."""
    name = create.manifest["metadata"]["name"]
    under_way = Finding(reason="UpgradingSchema", message=f"database {database.name}: schema upgrade by Job {name}")
    if job is None:
        return Step(actions=(create,), progress=(under_way,))
    if job.phase is JobPhase.RUNNING:
        if not job.message:
            return Step(progress=(under_way,))
        stuck = f"database {database.name}: Job {name} does not start: {job.message}"
        return Step(problems=(Finding(reason="SchemaUpgradeStuck", message=stuck),))
    age = now - (job.finished_at or now)
    again: tuple[Action, ...] = (Delete(kind="Job", name=name),) if age >= JOB_RETRY_SECONDS else ()
    if job.phase is JobPhase.FAILED:
        words = f"database {database.name}: schema upgrade failed (Job {name}, spec.databases[{at}].schemaSecret): "
        words += job.message or f"see kubectl logs job/{name}"
        return Step(actions=again, problems=(Finding(reason="SchemaUpgradeFailed", message=words),))
    if age < BUSY_SECONDS * 2:  # we looked at the database before it ended
        return Step(progress=(under_way,))
    found = state.message if isinstance(state, Refused) else f"its schema has revision {state.revision}"
    words = f"database {database.name}: Job {name} succeeded, yet {found}"
    return Step(actions=again, problems=(Finding(reason="SchemaUpgradeIneffective", message=words),))


def _owners(desired: Desired, owned: ownership.Ownership, observed: Observed) -> Step:
    placing = Finding(reason="PlacingShards", message="shards are being given to the databases")
    match owned:
        case ownership.Broken(reason=reason, message=message):
            return Step(problems=(Finding(reason=reason, message=message),))
        case ownership.Choosing(databases=chosen):
            record = manifests.placement_map(desired, Placement(databases=chosen, complete=False))
            return Step(actions=(Create(manifest=record),), progress=(placing,))
        case ownership.Initialising(steps=steps):
            return Step(actions=steps, progress=(placing,))
        case ownership.Owned(owners=owners, joining=joining):
            actions: tuple[Action, ...] = joining
            if observed.placement is None or not observed.placement.complete:
                first = observed.placement.databases if observed.placement else owners
                record = manifests.placement_map(desired, Placement(databases=first, complete=True))
                actions += (manifests.applied(record),)
            return Step(actions=actions, progress=(placing,) if actions else ())
        case ownership.NotReady():
            return Step(progress=_waiting(observed.databases))
        case ownership.PartlySeen():
            return Step()


def _waiting(databases: Sequence[DatabaseState]) -> tuple[Finding, ...]:
    """Unready databases whose own step says nothing (their Secrets are missing) must still keep the set unready."""
    silent = [database.name for database in databases if not isinstance(database, Usable)]
    message = f"shards are placed when every database is ready; not yet: {', '.join(silent)}"
    return (Finding(reason="WaitingForDatabases", message=message),)


def _pods(
    desired: Desired, spec: ShardSetSpec, observed: Observed, release: Release, memory: Memory, now: float
) -> tuple[Step, Mapping[str, ScaleMemory]]:
    loads = _loads(observed.databases)
    wanted: list[Apply] = []
    scales: dict[str, ScaleMemory] = {}
    least: dict[str, int] = {names.housekeeper(desired.name): 1}
    for shards in manifests.ranges_of(spec):
        name = names.claimer(desired.name, *shards)
        there = observed.deployments.get(name)
        replicas, scales[name] = scale.decide(
            there.replicas if there else None,
            _load(loads, observed, shards),
            spec.claimer,
            memory.scale.get(name),
            now,
            paused=spec.paused,
        )
        least[name] = min(replicas, max(spec.claimer.min_replicas, 1))
        wanted.append(manifests.applied(manifests.claimer(desired, spec, release, shards, replicas)))
        if spec.claimer.max_replicas > 1:
            wanted.append(manifests.applied(manifests.disruption_budget(desired, shards)))
    wanted.append(manifests.applied(manifests.housekeeper(desired, spec, release)))
    if manifests.takes_webhooks(spec):
        wanted.append(manifests.applied(manifests.webhook_service(desired)))
    there_now: dict[Key, ObjectState] = {("Deployment", name): state for name, state in observed.deployments.items()}
    there_now |= {key: state for key, state in observed.objects.items() if key[0] in {"PodDisruptionBudget", "Service"}}
    actions: list[Action] = []
    for apply in wanted:
        actions += _unless_there(apply, there_now.get(apply.key), memory)
    keep = {apply.key for apply in wanted}
    actions += [Delete(kind=kind, name=name) for kind, name in sorted(there_now) if (kind, name) not in keep]
    fresh = {apply.key[1]: apply.digest for apply in wanted if apply.key[0] == "Deployment"}
    problems, progress = _rollout(observed.deployments, fresh, least)
    return Step(actions=tuple(actions), problems=problems, progress=progress), scales


def _unless_there(wanted: Apply, state: ObjectState | None, memory: Memory) -> tuple[Action, ...]:
    """Apply what differs from what we applied last, or was changed by somebody else since."""
    same = state is not None and state.digest == wanted.digest and memory.applied.get(wanted.key) == state.version
    return () if same else (wanted,)


def _loads(databases: Sequence[DatabaseState]) -> dict[int, scale.Load]:
    loads: dict[int, scale.Load] = {}
    for database in databases:
        if isinstance(database, Usable):
            for shard, due in database.backlog.items():
                loads[shard] = scale.Load(ready=due.ready, oldest_seconds=due.oldest_seconds)
    return loads


def _load(loads: Mapping[int, scale.Load], observed: Observed, shards: tuple[int, int]) -> scale.Load | None:
    """The load of a range; None where the owner of one of its shards cannot be asked."""
    asked = [database for database in observed.databases if isinstance(database, Usable)]
    owners, _ = ownership.owners_of(asked)
    ask = {database.name for database in asked}
    span = range(shards[0], shards[1] + 1)
    if any(owners.get(shard) not in ask for shard in span):
        return None
    due = [loads[shard] for shard in span if shard in loads]
    return scale.Load(
        ready=sum(load.ready for load in due),
        oldest_seconds=max((load.oldest_seconds for load in due if load.ready), default=0.0),
    )


def _rollout(
    there: Mapping[str, DeploymentState], wanted: Mapping[str, str], least: Mapping[str, int]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Deployments that keep the set from being ready: those in trouble, and those still rolling out."""
    problems: list[Finding] = []
    progress: list[Finding] = []
    for name, digest in wanted.items():
        state = there.get(name)
        if state is None or state.digest != digest:
            progress.append(Finding(reason="RollingOut", message=f"Deployment {name} is being applied"))
            continue
        pods = f"Deployment {name}: {state.ready} of {state.replicas} pods ready"
        if state.trouble:
            pods += f" ({state.trouble})"
        if state.stuck or (state.ready < least[name] and state.rolled_out):
            problems.append(Finding(reason="PodsNotReady", message=pods))
        elif state.ready < least[name] or not state.rolled_out:
            progress.append(Finding(reason="RollingOut", message=pods))
    return tuple(problems), tuple(progress)


def _pending(spec: ShardSetSpec, owned: ownership.Ownership, last_known: Sequence[str] | None) -> tuple[ownership.Move, ...]:
    """What the spec's map would move. Without one: by weight, moving as few shards as it can."""
    owners: Sequence[str] = ()
    if isinstance(owned, ownership.Owned):
        owners = owned.owners
    elif isinstance(owned, ownership.PartlySeen) and last_known is not None:
        owners = [owned.owners.get(shard, known) for shard, known in enumerate(last_known)]
    if len(owners) != spec.shard_count:
        return ()
    wanted = ShardMap.from_spec(spec)
    if spec.shard_map is None:
        wanted = place(spec.shard_count, spec.databases, dict(enumerate(owners)))
    return ownership.pending_moves(owners, [wanted.database_of(shard) for shard in range(spec.shard_count)])


def _scalings(observed: Observed, actions: Sequence[Action]) -> tuple[Event, ...]:
    told = []
    for action in actions:
        if isinstance(action, Apply) and action.key[0] == "Deployment" and action.key[1] in observed.deployments:
            before, after = observed.deployments[action.key[1]].replicas, action.manifest["spec"]["replicas"]
            if before != after:
                message = f"Deployment {action.key[1]} from {before} to {after} pods, by the age of its oldest due job"
                told.append(Event(type=EventType.NORMAL, reason="Scaled", message=message))
    return tuple(told)
