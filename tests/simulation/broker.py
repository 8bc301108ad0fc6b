"""A message broker, modelled on its own: what it has confirmed it has. And a consumer, which de-duplicates by id."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from billing_shards.errors import BrokerUnavailable, EventRefused
from billing_shards.outbox.model import Message, Problem


@dataclass(slots=True, kw_only=True)
class Broker:
    """`trouble`: the share of messages that are lost, confirmed too late, or refused for a while, each."""

    rng: random.Random
    trouble: float
    seen: set[str] = field(default_factory=set)
    by_subscription: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Numbers of events in the order in which each was first heard of."""
    refusals: dict[str, int] = field(default_factory=dict)

    def publish(self, message: Message) -> None:
        """See the product's port."""
        draw = self.rng.random
        if draw() < self.trouble:
            raise BrokerUnavailable("lost on the way")
        if message.id not in self.refusals:
            self.refusals[message.id] = self.rng.choice((1, 3)) if draw() < self.trouble / 2 else 0
        if self.refusals[message.id] > 0 and self.trouble:
            self.refusals[message.id] -= 1
            raise EventRefused(Problem.UNROUTABLE, "not now")
        self._consume(message)
        if draw() < self.trouble:
            raise BrokerUnavailable("not confirmed in time")

    def _consume(self, message: Message) -> None:
        if message.id not in self.seen:
            self.seen.add(message.id)
            document: Mapping[str, Any] = json.loads(message.body)
            self.by_subscription[document["subject"]].append(int(message.id.rpartition("/")[2]))
