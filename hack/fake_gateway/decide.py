"""Which faults and which outcome a charge meets: pure functions of configuration, seed, key and request.

Every draw is SHA-256(seed, purpose, key), so a run reproduces whatever the order in which requests arrive, and changing
one rate leaves the other draws as they were. Payment methods named `pm_…` after a fault or a decline choose it outright.
"""

import hashlib
import re
from collections.abc import Mapping

from hack.fake_gateway.model import (
    CLOSING_FAULTS,
    OPENING_FAULTS,
    Behaviour,
    ChargeStatus,
    Decline,
    Fault,
    Outcome,
    RefundStatus,
    Span,
)

FAULT_OF_METHOD = {
    "pm_rate_limited": Fault.RATE_LIMITED,
    "pm_hang": Fault.HANG,
    "pm_conflict": Fault.IN_FLIGHT_CONFLICT,
    "pm_500_before": Fault.ERROR_500_BEFORE,
    "pm_500_after": Fault.ERROR_500_AFTER,
    "pm_lost_answer": Fault.LOST_ANSWER,
}

ADVICE_CODES: Mapping[str, str | None] = {
    "approve_with_id": "try_again_later",
    "expired_card": "confirm_card_data",
    "incorrect_cvc": "confirm_card_data",
    "incorrect_number": "confirm_card_data",
    "insufficient_funds": "try_again_later",
    "issuer_not_available": "try_again_later",
    "lost_card": "do_not_try_again",
    "pickup_card": "do_not_try_again",
    "processing_error": "try_again_later",
    "reenter_transaction": "try_again_later",
    "revocation_of_all_authorizations": "do_not_try_again",
    "revocation_of_authorization": "do_not_try_again",
    "stolen_card": "do_not_try_again",
    "try_again_later": "try_again_later",
}
"""The advice that goes with a decline code, unless the configuration says otherwise; codes not listed carry none."""

_RATES = tuple((fault, f"{fault}_rate") for fault in (*OPENING_FAULTS, *CLOSING_FAULTS))
_NEVER_DECLINED = frozenset({*FAULT_OF_METHOD, "pm_requires_action", "pm_customer_completes", "pm_pending", "pm_late_failure"})
_DECLINES_FOREVER = re.compile(r"pm_decline_([a-z_]+)")
_DECLINES_N_TIMES = re.compile(r"pm_declines_([0-9]{1,9})_([a-z_]+)")


