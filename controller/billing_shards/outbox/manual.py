"""What a person does about an event that is not taken: try it now, or skip it for good. Each leaves a manual act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from billing_shards import acts
from billing_shards.acts import Act
from billing_shards.errors import NotFound, NotPossible
from billing_shards.outbox import store
from billing_shards.shards.transactions import ShardRouter, ShardTransaction


def skip(router: ShardRouter, shard: int, number: int, *, actor: str, reason: str) -> None:
    """Never send an event that blocks its subscription; the events behind it go on.

    Raises `NotFound`, `NotPossible` where it does not block anything, and what `ShardRouter.run` raises.
    """
    written: list[Act] = []

    def body(transaction: ShardTransaction) -> bool:
        event, blocked = _blocking(transaction, number)
        written[:] = [_act("event.skip", event, blocked, actor=actor, reason=reason, after={"sent": False, "skipped": True})]
        store.skip(transaction, number)
        store.unblock(transaction, [event["subscription_id"]])
        acts.write(transaction, written[0])
        return True

    router.run(shard, body, committed=lambda connection: _committed(connection, shard, written))


def retry(router: ShardRouter, shard: int, number: int, *, actor: str, reason: str) -> None:
    """Have an event that blocks its subscription tried at once. Raises what `skip` raises."""
    written: list[Act] = []

    def body(transaction: ShardTransaction) -> bool:
        event, blocked = _blocking(transaction, number)
        written[:] = [_act("event.retry", event, blocked, actor=actor, reason=reason, after={"tried_at_once": True})]
        store.try_now(transaction, [event["subscription_id"]])
        acts.write(transaction, written[0])
        return True

    router.run(shard, body, committed=lambda connection: _committed(connection, shard, written))


def _committed(connection: Connection, shard: int, written: Sequence[Act]) -> bool | None:
    return acts.written(connection, shard, written[0]) or None


def _blocking(transaction: ShardTransaction, number: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """An event and how it blocks its subscription, both locked: the subscription first, as a publisher locks them."""
    found = store.read_event(transaction, number)
    if found is None:
        raise NotFound(f"event {transaction.shard}/{number}: is not there, or was purged")
    blocked = store.lock_blockage(transaction, found["subscription_id"])
    event = store.lock_event(transaction, number) or found
    if event["sent_at"] is not None:
        raise NotPossible(
            f"event {transaction.shard}/{number} was {'skipped' if event['held'] == store.SKIPPED else 'sent'} already"
        )
    if blocked is None:
        raise NotPossible(f"event {transaction.shard}/{number} is not blocked: it will be sent")
    if blocked["event_id"] != number:
        raise NotPossible(f"event {transaction.shard}/{number} waits behind event {blocked['event_id']}")
    return event, blocked


def _act(
    act: str, event: Mapping[str, Any], blocked: Mapping[str, Any], *, actor: str, reason: str, after: Mapping[str, Any]
) -> Act:
    before = {
        "type": event["type"],
        "problem": blocked["problem"],
        "details": blocked["details"],
        "failures": blocked["failures"],
    }
    return Act(
        actor=actor,
        act=act,
        subscription=event["subscription_id"],
        subject=f"event:{event['id']}",
        reason=reason,
        before=before,
        after=after,
    )
