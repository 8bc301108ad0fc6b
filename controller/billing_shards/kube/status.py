"""The status of a BillingShardSet and the events that its changes make. Pure.

Every condition carries the generation it was judged by, so `kubectl wait` never takes an old `Ready` for a new spec. A status
that would say the same is the same, byte for byte: nothing is written then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from billing_shards.errors import InvalidSpec
from billing_shards.kube.manifests import owner_ranges
from billing_shards.kube.model import (
    Behind,
    DatabaseState,
    DeploymentState,
    Desired,
    Event,
    EventType,
    Finding,
    Refused,
    Unreachable,
    Unusable,
    Usable,
)
from billing_shards.kube.ownership import Move, owners_of, ranges, ranges_text

Status = dict[str, Any]
_MESSAGE_MAX = 4000
_DATABASE_MESSAGE_MAX = 1000
_TRUE, _FALSE, _UNKNOWN = "True", "False", "Unknown"


def invalid(desired: Desired, error: InvalidSpec, now: float) -> Status:
    """The spec cannot be acted upon; what was known of the databases is left as it was."""
    finding = Finding(reason="InvalidSpec", message=str(error))
    return _not_ready(desired, finding, now, spec_valid=finding)


def failed(desired: Desired, finding: Finding, now: float) -> Status:
    """Looking or acting failed (the API server refused, say): nothing is known to be ready."""
    return _not_ready(desired, finding, now, spec_valid=None)


def _not_ready(desired: Desired, finding: Finding, now: float, *, spec_valid: Finding | None) -> Status:
    judged: list[tuple[str, str, Finding]] = [
        ("Ready", _FALSE if spec_valid else _UNKNOWN, finding),
        ("Progressing", _FALSE, finding),
        ("Degraded", _TRUE, finding),
    ]
    if spec_valid is not None:
        judged.append(("SpecValid", _FALSE, spec_valid))
    conditions = _conditions(desired, judged, now)
    told = {condition["type"] for condition in conditions}
    kept = [condition for condition in desired.status.get("conditions", []) if condition["type"] not in told]
    return dict(desired.status) | {"observedGeneration": desired.generation, "conditions": [*conditions, *kept]}


def build(
    desired: Desired,
    databases: Sequence[DatabaseState],
    *,
    problems: Sequence[Finding],
    progress: Sequence[Finding],
    in_use: Finding | None,
    plan: Sequence[Move],
    deployments: Mapping[str, DeploymentState],
    now: float,
) -> Status:
    """The whole status after a look. `in_use`: what makes a spec that is well-formed wrong for the data that is there."""
    usable = [database for database in databases if isinstance(database, Usable)]
    owners, _ = owners_of(usable)
    backlog = [load for database in usable for load in database.backlog.values()]
    reached = sum(isinstance(database, (Usable, Behind, Unusable)) for database in databases)
    status: Status = {
        "observedGeneration": desired.generation,
        "conditions": _judge(desired, databases, problems, progress, in_use, plan, now),
        "databasesReachable": f"{reached}/{len(databases)}",
        "databases": [_database(database) for database in databases],
        "owners": _known_ranges(owners),
        "claimers": {
            "deployments": len(deployments),
            "replicas": sum(deployment.replicas for deployment in deployments.values()),
            "ready": sum(deployment.ready for deployment in deployments.values()),
        },
        "backlog": coarse(sum(load.ready for load in backlog)),
        "oldestDueSeconds": coarse(max((load.oldest_seconds for load in backlog if load.ready), default=0.0)),
    }
    if plan:
        status["pendingPlan"] = _plan(plan)
    return status


def _known_ranges(owners: Mapping[int, str]) -> list[dict[str, Any]]:
    """`owner_ranges` of a map with holes."""
    return [
        part | {"from": part["from"] + first, "to": part["to"] + first}
        for first, last in ranges(sorted(owners))
        for part in owner_ranges([owners[shard] for shard in range(first, last + 1)])
    ]


def coarse(value: float) -> int:
    """Two significant digits, upwards: a status that changes with every job would be written with every look."""
    whole = int(value) + (value > int(value))
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // step) * step


def _database(database: DatabaseState) -> dict[str, Any]:
    match database:
        case Usable():
            owned = ranges(sorted(s for s, name in owners_of([database])[0].items() if name == database.name))
            shown = [{"from": first, "to": last} for first, last in owned]
            return {"name": database.name, "reachable": True, "revision": database.revision, "shardsOwned": shown}
        case Behind():
            revision = {"revision": database.revision} if database.revision else {}
            return {"name": database.name, "reachable": True, "message": "waits for its schema upgrade"} | revision
        case Unusable():
            revision = {"revision": database.revision} if database.revision else {}
            return {"name": database.name, "reachable": True, "message": _cut(database.message)} | revision
        case Refused() | Unreachable():
            return {"name": database.name, "reachable": False, "message": _cut(database.message)}


def _cut(message: str, most: int = _DATABASE_MESSAGE_MAX) -> str:
    return message if len(message) <= most else message[: most - 1] + "…"


def _plan(plan: Sequence[Move]) -> dict[str, Any]:
    shards = sum(move.last - move.first + 1 for move in plan)
    moves = [{"from": m.first, "to": m.last, "source": m.source, "target": m.target} for m in plan]
    return {"moves": moves, "shards": shards, "message": _cut(plan_text(plan))}


def plan_text(plan: Sequence[Move]) -> str:
    """`128 shards would move: 0-127 from a to b; not acted upon`."""
    parts = [f"{ranges_text(range(m.first, m.last + 1))} from {m.source} to {m.target}" for m in plan[:8]]
    more = f" and {len(plan) - 8} more ranges" if len(plan) > len(parts) else ""
    shards = sum(move.last - move.first + 1 for move in plan)
    return f"{shards} shards would move: {', '.join(parts)}{more}; not acted upon, their data stays where it is"


def _judge(
    desired: Desired,
    databases: Sequence[DatabaseState],
    problems: Sequence[Finding],
    progress: Sequence[Finding],
    in_use: Finding | None,
    plan: Sequence[Move],
    now: float,
) -> list[dict[str, Any]]:
    degraded = _joined(problems)
    doing = _joined(progress)
    if doing is not None:
        progressing = (_TRUE, doing)
    elif degraded is not None:
        progressing = (_FALSE, Finding(reason="Blocked", message=degraded.message))
    elif plan:
        progressing = (_FALSE, Finding(reason="PlanPending", message=plan_text(plan)))
    else:
        progressing = (_FALSE, Finding(reason="Settled", message="nothing is left to do"))
    waits = degraded or doing
    ready = Finding(reason="Serving", message=f"all shards are served, generation {desired.generation}")
    fine = Finding(reason="AsExpected", message="nothing is wrong")
    valid = Finding(reason="Valid", message="every field is accepted")
    judged = [
        ("Ready", _FALSE if waits else _TRUE, waits or ready),
        ("Progressing", *progressing),
        ("Degraded", _TRUE if degraded else _FALSE, degraded or fine),
        ("SpecValid", _FALSE if in_use else _TRUE, in_use or valid),
        ("DatabasesReachable", *_reachable(databases)),
    ]
    return _conditions(desired, judged, now)


def _reachable(databases: Sequence[DatabaseState]) -> tuple[str, Finding]:
    silent = [database for database in databases if isinstance(database, (Unreachable, Refused))]
    if not silent:
        return _TRUE, Finding(reason="AllReachable", message=f"{len(databases)} of {len(databases)} databases answer")
    first = silent[0]
    reason = first.reason if isinstance(first, Unreachable) else "AccessDenied"
    return _FALSE, Finding(reason=reason, message=_cut("; ".join(d.message for d in silent), _MESSAGE_MAX))


def _joined(findings: Sequence[Finding]) -> Finding | None:
    """The first one's reason, everybody's words."""
    if not findings:
        return None
    words = list(dict.fromkeys(finding.message for finding in findings))
    return Finding(reason=findings[0].reason, message=_cut("; ".join(words), _MESSAGE_MAX))


def _conditions(desired: Desired, judged: Iterable[tuple[str, str, Finding]], now: float) -> list[dict[str, Any]]:
    before = {condition["type"]: condition for condition in desired.status.get("conditions", [])}
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = []
    for kind, status, finding in judged:
        old = before.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == status else moment
        conditions.append(
            {
                "type": kind,
                "status": status,
                "reason": finding.reason,
                "message": finding.message,
                "observedGeneration": desired.generation,
                "lastTransitionTime": since,
            }
        )
    return conditions


# Which turn of a condition is worth an event, and how grave it is. Ready and Degraded tell of the same troubles twice, so
# only Degraded speaks of them.
_TOLD = {
    ("Ready", _TRUE): EventType.NORMAL,
    ("Degraded", _TRUE): EventType.WARNING,
    ("SpecValid", _FALSE): EventType.WARNING,
}


def events(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Event, ...]:
    """What happened between two statuses: one event for each turn of a condition or change of its reason, none otherwise."""
    old = {condition["type"]: (condition["status"], condition["reason"]) for condition in before.get("conditions", [])}
    told = []
    for condition in after.get("conditions", []):
        kind = _TOLD.get((condition["type"], condition["status"]))
        if kind is not None and old.get(condition["type"]) != (condition["status"], condition["reason"]):
            told.append(Event(type=kind, reason=condition["reason"], message=_cut(condition["message"])))
    plan = after.get("pendingPlan")
    if plan is not None and plan != before.get("pendingPlan"):
        told.append(Event(type=EventType.NORMAL, reason="PlanPending", message=plan["message"]))
    return tuple(dict.fromkeys(told))