def draw(seed: int, purpose: str, key: str) -> float:
    """A number in [0, 1) that depends on nothing else."""
    digest = hashlib.sha256(f"{seed}\0{purpose}\0{key}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / (1 << 53)


def made_id(prefix: str, seed: int, key: str, generation: int) -> str:
    """The id of what is made under a key: a charge (`ch_`, Stripe's `pi_`) or a refund (`re_`)."""
    return prefix + hashlib.sha256(f"{seed}\0{generation}\0{key}".encode()).hexdigest()[:24]


def event_id(subject_id: str, status: str) -> str:
    """The same whenever the same thing is told."""
    return "evt_" + hashlib.sha256(f"{subject_id}\0{status}".encode()).hexdigest()[:24]


def faults(behaviour: Behaviour, seed: int, key: str, payment_method: str) -> frozenset[Fault]:
    """All faults that this key is to meet. A method that names one meets that one and no other."""
    named = FAULT_OF_METHOD.get(payment_method)
    if named is not None:
        return frozenset({named})
    hits = [fault for fault, rate in _RATES if _hits(getattr(behaviour, rate), seed, fault, key)]
    return frozenset(hits)


def opening_fault(chosen: frozenset[Fault], seen: Mapping[Fault, int], behaviour: Behaviour, payment_method: str) -> Fault | None:
    """The fault that the next request with this key meets before any charge; `seen` counts those already met.

    Only a method named after the rate limit is refused more than once: a rate is a rate of keys, not of requests.
    """
    refusals = behaviour.rate_limited_times if payment_method == "pm_rate_limited" else 1
    for fault in OPENING_FAULTS:
        times = refusals if fault is Fault.RATE_LIMITED else 1
        if fault in chosen and seen.get(fault, 0) < times:
            return fault
    return None


def closing_fault(chosen: frozenset[Fault]) -> Fault | None:
    return next((fault for fault in CLOSING_FAULTS if fault in chosen), None)


def loses_cancel(behaviour: Behaviour, seed: int, charge_id: str) -> bool:
    """Whether the answer to the first cancel of this charge is lost."""
    return _hits(behaviour.cancel_lost_answer_rate, seed, Fault.CANCEL_LOST_ANSWER, charge_id)


def delay_seconds(delay_ms: Span, seed: int, key: str) -> float:
    if delay_ms.min == delay_ms.max:
        return delay_ms.min / 1000
    return (delay_ms.min + (delay_ms.max - delay_ms.min) * draw(seed, "delay", key)) / 1000


def declines_first(payment_method: str) -> int | None:
    """How many times a method of the form `pm_declines_<n>_<code>` declines for one reference; else None."""
    match = _DECLINES_N_TIMES.fullmatch(payment_method)
    return int(match[1]) if match else None


def outcome(behaviour: Behaviour, seed: int, key: str, payment_method: str, declined_before: int) -> Outcome:
    """What becomes of the money. `declined_before`: declines of this method for this reference's group so far."""
    code = _decline_code(behaviour, seed, key, payment_method, declined_before)
    if code is not None:
        return Outcome(status=ChargeStatus.FAILED, decline=decline(behaviour, code))
    if payment_method == "pm_requires_action":
        return Outcome(status=ChargeStatus.REQUIRES_ACTION)
    if payment_method == "pm_customer_completes":
        return Outcome(
            status=ChargeStatus.REQUIRES_ACTION,
            settle_after_seconds=behaviour.settle_after_seconds,
            settles_to=ChargeStatus.SUCCEEDED,
        )
    if payment_method == "pm_pending" or _hits(behaviour.pending_rate, seed, "pending", key):
        return _pending(behaviour, seed, key)
    if payment_method == "pm_late_failure" or _hits(behaviour.late_failure_rate, seed, "late_failure", key):
        return Outcome(
            status=ChargeStatus.SUCCEEDED,
            decline=Decline(decline_code="late_failure", advice_code=None),
            settle_after_seconds=behaviour.late_failure_seconds,
            settles_to=ChargeStatus.REVERSED,
        )
    return Outcome(status=ChargeStatus.SUCCEEDED)


def refund_status(payment_method: str) -> tuple[RefundStatus, RefundStatus | None]:
    """How a refund of a charge by this method stands at first, and what it settles to."""
    if payment_method == "pm_refund_pending":
        return RefundStatus.PENDING, RefundStatus.SUCCEEDED
    if payment_method == "pm_refund_late_failure":
        return RefundStatus.PENDING, RefundStatus.FAILED
    if payment_method == "pm_refund_fails":
        return RefundStatus.FAILED, None
    return RefundStatus.SUCCEEDED, None


def decline(behaviour: Behaviour, code: str) -> Decline:
    advice = behaviour.advice_codes[code] if code in behaviour.advice_codes else ADVICE_CODES.get(code)
    return Decline(decline_code=code, advice_code=advice)


def _hits(rate: float, seed: int, purpose: str, key: str) -> bool:
    return rate > 0 and draw(seed, purpose, key) < rate


def _pending(behaviour: Behaviour, seed: int, key: str) -> Outcome:
    if _hits(behaviour.pending_decline_rate, seed, "pending_decline", key):
        settles_to, refusal = ChargeStatus.FAILED, decline(behaviour, _drawn_code(behaviour, seed, key))
    else:
        settles_to, refusal = ChargeStatus.SUCCEEDED, None
    return Outcome(
        status=ChargeStatus.PENDING,
        decline=refusal,
        settle_after_seconds=behaviour.settle_after_seconds,
        settles_to=settles_to,
    )


def _decline_code(behaviour: Behaviour, seed: int, key: str, payment_method: str, declined_before: int) -> str | None:
    if match := _DECLINES_FOREVER.fullmatch(payment_method):
        return match[1]
    if match := _DECLINES_N_TIMES.fullmatch(payment_method):
        return match[2] if declined_before < int(match[1]) else None
    if payment_method in _NEVER_DECLINED:
        return None
    return _drawn_code(behaviour, seed, key) if _hits(behaviour.decline_rate, seed, "decline", key) else None


def _drawn_code(behaviour: Behaviour, seed: int, key: str) -> str:
    """One code of the mix, by weight."""
    point = draw(seed, "decline_code", key) * sum(behaviour.decline_codes.values())
    for code, weight in behaviour.decline_codes.items():
        point -= weight
        if point < 0:
            return code
    return code  # rounding may leave the last one a hair above the sum
