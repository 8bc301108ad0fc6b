"""The rules of publishing. Pure.

What a consumer may rely on comes from `chains`: of one subscription, an event is sent only after the broker has confirmed the one
before it. So the first time an event reaches the broker, all earlier ones of its subscription have reached it, whoever sent them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from billing_shards.outbox.model import Answer, Batch, Block, Blockage, Record, Refused, Sent, StoredEvent

RETRY_SECONDS_MIN = 10.0
RETRY_SECONDS_MAX = 300.0
REST_SECONDS_MIN = 0.5
REST_SECONDS_MAX = 30.0
DETAILS_LENGTH_MAX = 500


def chains(events: Iterable[StoredEvent]) -> list[tuple[StoredEvent, ...]]:
    """The events of each subscription in the order of their numbers. Chains go side by side, the events of one in turn."""
    by_subscription: defaultdict[str, list[StoredEvent]] = defaultdict(list)
    for event in events:
        by_subscription[event.subscription].append(event)
    return [tuple(sorted(chain, key=lambda event: event.number)) for chain in by_subscription.values()]


def retry_seconds(failures: int, draw: float) -> float:
    """Until an event that was not taken `failures` times is tried again; `draw` in [0, 1) spreads it."""
    return _backoff(failures, RETRY_SECONDS_MIN, RETRY_SECONDS_MAX) * (1 + 0.1 * draw)


def rest_seconds(failures: int, draw: float) -> float:
    """Until a broker that failed `failures` times in a row is asked again; `draw` in [0, 1) spreads it."""
    return _backoff(failures, REST_SECONDS_MIN, REST_SECONDS_MAX) * (0.5 + 0.5 * draw)


def _backoff(failures: int, least: float, most: float) -> float:
    return min(most, least * 2.0 ** min(failures - 1, 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many events are under way at once: halved when confirmations do not come in time, doubled again while they do.

    Without it a broker that confirms 50 in the time allowed would be sent the same 500 again and again.
    """

    limit: int
    limit_max: int
    failures: int = 0
    """Rounds in a row that the broker failed."""

    def after(self, *, failed: bool) -> Pace:
        """The pace of the next round."""
        limit = max(1, self.limit // 2) if failed else min(self.limit_max, self.limit * 2)
        return Pace(limit=limit, limit_max=self.limit_max, failures=self.failures + 1 if failed else 0)


def troubled(answers: Sequence[Answer]) -> bool:
    """Whether a round that the broker answered is to be followed by a rest all the same.

    Where it took nothing and refused several, the fault is more likely a stream or a binding that is missing than each single
    event: the shard goes on slowly, so that few subscriptions are blocked until a person has mended it, and no event behind
    those waits for ever.
    """
    return len(answers) > 1 and all(isinstance(answer, Refused) for answer in answers)


def record(
    batch: Batch,
    answers: Sequence[Answer],
    *,
    blocked: Sequence[Blockage],
    unsent: AbstractSet[int],
    draw: float,
) -> Record:
    """What is to be written after a round.

    `blocked` are the subscriptions of the batch that are blocked, and `unsent` the numbers of the refused events that are still
    not sent, both as they are now, locked: a person, or another publisher, may have been quicker. `draw` as in `retry_seconds`.
    """
    sent = {answer.event.number for answer in answers if isinstance(answer, Sent)}
    release = sorted(blockage.subscription for blockage in blocked if blockage.number in sent)
    still_blocked = {blockage.subscription: blockage for blockage in blocked if blockage.number not in sent}
    refused = [answer for answer in answers if isinstance(answer, Refused) and answer.event.number in unsent]
    blocks = [
        _block(answer, draw, failures=before.failures if before else 0)
        for answer in refused
        if (before := still_blocked.get(answer.event.subscription)) is None or before.number == answer.event.number
    ]
    still = still_blocked.keys() | {block.subscription for block in blocks}
    known = [*batch.events, *batch.behind]
    hold = sorted(event.number for event in known if event.subscription in still and event.number not in sent)
    return Record(sent=sorted(sent), blocks=blocks, release=release, hold=hold)


def _block(refused: Refused, draw: float, *, failures: int) -> Block:
    return Block(
        subscription=refused.event.subscription,
        number=refused.event.number,
        problem=refused.problem,
        details=refused.details[:DETAILS_LENGTH_MAX],
        failures=failures + 1,
        seconds=retry_seconds(failures + 1, draw),
    )
