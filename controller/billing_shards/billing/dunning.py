"""Dunning: what becomes of a subscription that is not paid for. Pure.

    active ──► past due ──► suspended ──► canceled
       ▲            │            │
       └────────────┴────────────┘  all that is late is paid

`decide` is given how a subscription stands and says the one next step, or when to look again; `course` takes steps until there is
none. Steps that were missed because nobody looked are not told one by one: of the notices only the last, and each state has its
whole time, counted from when it was entered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeAlias, assert_never

from billing_shards.billing.model import Status
from billing_shards.settings import DunningSpec

EDGES: dict[Status, frozenset[Status]] = {
    Status.ACTIVE: frozenset({Status.PAST_DUE}),
    Status.PAST_DUE: frozenset({Status.ACTIVE, Status.SUSPENDED}),
    Status.SUSPENDED: frozenset({Status.ACTIVE, Status.CANCELED}),
    Status.CANCELED: frozenset(),
}
"""The states that dunning may lead to from each state. (A person may cancel in any.)"""

UNRESOLVED_SECONDS = 3600
"""Wait before the next look at an attempt of unknown outcome: nothing final is done while money may have been taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaid:
    """An invoice that is not paid, and what its job tells."""

    invoice: int
    amount: int
    currency: str
    late: bool
    """An attempt at it has failed."""
    given_up: bool
    """It will not be tried again by itself."""
    attempt_open: bool
    """The outcome of an attempt is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a subscription stands."""

    status: Status
    past_due_since: datetime | None
    """Kept while it is suspended."""
    suspended_since: datetime | None
    notices: int
    """How many of the policy's notices are told, or passed over."""
    write_off: bool
    """Of one that is canceled: its debt is not collected any more."""
    unpaid: tuple[Unpaid, ...]

    @property
    def late(self) -> tuple[Unpaid, ...]:
        """What has fallen past due."""
        return tuple(one for one in self.unpaid if one.late)

    @property
    def is_unresolved(self) -> bool:
        """Whether money may have been taken without our knowing yet."""
        return any(one.attempt_open for one in self.unpaid)


@dataclass(frozen=True, slots=True, kw_only=True)
class FallPastDue:
    """A charge has failed; the service goes on while it is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """The customer is to be told for the `number`-th time."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspend:
    """The service stops; no more periods are invoiced."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reactivate:
    """All that was late is paid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The subscription ends."""

    reason: str
    write_off: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOff:
    """Stop collecting these invoices of a subscription that is canceled."""

    invoices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Nothing to do now; look again at `until`, or never where it is None."""

    until: datetime | None


Step: TypeAlias = FallPastDue | Notify | Suspend | Reactivate | Cancel | WriteOff


def decide(standing: Standing, policy: DunningSpec, now: datetime) -> Step | Rest:
    """The next step."""
    match standing.status:
        case Status.CANCELED:
            return _after_the_end(standing, now)
        case Status.ACTIVE:
            return FallPastDue() if standing.late else Rest(until=None)
        case Status.PAST_DUE | Status.SUSPENDED if not standing.late:
            return Reactivate()
        case Status.PAST_DUE:
            return _past_due(standing, policy, now)
        case Status.SUSPENDED:
            return _suspended(standing, policy, now)
        case _:
            assert_never(standing.status)


def _past_due(standing: Standing, policy: DunningSpec, now: datetime) -> Step | Rest:
    since = standing.past_due_since or now
    ends = since + timedelta(seconds=policy.suspend_after_seconds)
    if policy.suspend_when_given_up and any(one.given_up for one in standing.late):
        return Suspend(reason="given_up")
    if now >= ends:
        return Suspend(reason="unpaid_too_long")
    return _notify(standing, policy, now, ends)


def _suspended(standing: Standing, policy: DunningSpec, now: datetime) -> Step | Rest:
    ends = (standing.suspended_since or now) + timedelta(seconds=policy.cancel_after_seconds)
    if now < ends:
        return _notify(standing, policy, now, ends)
    if standing.is_unresolved:
        return Rest(until=now + timedelta(seconds=UNRESOLVED_SECONDS))
    return Cancel(reason="suspended_too_long", write_off=policy.write_off)


def _notify(standing: Standing, policy: DunningSpec, now: datetime, ends: datetime) -> Notify | Rest:
    since = standing.past_due_since or now
    begun = notices_begun(policy, since, now)
    if begun > standing.notices:
        return Notify(number=begun)
    coming = [since + timedelta(seconds=delay) for delay in policy.notices_seconds[begun:]]
    return Rest(until=min([*coming, ends]))


def _after_the_end(standing: Standing, now: datetime) -> WriteOff | Rest:
    if not standing.write_off or not standing.unpaid:
        return Rest(until=None)
    settled = tuple(one.invoice for one in standing.unpaid if not one.attempt_open)
    return WriteOff(invoices=settled) if settled else Rest(until=now + timedelta(seconds=UNRESOLVED_SECONDS))


def notices_begun(policy: DunningSpec, since: datetime, now: datetime) -> int:
    """How many of the policy's notices have fallen due, of a subscription that is past due since `since`."""
    return sum(since + timedelta(seconds=delay) <= now for delay in policy.notices_seconds)


def transition(standing: Standing, step: Step, policy: DunningSpec, now: datetime) -> Standing:
    """How the subscription stands after a step."""
    match step:
        case FallPastDue():
            return replace(standing, status=Status.PAST_DUE, past_due_since=now, notices=0)
        case Notify():
            return replace(standing, notices=step.number)
        case Suspend():
            # The suspension is told to the customer by an event of its own: a notice of the same moment is not.
            told = notices_begun(policy, standing.past_due_since or now, now)
            return replace(standing, status=Status.SUSPENDED, suspended_since=now, notices=max(told, standing.notices))
        case Reactivate():
            return replace(standing, status=Status.ACTIVE, past_due_since=None, suspended_since=None, notices=0)
        case Cancel():
            return replace(standing, status=Status.CANCELED, write_off=step.write_off)
        case WriteOff():
            return replace(standing, unpaid=tuple(one for one in standing.unpaid if one.invoice not in step.invoices))
        case _:
            assert_never(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a look comes to."""

    steps: tuple[Step, ...]
    after: Standing
    look_again_at: datetime | None


def course(standing: Standing, policy: DunningSpec, now: datetime) -> Course:
    """Every step that is due at `now`, in order."""
    steps: list[Step] = []
    while not isinstance(step := decide(standing, policy, now), Rest):
        steps.append(step)
        standing = transition(standing, step, policy, now)
    return Course(steps=tuple(steps), after=standing, look_again_at=step.until)
