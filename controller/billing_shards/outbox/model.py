"""Values of publishing: an event that waits to be sent, the message it becomes, and what the broker said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias


class Problem(StrEnum):
    """Why an event is not taken, now or ever: what is wrong is the event, not the broker."""

    SCHEMA = "schema"
    """Its payload is not what its schema says, or its type has none."""
    TOO_LARGE = "too_large"
    UNROUTABLE = "unroutable"
    """No stream or queue of the broker wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """A row of the outbox that is not sent yet."""

    shard: int
    number: int
    """Without gaps in its shard; the order in which events were committed."""
    type: str
    subscription: str
    payload: Mapping[str, Any]
    created_at: datetime
    """UTC, naive, as the database has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What goes to the broker. `id` is the same however often it is sent."""

    id: str
    subject: str
    """NATS's subject below the prefix, RabbitMQ's routing key: `<shard>.<type>`."""
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The broker has it safely."""

    event: StoredEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """It was not taken, for what it is. Later events of its subscription wait."""

    event: StoredEvent
    problem: Problem
    details: str


Answer: TypeAlias = Sent | Refused
"""Where there is none, nobody knows: the event is still to be sent, under the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a publisher may send now, read under its lease."""

    events: Sequence[StoredEvent]
    """In the order of their numbers, without those of blocked subscriptions."""
    behind: Sequence[StoredEvent]
    """Events of blocked subscriptions, which are to be set aside."""
    full: bool
    """There may be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """Another publisher has the shard for `seconds` more."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Blockage:
    """A subscription that is blocked by one of its events, as its row is locked."""

    subscription: str
    number: int
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A subscription to be blocked, or blocked further, until its event is tried again after `seconds`."""

    subscription: str
    number: int
    problem: Problem
    details: str
    failures: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a round writes."""

    sent: Sequence[int]
    blocks: Sequence[Block]
    release: Sequence[str]
    """Subscriptions whose blocking event was sent: those behind it go on."""
    hold: Sequence[int]
    """Numbers of events to be set aside."""
