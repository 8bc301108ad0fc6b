"""What a stored webhook leads to. Pure.

A webhook settles nothing by itself: it makes the provider be asked, by whoever holds the job or the refund, so that an outcome
is only ever taken from one place and never written twice. The one exception is a reversal of what is settled: nobody holds
that any more, and not every provider's look-up shows it.

Each action leaves things so that the same webhook, or an older one, does nothing more.
"""

from __future__ import annotations

from typing import assert_never

from billing_shards.jobs.model import Status
from billing_shards.payments.decide import AskCustomer, RetryAfter, Review
from billing_shards.payments.declines import classify
from billing_shards.payments.model import AttemptOutcome, DeclineClass
from billing_shards.payments.refunds.model import RefundStatus
from billing_shards.payments.webhooks.model import (
    Action,
    Ask,
    AttemptState,
    Contradiction,
    Done,
    RefundState,
    Reverse,
    Stored,
    TakenBack,
    Wait,
)
from billing_shards.settings import RetrySpec

TRIES_MAX = 14
"""Looks at a webhook that tells of a success which the provider does not confirm."""
_WAIT_SECONDS = 2.0
_WAIT_SECONDS_MAX = 3600.0
_OPEN = frozenset({AttemptOutcome.UNKNOWN, AttemptOutcome.PENDING, AttemptOutcome.CANCELING})
_RESUMABLE = frozenset({Status.READY, Status.AWAITING_CUSTOMER, Status.REVIEW})
# Reversals of these reasons say that there was no money this time. Of all others, a person decides: a customer who disputes a
# charge must not be charged again by a machine.
_NO_MONEY = frozenset(
    {"insufficient_funds", "late_failure", "bank_cannot_process", "check_returned", "refer_to_customer", "processing_error"}
)
_OTHER_METHOD = frozenset({"incorrect_account_details", "account_closed", "debit_not_authorized", "mandate_cancelled"})


def of_attempt(webhook: Stored, state: AttemptState | None) -> Action:
    """What a webhook that names an attempt leads to; `state` is None where there is no such attempt."""
    if state is None:
        return Done(result="no_such_attempt")
    if state.provider != webhook.provider:
        return Done(result="other_provider")
    match webhook.kind:
        case "charge.succeeded":
            return _succeeded(webhook, state)
        case "charge.failed":
            return _failed(state)
        case "charge.reversed":
            return _reversed(webhook, state)
        case "charge.pending" | "refund.succeeded" | "refund.failed" | "other":
            return Done(result="ignored")
        case _:
            assert_never(webhook.kind)


def of_refund(webhook: Stored, state: RefundState | None) -> Action:
    """What a webhook that names a refund leads to; `state` is None where there is no such refund."""
    told = {"refund.succeeded": RefundStatus.SUCCEEDED, "refund.failed": RefundStatus.FAILED}.get(webhook.kind)
    if told is None:
        return Done(result="ignored")
    if state is None:
        return Done(result="no_such_refund")
    if state.provider != webhook.provider:
        return Done(result="other_provider")
    if state.status is told:
        return Done(result="known")
    if state.in_work:
        return Wait()
    if state.status is RefundStatus.FAILED:  # an old message most likely; where it is not, the look-up says so
        return Ask(done=True)
    if webhook.tries >= TRIES_MAX:
        return Contradiction(reason=f"{webhook.kind.replace('.', '_')}_not_confirmed")
    return Ask(done=False)


def wait_seconds(tries: int) -> float:
    """Until a webhook that could not be applied is looked at again."""
    return min(_WAIT_SECONDS_MAX, _WAIT_SECONDS * 2.0 ** min(tries, 20))


def after_reversal(code: str | None, attempts: int, policy: RetrySpec, draw: float) -> RetryAfter | AskCustomer | Review:
    """What becomes of the job of a charge that was taken back for this reason, after so many attempts. `draw` in [0, 1) is the
    jitter's.
    """
    reason = code or "unknown"
    decline = classify(reason, None)
    if reason in _NO_MONEY:
        if attempts >= policy.attempts_max:
            return Review(reason="attempts_exhausted")
        return RetryAfter(seconds=policy.delays_seconds[0] * (1 + policy.jitter * draw))
    if reason in _OTHER_METHOD or decline is DeclineClass.NEW_METHOD:
        return AskCustomer(reason="new_payment_method")
    if decline is DeclineClass.CUSTOMER:
        return AskCustomer(reason="action_required")
    return Review(reason="reversed")


def _succeeded(webhook: Stored, state: AttemptState) -> Action:
    if state.outcome in {AttemptOutcome.SUCCEEDED, AttemptOutcome.REVERSED}:
        return Done(result="known")
    if not state.is_last:
        return Contradiction(reason="succeeded_after_another_attempt")
    if state.job_status is Status.PROCESSING:
        return Wait()
    if state.job_status not in _RESUMABLE:
        return Contradiction(reason="succeeded_after_all")
    if state.outcome is AttemptOutcome.DECLINED and webhook.tries:
        return Done(result="not_confirmed")  # the provider was asked since: it has been taken back, most likely
    if webhook.tries >= TRIES_MAX:
        return Contradiction(reason="success_not_confirmed")
    return Ask(done=False, reopen=state.outcome not in _OPEN)


def _failed(state: AttemptState) -> Action:
    """A failure changes only what is open. That a charge succeeded is not undone by it: it may have failed before."""
    if state.outcome not in _OPEN:
        return Done(result="known")
    return Wait() if state.job_status is Status.PROCESSING else Ask(done=True)


def _reversed(webhook: Stored, state: AttemptState) -> Action:
    if state.outcome in _OPEN:  # it came before the success was settled: that comes first
        return Wait() if state.job_status is Status.PROCESSING or webhook.tries else Ask(done=False)
    if state.outcome is AttemptOutcome.REVERSED:
        return Done(result="known")
    if state.outcome is not AttemptOutcome.SUCCEEDED:
        return Done(result="nothing_to_reverse")
    amount = state.amount if webhook.amount is None else webhook.amount
    if amount > state.amount or webhook.currency not in {None, state.currency} or not state.is_paid:
        return Contradiction(reason="reversal_differs")
    if amount == state.amount:
        return Reverse()
    if state.refund_under_way:  # how much is left is known when it has ended
        return Wait()
    if state.refunded + amount > state.amount:
        return Contradiction(reason="reversed_more_than_left")
    return TakenBack(amount=amount)
