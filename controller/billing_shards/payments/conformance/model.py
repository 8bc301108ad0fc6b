"""Values of the conformance test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from billing_shards.payments.conformance.client import Client
    from billing_shards.payments.conformance.webhooks import Listener


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What the provider is tried with: payment methods of its sandbox. Rules that need one which is not named are skipped."""

    succeeds: str
    """A payment method that is charged at once."""
    declines: str | None = None
    """One that is always declined."""
    pending: str | None = None
    """One whose charges are pending at first."""
    requires_action: str | None = None
    """One whose charges wait for the customer."""
    currency: str = "USD"
    amount: int = 1999
    """Minor units, three at least; each charge takes it, or less."""
    refunds: bool = True
    """Whether the provider refunds."""
    listener: Listener | None = None
    """Hears the provider's webhooks."""


class Verdict(Enum):
    """How a rule fared."""

    KEPT = "kept"
    BROKEN = "broken"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One rule, and how it fared."""

    rule: str
    says: str
    verdict: Verdict
    detail: str = ""
    """What was expected and what came; why it was skipped."""


Needs: TypeAlias = Callable[[Trial], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of the protocol. `check` raises `Broken` where it is not kept."""

    name: str
    says: str
    check: Callable[[Client, Trial], Awaitable[None]]
    needs: Needs = lambda _: True
    wants: str = ""
    """What to name so that it is not skipped."""


class Broken(Exception):
    """The provider breaks the rule that is being tried. It never leaves this package."""
