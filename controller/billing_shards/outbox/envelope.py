"""The envelope: an event as CloudEvents 1.0 JSON (structured mode), and the schemas that events are held against.

`schemas/<type>.v<version>.json` is the contract with consumers; its file name is its place in the catalogue. A field that is
added and may be missing is no new version; whatever an old consumer would trip over is. A row's type without a version means
version 1, so that rows that an older release wrote are read as what they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

from billing_shards.errors import EventRefused
from billing_shards.outbox.model import Message, Problem, StoredEvent

SCHEMAS = Path(__file__).parent / "schemas"
TYPE_PREFIX = "io.billingshards."
CONTENT_TYPE = "application/cloudevents+json"

_VERSIONED = re.compile(r"(?P<name>[a-z_]+\.[a-z_]+)(?:\.v(?P<version>[0-9]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSchema:
    """The contract for one version of one type of event."""

    type: str
    """As consumers see it, with prefix and version: `io.billingshards.invoice.issued.v1`."""
    uri: str
    document: Mapping[str, Any]
    validator: jsonschema_rs.Draft202012Validator

    def problem(self, payload: object) -> str | None:
        """What is wrong with a payload, with the field but not its value; None: nothing."""
        if self.validator.is_valid(payload):
            return None
        error = next(self.validator.iter_errors(payload))
        field = ".".join(str(part) for part in error.instance_path)
        return f"{field or 'payload'}: {error.message}"


@cache
def catalogue() -> Mapping[str, EventSchema]:
    """Every schema by `<type>.v<version>`."""
    return {path.stem: _read(path) for path in sorted(SCHEMAS.glob("*.json"))}


def _read(path: Path) -> EventSchema:
    document = json.loads(path.read_text())
    return EventSchema(
        type=TYPE_PREFIX + path.stem,
        uri=document["$id"],
        document=document,
        validator=jsonschema_rs.Draft202012Validator(document, validate_formats=True, mask="its value"),
    )


def schema_of(stored_type: str) -> EventSchema | None:
    """The schema of a row's type, e.g. `invoice.issued`; None where there is none."""
    found = _VERSIONED.fullmatch(stored_type)
    return None if found is None else catalogue().get(f"{found['name']}.v{found['version'] or 1}")


def event_id(shard_set: str, shard: int, number: int) -> str:
    """The one name of an event, whoever sends it and however often: what a consumer de-duplicates by."""
    return f"{shard_set}/{shard}/{number}"


def message(shard_set: str, event: StoredEvent, *, bytes_max: int) -> Message:
    """What is sent of an event. Raises `EventRefused`."""
    schema = schema_of(event.type)
    if schema is None:
        raise EventRefused(Problem.SCHEMA, f"type {event.type} has no schema")
    wrong = schema.problem(event.payload)
    if wrong is not None:
        raise EventRefused(Problem.SCHEMA, wrong)
    name = event_id(shard_set, event.shard, event.number)
    envelope = {
        "specversion": "1.0",
        "id": name,
        "source": f"/billing-shards/{shard_set}",
        "type": schema.type,
        "subject": event.subscription,
        "time": event.created_at.isoformat(timespec="microseconds") + "Z",
        "datacontenttype": "application/json",
        "dataschema": schema.uri,
        "shard": event.shard,
        "sequence": f"{event.number:020}",  # sorts as text, as the CloudEvents extension of this name wants it
        "partitionkey": event.subscription,
        "data": event.payload,
    }
    body = json.dumps(envelope, separators=(",", ":")).encode()
    if len(body) > bytes_max:
        raise EventRefused(Problem.TOO_LARGE, f"is {len(body)} bytes, at most {bytes_max} are sent")
    return Message(id=name, subject=f"{event.shard:03}.{event.type}", body=body)
