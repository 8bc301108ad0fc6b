"""What a person may do to a job by hand. Pure.

Money is safe whatever is done: an attempt whose outcome is unknown stays open, and the next claim resolves it under its own key.
The one exception is a person's word that an attempt in review took no money.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from billing_shards.jobs.model import Status

_INVOICE_VOID = 4


class Verb(Enum):
    """What is to be done; the value names the act."""

    RETRY = "job.retry"
    """Make it due now. What is open is asked for; what failed is tried again."""
    RELEASE = "job.release"
    """Take it back from its worker now, without waiting for the lease to end."""
    SET_ASIDE = "job.set_aside"
    """Leave it to a person: nothing is claimed, tried or asked until it is retried."""
    CLOSE_ATTEMPT = "job.close_attempt"
    """Say that its open attempt took no money, where the provider cannot tell any more: the next one may begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What becomes of the job."""

    status: Status
    due_now: bool = True
    again: bool = False
    """It goes on in the lane of retries."""
    reopens: bool = False
    """Its uncollectible invoice is owed again."""
    closes: bool = False
    """Its open attempt is closed as never sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """It cannot be done, for this reason."""

    reason: str


Decision: TypeAlias = Change | Refused

_RETRIED = Change(status=Status.READY, again=True)
_IN_WORK = "is in work until its lease ends; release it first, if its worker is dead"
_PAID = Refused(reason="is paid")
_ASKED = Refused(reason="is not in review: its attempt is resolved by asking the provider")
_NOT_IN_WORK = Refused(reason="is not in work")

EDGES: Mapping[tuple[Verb, Status], Decision] = MappingProxyType(
    {
        (Verb.RETRY, Status.READY): Change(status=Status.READY),
        (Verb.RETRY, Status.PROCESSING): Refused(reason=_IN_WORK),
        (Verb.RETRY, Status.SUCCEEDED): _PAID,
        (Verb.RETRY, Status.FAILED): Change(status=Status.READY, again=True, reopens=True),
        (Verb.RETRY, Status.AWAITING_CUSTOMER): _RETRIED,
        (Verb.RETRY, Status.REVIEW): _RETRIED,
        (Verb.RELEASE, Status.READY): _NOT_IN_WORK,
        (Verb.RELEASE, Status.PROCESSING): Change(status=Status.READY),
        (Verb.RELEASE, Status.SUCCEEDED): _PAID,
        (Verb.RELEASE, Status.FAILED): _NOT_IN_WORK,
        (Verb.RELEASE, Status.AWAITING_CUSTOMER): _NOT_IN_WORK,
        (Verb.RELEASE, Status.REVIEW): _NOT_IN_WORK,
        (Verb.SET_ASIDE, Status.READY): Change(status=Status.REVIEW, due_now=False),
        (Verb.SET_ASIDE, Status.PROCESSING): Refused(reason=_IN_WORK),
        (Verb.SET_ASIDE, Status.SUCCEEDED): _PAID,
        (Verb.SET_ASIDE, Status.FAILED): Refused(reason="has failed for good: nothing will be tried"),
        (Verb.SET_ASIDE, Status.AWAITING_CUSTOMER): Change(status=Status.REVIEW, due_now=False),
        (Verb.SET_ASIDE, Status.REVIEW): Refused(reason="is set aside already"),
        (Verb.CLOSE_ATTEMPT, Status.READY): _ASKED,
        (Verb.CLOSE_ATTEMPT, Status.PROCESSING): _ASKED,
        (Verb.CLOSE_ATTEMPT, Status.SUCCEEDED): _PAID,
        (Verb.CLOSE_ATTEMPT, Status.FAILED): _ASKED,
        (Verb.CLOSE_ATTEMPT, Status.AWAITING_CUSTOMER): _ASKED,
        (Verb.CLOSE_ATTEMPT, Status.REVIEW): Change(status=Status.READY, again=True, closes=True),
    }
)


def decide(verb: Verb, status: Status, *, invoice_status: int, attempt_open: bool) -> Decision:
    """What `verb` does to a job in this state, its invoice in that one (numbers of sql/schema)."""
    decision = EDGES[verb, status]
    if isinstance(decision, Change) and decision.reopens and invoice_status == _INVOICE_VOID:
        return Refused(reason="belongs to an invoice that is void: nothing is owed")
    if isinstance(decision, Change) and decision.closes and not attempt_open:
        return Refused(reason="has no open attempt")
    return decision
