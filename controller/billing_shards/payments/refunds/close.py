"""A person's word on a refund in review, where the provider cannot tell any more what became of it."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from billing_shards import acts
from billing_shards.acts import Act
from billing_shards.errors import InvalidInput, NotFound, NotPossible
from billing_shards.payments import wire
from billing_shards.payments.model import Failed, RefundOutcome, Succeeded
from billing_shards.payments.refunds import store
from billing_shards.payments.refunds.decide import Step, decide
from billing_shards.payments.refunds.model import Refund, RefundStatus, Taken
from billing_shards.payments.refunds.work import tell
from billing_shards.payments.webhooks.model import RefundReference
from billing_shards.settings import RetrySpec
from billing_shards.shards.transactions import ShardRouter, ShardTransaction


def close_in_review(
    router: ShardRouter, reference: RefundReference, made: str | None, *, policy: RetrySpec, actor: str, reason: str
) -> Refund:
    """Say that a refund in review was made, and is called `made` by the provider, or (None) that no money went; it as it is now.

    What is booked and told is as if the provider had said so. Raises `NotFound`, `NotPossible` with the reason, `InvalidInput`
    for the name, actor or reason, and what `ShardRouter.run` raises.
    """
    if made is not None and wire.ref(made) is None:
        raise InvalidInput("--made", "must be the provider's name of the refund, 1 to 128 printable ASCII characters")
    actor, reason = acts.checked_actor(actor), acts.checked_reason(reason)
    outcome: RefundOutcome = Failed(code="closed_by_hand") if made is None else Succeeded(provider_ref=made)
    tried: list[tuple[Act, Refund]] = []

    def body(transaction: ShardTransaction) -> Refund:
        taken = _in_review(transaction, reference)
        refund = taken.refund
        step = decide(refund.status, refund.checks, outcome, policy.check_delays_seconds, received=True)
        if not store.finish(transaction, taken, step, outcome):
            raise AssertionError(f"refund {refund.reference} was locked, and is not there")
        after = replace(refund, status=step.status, provider_ref=made or refund.provider_ref)
        act = _act(refund, step, made, actor=actor, reason=reason)
        tried.append((act, after))
        acts.write(transaction, act)
        tell(transaction, refund, step, outcome)
        return after

    def committed(connection: Connection) -> Refund | None:
        act, after = tried[-1]
        return after if acts.written(connection, reference.shard, act) else None

    return router.run(reference.shard, body, committed=committed)


def _in_review(transaction: ShardTransaction, reference: RefundReference) -> Taken:
    found = store.lock(transaction, reference.refund)
    if found is None or found[0].refund.invoice != reference.invoice:
        raise NotFound(f"refund {reference}: is not there")
    taken, in_work = found
    if taken.refund.status is not RefundStatus.REVIEW:
        raise NotPossible(f"refund {reference}: is {taken.refund.status.name.lower()}, and only one in review is closed")
    if in_work:
        raise NotPossible(f"refund {reference}: the provider is being asked about it now")
    return taken


def _act(refund: Refund, step: Step, made: str | None, *, actor: str, reason: str) -> Act:
    return Act(
        actor=actor,
        act="invoice.close_refund",
        subscription=refund.subscription,
        subject=f"invoice:{refund.invoice}",
        reason=reason,
        before={"refund": refund.reference, "status": refund.status.name.lower()},
        after={"status": step.status.name.lower(), "provider_ref": made},
    )
