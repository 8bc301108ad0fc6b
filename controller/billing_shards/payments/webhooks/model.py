"""Values of webhooks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from billing_shards.jobs.model import Status
from billing_shards.payments.model import AttemptOutcome, WebhookKind
from billing_shards.payments.refunds.model import RefundStatus

_REFERENCE = re.compile(r"(0|[1-9][0-9]{0,4})/([1-9][0-9]{0,18})/(r?)([1-9][0-9]{0,18})")
_BIGINT_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReference:
    """`<shard>/<invoice>/<attempt>`, which is how the provider finds it (`Job.reference`)."""

    shard: int
    invoice: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.shard}/{self.invoice}/{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundReference:
    """`<shard>/<invoice>/r<refund>` (`Refund.reference`)."""

    shard: int
    invoice: int
    refund: int

    def __str__(self) -> str:
        return f"{self.shard}/{self.invoice}/r{self.refund}"


Reference: TypeAlias = AttemptReference | RefundReference


def parse_reference(text: str | None, shard_count: int) -> Reference | None:
    """What a reference of ours names; None of any other text."""
    found = _REFERENCE.fullmatch(text or "")
    if found is None:
        return None
    shard, invoice, number = int(found[1]), int(found[2]), int(found[4])
    if shard >= shard_count or max(invoice, number) > _BIGINT_MAX:
        return None
    if found[3]:
        return RefundReference(shard=shard, invoice=invoice, refund=number)
    return AttemptReference(shard=shard, invoice=invoice, attempt=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A webhook that waits to be applied."""

    provider: str
    event_id: str
    kind: WebhookKind
    reference: str | None
    amount: int | None
    currency: str | None
    code: str | None
    tries: int
    """How often it was looked at before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """The attempt that a webhook tells of, and where its job and invoice are, as locked."""

    provider: str
    """Where it was made: no other provider's word counts."""
    outcome: AttemptOutcome
    amount: int
    currency: str
    is_last: bool
    """No later attempt was made."""
    job_status: Status | None
    """None where the finished job is deleted already."""
    is_paid: bool
    """The invoice."""
    refunded: int
    """Minor units of the invoice that are given back, or may be."""
    refund_under_way: bool
    """Whether the outcome of one of its refunds is still open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundState:
    """The refund that a webhook tells of, as locked."""

    provider: str
    status: RefundStatus
    in_work: bool
    """Somebody asks the provider about it just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Nothing more to do. `result` says in a word what came of it."""

    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """It cannot be applied yet: look again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Let the provider be asked at once: outcomes are taken from its answers alone. The webhook is looked at again afterwards,
    unless it is `done` with.
    """

    done: bool
    reopen: bool = False
    """The attempt was closed without success: it is open again until the provider has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverse:
    """The whole charge was taken back: book it, and open the invoice again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """A part of the charge was taken back: book it as a refund that the bank made."""

    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """What it tells cannot be made to agree with what we have: a person must look. Nothing is changed."""

    reason: str


Action: TypeAlias = Done | Wait | Ask | Reverse | TakenBack | Contradiction
