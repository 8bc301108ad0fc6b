"""What a stored webhook leads to: every kind by every state of what it tells of."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.jobs.model import Status
from billing_shards.payments.decide import AskCustomer, RetryAfter, Review
from billing_shards.payments.model import AttemptOutcome, WebhookKind
from billing_shards.payments.refunds.model import RefundStatus
from billing_shards.payments.webhooks.decide import TRIES_MAX, after_reversal, of_attempt, of_refund, wait_seconds
from billing_shards.payments.webhooks.model import (
    Action,
    Ask,
    AttemptReference,
    AttemptState,
    Contradiction,
    Done,
    RefundReference,
    RefundState,
    Reverse,
    Stored,
    TakenBack,
    Wait,
    parse_reference,
)
from billing_shards.settings import RetrySpec

POLICY = RetrySpec(delays_seconds=(300, 1800), jitter=0.2, attempts_max=4)
KINDS: tuple[WebhookKind, ...] = get_args(WebhookKind)
OPEN = {AttemptOutcome.UNKNOWN, AttemptOutcome.PENDING, AttemptOutcome.CANCELING}
O, J = AttemptOutcome, Status  # noqa: E741 - short names for a table


def webhook(kind: WebhookKind, tries: int = 0, amount: int | None = 990, currency: str | None = "USD") -> Stored:
    return Stored(
        provider="http",
        event_id="ev_1",
        kind=kind,
        reference="3/17/1",
        amount=amount,
        currency=currency,
        code=None,
        tries=tries,
    )


PAID = AttemptState(
    provider="http",
    outcome=O.SUCCEEDED,
    amount=990,
    currency="USD",
    is_last=True,
    job_status=J.SUCCEEDED,
    is_paid=True,
    refunded=0,
    refund_under_way=False,
)


def at(outcome: AttemptOutcome, job: Status | None, *, is_last: bool = True) -> AttemptState:
    return replace(PAID, outcome=outcome, job_status=job, is_last=is_last, is_paid=outcome is O.SUCCEEDED)


KNOWN, ASK, REOPEN, DONE_ASKING = Done(result="known"), Ask(done=False), Ask(done=False, reopen=True), Ask(done=True)
TABLE: list[tuple[WebhookKind, AttemptState, Action]] = [
    # The outcome of an attempt that is open.
    ("charge.succeeded", at(O.PENDING, J.READY), ASK),
    ("charge.succeeded", at(O.UNKNOWN, J.READY), ASK),
    ("charge.succeeded", at(O.UNKNOWN, J.REVIEW), ASK),
    ("charge.succeeded", at(O.UNKNOWN, J.PROCESSING), Wait()),
    ("charge.failed", at(O.PENDING, J.READY), DONE_ASKING),
    ("charge.failed", at(O.PENDING, J.PROCESSING), Wait()),
    ("charge.pending", at(O.UNKNOWN, J.READY), Done(result="ignored")),
    # The customer completes an attempt that is to be canceled: whoever cancels it learns of it.
    ("charge.succeeded", at(O.CANCELING, J.READY), ASK),
    ("charge.succeeded", at(O.CANCELING, J.PROCESSING), Wait()),
    ("charge.succeeded", at(O.CANCELING, J.REVIEW), ASK),
    ("charge.failed", at(O.CANCELING, J.READY), DONE_ASKING),
    # A success that comes after the attempt was closed: the customer has authenticated.
    ("charge.succeeded", at(O.ACTION_REQUIRED, J.AWAITING_CUSTOMER), REOPEN),
    ("charge.succeeded", at(O.DECLINED, J.READY), REOPEN),
    ("charge.succeeded", at(O.DECLINED, J.FAILED), Contradiction(reason="succeeded_after_all")),
    ("charge.succeeded", at(O.DECLINED, None), Contradiction(reason="succeeded_after_all")),
    ("charge.succeeded", at(O.DECLINED, J.READY, is_last=False), Contradiction(reason="succeeded_after_another_attempt")),
    ("charge.succeeded", at(O.DECLINED, J.SUCCEEDED, is_last=False), Contradiction(reason="succeeded_after_another_attempt")),
    # Told again, or late.
    ("charge.succeeded", PAID, KNOWN),
    ("charge.succeeded", at(O.REVERSED, J.READY), KNOWN),
    ("charge.failed", PAID, KNOWN),
    ("charge.failed", at(O.DECLINED, J.READY), KNOWN),
    ("charge.failed", at(O.ACTION_REQUIRED, J.AWAITING_CUSTOMER), KNOWN),
    ("charge.reversed", at(O.REVERSED, J.READY), KNOWN),
    # Reversals.
    ("charge.reversed", PAID, Reverse()),
    ("charge.reversed", replace(PAID, job_status=None), Reverse()),
    ("charge.reversed", at(O.DECLINED, J.READY), Done(result="nothing_to_reverse")),
    ("charge.reversed", at(O.PENDING, J.READY), ASK),
    ("charge.reversed", at(O.UNKNOWN, J.PROCESSING), Wait()),
    ("charge.reversed", replace(PAID, is_paid=False), Contradiction(reason="reversal_differs")),
    ("refund.failed", PAID, Done(result="ignored")),
    ("other", PAID, Done(result="ignored")),
]


@pytest.mark.parametrize(("kind", "state", "wanted"), TABLE)
def test_what_a_webhook_of_an_attempt_leads_to(kind: WebhookKind, state: AttemptState, wanted: Action) -> None:
    assert of_attempt(webhook(kind), state) == wanted


def test_an_attempt_that_is_not_there_is_nothing_to_apply() -> None:
    assert {of_attempt(webhook(kind), None) for kind in KINDS} == {Done(result="no_such_attempt")}
    assert of_refund(webhook("refund.failed"), None) == Done(result="no_such_refund")


@pytest.mark.parametrize(
    ("amount", "currency", "refunded", "under_way", "wanted"),
    [
        (990, "USD", 0, False, Reverse()),
        (None, None, 0, False, Reverse()),
        (990, "USD", 300, True, Reverse()),
        (400, "USD", 0, False, TakenBack(amount=400)),
        (690, "USD", 300, False, TakenBack(amount=690)),
        (400, "USD", 300, True, Wait()),
        (691, "USD", 300, False, Contradiction(reason="reversed_more_than_left")),
        (991, "USD", 0, False, Contradiction(reason="reversal_differs")),
        (990, "EUR", 0, False, Contradiction(reason="reversal_differs")),
    ],
)
def test_how_much_was_taken_back(
    amount: int | None, currency: str | None, refunded: int, under_way: bool, wanted: Action
) -> None:
    state = replace(PAID, refunded=refunded, refund_under_way=under_way)
    assert of_attempt(webhook("charge.reversed", amount=amount, currency=currency), state) == wanted


def test_no_webhook_touches_what_somebody_holds_or_undoes_a_success_without_a_reversal() -> None:
    for kind, outcome, job, is_last in product(KINDS, AttemptOutcome, [*Status, None], [True, False]):
        action = of_attempt(webhook(kind), at(outcome, job, is_last=is_last))
        case = (kind, outcome, job, is_last)
        assert not (job is Status.PROCESSING and is_last and isinstance(action, Ask)), case
        if isinstance(action, Reverse | TakenBack):
            assert (kind, outcome) == ("charge.reversed", AttemptOutcome.SUCCEEDED), case
        if outcome in {AttemptOutcome.SUCCEEDED, AttemptOutcome.REVERSED} and kind != "charge.reversed":
            assert isinstance(action, Done), case
        if isinstance(action, Ask) and action.reopen:
            assert outcome not in OPEN, case


def test_no_provider_speaks_of_what_another_did() -> None:
    """Its secret would otherwise be good for the charges of all."""
    other = Done(result="other_provider")
    for kind in KINDS:
        assert of_attempt(webhook(kind), replace(PAID, provider="stripe")) == other
    refund = RefundState(provider="stripe", status=RefundStatus.SUCCEEDED, in_work=False)
    assert of_refund(webhook("refund.failed"), refund) == other


def test_a_success_that_nobody_confirms_is_for_a_person_in_the_end() -> None:
    wanted = Contradiction(reason="success_not_confirmed")
    assert of_attempt(webhook("charge.succeeded", tries=TRIES_MAX), at(O.PENDING, J.READY)) == wanted
    told = Contradiction(reason="refund_failed_not_confirmed")
    state = RefundState(provider="http", status=RefundStatus.SUCCEEDED, in_work=False)
    assert of_refund(webhook("refund.failed", tries=TRIES_MAX), state) == told


def test_a_declined_attempt_is_opened_again_once() -> None:
    """Each time it is declined again would be told to the customer."""
    declined = at(O.DECLINED, J.READY)
    assert of_attempt(webhook("charge.succeeded", tries=0), declined) == REOPEN
    assert of_attempt(webhook("charge.succeeded", tries=1), declined) == Done(result="not_confirmed")
    assert of_attempt(webhook("charge.succeeded", tries=1), at(O.ACTION_REQUIRED, J.AWAITING_CUSTOMER)) == REOPEN


def test_a_reversal_asks_once_and_then_waits_for_the_success() -> None:
    """Each look that it led to would put off the review."""
    assert of_attempt(webhook("charge.reversed", tries=1), at(O.UNKNOWN, J.READY)) == Wait()
    assert of_attempt(webhook("charge.reversed", tries=10_000), at(O.UNKNOWN, J.REVIEW)) == Wait()


@pytest.mark.parametrize(
    ("kind", "status", "in_work", "wanted"),
    [
        ("refund.succeeded", RefundStatus.PENDING, False, ASK),
        ("refund.succeeded", RefundStatus.REVIEW, False, ASK),
        ("refund.succeeded", RefundStatus.UNKNOWN, True, Wait()),
        ("refund.succeeded", RefundStatus.SUCCEEDED, False, KNOWN),
        ("refund.succeeded", RefundStatus.FAILED, False, DONE_ASKING),
        ("refund.failed", RefundStatus.SUCCEEDED, False, ASK),
        ("refund.failed", RefundStatus.FAILED, False, KNOWN),
        ("charge.succeeded", RefundStatus.PENDING, False, Done(result="ignored")),
    ],
)
def test_what_a_webhook_of_a_refund_leads_to(kind: WebhookKind, status: RefundStatus, in_work: bool, wanted: Action) -> None:
    assert of_refund(webhook(kind), RefundState(provider="http", status=status, in_work=in_work)) == wanted


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("insufficient_funds", RetryAfter(seconds=330.0)),
        ("late_failure", RetryAfter(seconds=330.0)),
        ("incorrect_account_details", AskCustomer(reason="new_payment_method")),
        ("expired_card", AskCustomer(reason="new_payment_method")),
        ("authentication_required", AskCustomer(reason="action_required")),
        ("fraudulent", Review(reason="reversed")),
        ("product_not_received", Review(reason="reversed")),
        (None, Review(reason="reversed")),
    ],
)
def test_a_customer_who_disputes_is_not_charged_again_by_a_machine(
    code: str | None, wanted: RetryAfter | AskCustomer | Review
) -> None:
    assert after_reversal(code, 1, POLICY, 0.5) == wanted


def test_a_customer_who_never_has_the_money_is_not_tried_for_ever() -> None:
    assert isinstance(after_reversal("insufficient_funds", 3, POLICY, 0.0), RetryAfter)
    assert after_reversal("insufficient_funds", 4, POLICY, 0.0) == Review(reason="attempts_exhausted")


@given(st.integers(0, 100_000))
def test_waiting_grows_and_is_bounded(tries: int) -> None:
    assert 2 <= wait_seconds(tries) <= wait_seconds(tries + 1) <= 3600


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3/17/2", AttemptReference(shard=3, invoice=17, attempt=2)),
        ("0/1/1", AttemptReference(shard=0, invoice=1, attempt=1)),
        ("3/17/r9", RefundReference(shard=3, invoice=17, refund=9)),
        (None, None),
        ("", None),
        ("8/17/1", None),
        ("03/17/1", None),
        ("3/0/1", None),
        ("3/17/0", None),
        ("3/17", None),
        ("3/17/1 ", None),
        ("3/17/1\n", None),
        ("order-17", None),
        ("3/9999999999999999999/1", None),
        ("٣/17/1", None),
    ],
)
def test_references_of_ours_are_told_from_others(text: str | None, wanted: AttemptReference | RefundReference | None) -> None:
    assert parse_reference(text, 8) == wanted


@given(st.integers(0, 7), st.integers(1, 2**62), st.integers(1, 2**62))
def test_a_reference_is_read_as_it_is_written(shard: int, invoice: int, number: int) -> None:
    wanted = AttemptReference(shard=shard, invoice=invoice, attempt=number)
    assert parse_reference(f"{shard}/{invoice}/{number}", 8) == wanted
