"""What a person may do to a job, over the whole product of acts and states."""

from __future__ import annotations

from itertools import product

import pytest

from billing_shards.jobs.manual import EDGES, Change, Refused, Verb, decide
from billing_shards.jobs.model import Status

OPEN, PAID, UNCOLLECTIBLE, VOID = 1, 2, 3, 4
INVOICES_OF = {Status.SUCCEEDED: (PAID,), Status.FAILED: (UNCOLLECTIBLE, VOID)}
CASES = [
    (verb, status, invoice, attempt_open)
    for verb, status in product(Verb, Status)
    for invoice in INVOICES_OF.get(status, (OPEN,))
    for attempt_open in (False, True)
]


def test_every_act_is_decided_in_every_state() -> None:
    assert EDGES.keys() == set(product(Verb, Status))


@pytest.mark.parametrize(("verb", "status", "invoice", "attempt_open"), CASES)
def test_what_was_done_agrees_with_the_invoice_and_takes_nothing_from_a_worker_unasked(
    verb: Verb, status: Status, invoice: int, attempt_open: bool
) -> None:
    decision = decide(verb, status, invoice_status=invoice, attempt_open=attempt_open)
    if isinstance(decision, Refused):
        assert decision.reason
        return
    assert status is not Status.SUCCEEDED
    assert invoice != VOID
    assert decision.status in (Status.READY, Status.REVIEW)
    assert (1 if decision.reopens else invoice) == OPEN
    assert decision.reopens == (status is Status.FAILED)
    assert (status is Status.PROCESSING) == (verb is Verb.RELEASE)
    assert decision.closes == (verb is Verb.CLOSE_ATTEMPT)
    assert not decision.closes or (attempt_open and status is Status.REVIEW)
    assert decision.due_now == (decision.status is Status.READY)


def test_whatever_waits_can_be_retried_and_nothing_else() -> None:
    decisions = {status: decide(Verb.RETRY, status, invoice_status=UNCOLLECTIBLE, attempt_open=False) for status in Status}
    retried = {status for status, decision in decisions.items() if isinstance(decision, Change)}
    assert retried == {Status.READY, Status.FAILED, Status.AWAITING_CUSTOMER, Status.REVIEW}
