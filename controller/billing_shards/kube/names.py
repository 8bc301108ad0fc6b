"""Names and labels of what the operator makes, in one place: a name that is computed twice is one day computed differently."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from billing_shards.settings import API_GROUP

PLURAL = "billingshardsets"
FIELD_MANAGER = "billing-shards"
SHARD_SET_LABEL = f"{API_GROUP}/shardset"
DATABASE_LABEL = f"{API_GROUP}/database"
DIGEST_ANNOTATION = f"{API_GROUP}/applied"
CONFIG_ANNOTATION = f"{API_GROUP}/config"

METRICS_PORT = 9464
WEBHOOK_PORT = 9465
_NAME_MAX = 63


def labels(shard_set: str, component: str) -> dict[str, str]:
    """The labels of every object; `app.kubernetes.io/…` as other tools expect them."""
    return {
        "app.kubernetes.io/name": "billing-shards",
        "app.kubernetes.io/instance": shard_set,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "billing-shards-controller",
        SHARD_SET_LABEL: shard_set,
    }


def config_map(shard_set: str) -> str:
    return f"{shard_set}-config"


def placement(shard_set: str) -> str:
    return f"{shard_set}-placement"


def claimer(shard_set: str, first: int, last: int) -> str:
    return f"{shard_set}-claimer-{first:03}-{last:03}"


def housekeeper(shard_set: str) -> str:
    return f"{shard_set}-housekeeper"


def webhooks(shard_set: str) -> str:
    """A Service. Its name must begin with a letter and hold no dot, as a shard set's may."""
    plain = shard_set.replace(".", "-")
    return f"webhooks-{plain}" if plain == shard_set else f"webhooks-{plain}-{digest(shard_set, length=6)}"


def schema_job(shard_set: str, database: str, version: str) -> str:
    """A Job's template cannot be changed, so everything that would change it is in its name (`version`, a digest)."""
    return f"{shard_set}-schema-{database}"[: _NAME_MAX - len(version) - 1].rstrip("-") + f"-{version}"


def digest(content: Any, length: int = 16) -> str:
    """A short name for JSON: the same content always gives the same one."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
