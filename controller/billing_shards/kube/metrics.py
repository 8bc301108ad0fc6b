"""Metrics of the operator. A resource's series end with the resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

_LABELS = ["namespace", "shardset"]

ROUNDS = Counter("billing_shards_reconcile_total", "Looks at a BillingShardSet.", ["outcome"])
for _outcome in ("done", "failed"):
    ROUNDS.labels(_outcome)
ROUND_SECONDS = Histogram("billing_shards_reconcile_seconds", "Time of one look, and of what it led to.")
LAST_ROUND = Gauge("billing_shards_reconcile_timestamp_seconds", "When a BillingShardSet was last looked at.", _LABELS)
READY = Gauge("billing_shards_shardset_ready", "1 where condition Ready is True.", _LABELS)
DATABASE_REACHABLE = Gauge("billing_shards_database_reachable", "1 where a database answers.", [*_LABELS, "database"])
PENDING_SHARDS = Gauge("billing_shards_pending_plan_shards", "Shards that the pending plan would move.", _LABELS)

_PER_RESOURCE = (LAST_ROUND, READY, PENDING_SHARDS)


def tell(namespace: str, name: str, status: Mapping[str, Any], now: float) -> None:
    """Set a resource's gauges from its status."""
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))
    LAST_ROUND.labels(namespace, name).set(now)
    READY.labels(namespace, name).set(ready)
    PENDING_SHARDS.labels(namespace, name).set(status.get("pendingPlan", {}).get("shards", 0))
    DATABASE_REACHABLE.remove_by_labels({"namespace": namespace, "shardset": name})
    for database in status.get("databases", []):
        DATABASE_REACHABLE.labels(namespace, name, database["name"]).set(database["reachable"])


def forget(namespace: str, name: str) -> None:
    """End the series of a resource that is gone."""
    for metric in (*_PER_RESOURCE, DATABASE_REACHABLE):
        metric.remove_by_labels({"namespace": namespace, "shardset": name})
