"""What the provider knows: requests for a charge, how it was told to behave, faults, outcomes and answers."""

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol


class Fault(enum.StrEnum):
    """Something that goes wrong between the caller and a charge; each happens at most once per idempotency key, or charge."""

    RATE_LIMITED = "rate_limited"  # 429, nothing begun
    HANG = "hang"  # no answer for hang_seconds; then the charge is made all the same
    IN_FLIGHT_CONFLICT = "in_flight_conflict"  # 409 at once, the charge is made in the background
    ERROR_500_BEFORE = "error_500_before"  # 500, no charge; stored
    ERROR_500_AFTER = "error_500_after"  # 500, the charge is made; stored
    LOST_ANSWER = "lost_answer"  # the charge is made, the connection closes without an answer
    CANCEL_LOST_ANSWER = "cancel_lost_answer"  # the charge is canceled, the connection closes without an answer


OPENING_FAULTS = (Fault.RATE_LIMITED, Fault.HANG, Fault.IN_FLIGHT_CONFLICT)
"""Met before the charge, one per request, in this order."""

CLOSING_FAULTS = (Fault.ERROR_500_BEFORE, Fault.ERROR_500_AFTER, Fault.LOST_ANSWER)
"""Met when the charge is made, the first one that was chosen."""


class ChargeStatus(enum.StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PENDING = "pending"
    REQUIRES_ACTION = "requires_action"
    REVERSED = "reversed"  # it had succeeded, and the bank took the money back
    CANCELED = "canceled"  # no money was taken, and none will be


class RefundStatus(enum.StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PENDING = "pending"


class Asked(Protocol):
    """What is asked for under an idempotency key: by it, faults and limits are chosen and requests compared."""

    @property
    def payment_method(self) -> str: ...
    @property
    def service(self) -> str: ...
    def fingerprint(self) -> str:
        """Equal for equal parameters, whatever order or spacing they were written in."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRequest:
    """The parameters of a charge; the amount is in minor units of the currency, as ISO 4217 has them."""

    amount: int
    currency: str
    payment_method: str
    reference: str
    metadata: Mapping[str, str]
    customer: str | None = None

    @property
    def group(self) -> str:
        """What may be charged only once: the reference without its attempt number."""
        return self.reference.rpartition("/")[0] or self.reference

    @property
    def service(self) -> str:
        return self.metadata.get("service", "")

    def fingerprint(self) -> str:
        metadata = sorted(self.metadata.items())
        parameters: list[Any] = [self.amount, self.currency, self.payment_method, self.reference, metadata]
        if self.customer is not None:
            parameters.append(self.customer)
        return _digest(parameters)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefundRequest:
    """The parameters of a refund. Service and payment method are the charge's: they choose its faults as well."""

    charge: str
    amount: int
    currency: str
    reference: str
    metadata: Mapping[str, str]
    payment_method: str = ""
    service: str = ""

    def fingerprint(self) -> str:
        metadata = sorted(self.metadata.items())
        return _digest(["refund", self.charge, self.amount, self.currency, self.reference, metadata])


def _digest(parameters: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parameters).encode()).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A duration drawn uniformly between two bounds."""

    min: float
    max: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How charges fare. Rates are probabilities per idempotency key, drawn independently of each other."""

    delay_ms: Span = Span(min=0, max=0)
    decline_rate: float = 0.0
    decline_codes: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"insufficient_funds": 1.0})
    advice_codes: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    rate_limited_rate: float = 0.0
    rate_limited_times: int = 1
    retry_after_seconds: int = 1
    in_flight_conflict_rate: float = 0.0
    conflict_seconds: float = 0.2
    lost_answer_rate: float = 0.0
    cancel_lost_answer_rate: float = 0.0
    error_500_before_rate: float = 0.0
    error_500_after_rate: float = 0.0
    hang_rate: float = 0.0
    hang_seconds: float = 60.0
    pending_rate: float = 0.0
    pending_decline_rate: float = 0.0
    settle_after_seconds: float = 60.0
    late_failure_rate: float = 0.0
    late_failure_seconds: float = 3600.0
    max_rps: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration. `services` and `payment_methods` replace single fields of `behaviour`."""

    seed: int = 0
    api_key: str | None = None
    key_ttl_seconds: float = 86_400.0
    behaviour: Behaviour = Behaviour()
    search_lag_seconds: float = 0.0
    webhook_url: str | None = None
    webhook_secrets: tuple[str, ...] = ()
    webhook_duplicate_rate: float = 0.0
    webhook_late_rate: float = 0.0
    webhook_late_seconds: float = 5.0
    webhook_lost_rate: float = 0.0
    webhook_retry_seconds: float = 1.0
    services: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    payment_methods: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def behaviour_for(self, request: Asked) -> Behaviour:
        """The payment method's word outranks the service's, which outranks the general one."""
        if not self.services and not self.payment_methods:
            return self.behaviour
        service = self.services.get(request.service, {})
        method = self.payment_methods.get(request.payment_method, {})
        return dataclasses.replace(self.behaviour, **{**service, **method})

    def limit_scope(self, request: Asked) -> tuple[str, str]:
        """Who shares one `max_rps`: everybody, but a service or method with a limit of its own has its own bucket."""
        service, method = request.service, request.payment_method
        if "max_rps" in self.payment_methods.get(method, {}):
            return ("payment_method", method)
        if "max_rps" in self.services.get(service, {}):
            return ("service", service)
        return ("", "")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decline:
    decline_code: str
    advice_code: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What becomes of the money. A charge that is not settled yet turns into `settles_to` after `settle_after_seconds`."""

    status: ChargeStatus
    decline: Decline | None = None
    settle_after_seconds: float = 0.0
    settles_to: ChargeStatus | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """What is kept of a key once its answer is stored. `generation` counts the lives of an expired and reused key."""

    fingerprint: str
    http_status: int
    body: str
    created: float
    generation: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP answer; `dropped` means that the connection closes instead of carrying it."""

    http_status: int
    body: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dropped: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something to tell the caller by webhook; `subject` is the charge or refund as it then was, as JSON."""

    event_id: str
    kind: str
    subject: str
    created: float
