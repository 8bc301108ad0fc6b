"""Numbers and tables of the rules, pinned: mutants of them survived the tables and properties of the rules' own tests."""

from __future__ import annotations

from datetime import datetime

import pytest

from billing_shards.jobs import decide as claimer
from billing_shards.jobs.model import Lane
from billing_shards.outbox import decide as outbox
from billing_shards.outbox.model import Batch, Blockage, Sent, StoredEvent
from billing_shards.payments import breaker
from billing_shards.payments.breaker import Breaker, Sight, State, answered
from billing_shards.payments.decide import AskCustomer, RetryAfter
from billing_shards.payments.webhooks import decide as webhooks
from billing_shards.settings import BreakerSpec, RetrySpec


def event(number: int, subscription: str) -> StoredEvent:
    return StoredEvent(
        shard=1, number=number, type="invoice.issued", subscription=subscription, payload={}, created_at=datetime(2026, 1, 1)
    )


def test_waits_of_the_publisher() -> None:
    assert [outbox.retry_seconds(n, 0.0) for n in (1, 2, 6, 99)] == [10, 20, 300, 300]
    assert [outbox.rest_seconds(n, 0.0) for n in (1, 2, 99)] == [0.25, 0.5, 15]
    assert (outbox.retry_seconds(1, 0.5), outbox.rest_seconds(1, 0.5)) == (10.5, 0.375)


def test_the_pace_of_the_publisher_halves_and_doubles() -> None:
    pace = outbox.Pace(limit=40, limit_max=100)
    assert pace.failures == 0
    assert pace.after(failed=True) == outbox.Pace(limit=20, limit_max=100, failures=1)
    assert pace.after(failed=True).after(failed=True).failures == 2
    assert pace.after(failed=False) == outbox.Pace(limit=80, limit_max=100)
    assert pace.after(failed=False).after(failed=False).limit == 100
    assert outbox.Pace(limit=1, limit_max=100).after(failed=True).limit == 1


def test_details_are_kept_as_long_as_their_column() -> None:
    assert outbox.DETAILS_LENGTH_MAX == 500


def test_what_a_round_writes_is_in_the_order_of_numbers_and_names() -> None:
    """Rows are locked in one order by all who write them."""
    blocked = [Blockage(subscription=name, number=number, failures=1) for name, number in (("z", 8), ("a", 1), ("m", 2))]
    sent = [event(8, "z"), event(1, "a")]
    behind = [event(9, "m"), event(4, "m")]
    batch = Batch(events=sent, behind=behind, full=False)
    found = outbox.record(batch, [Sent(event=one) for one in sent], blocked=blocked, unsent=frozenset(), draw=0.0)
    assert (found.sent, found.release, found.hold) == ([1, 8], ["a", "z"], [4, 9])


def test_waits_of_webhooks() -> None:
    assert [webhooks.wait_seconds(tries) for tries in (0, 1, 3, 99)] == [2, 4, 16, 3600]
    assert webhooks.TRIES_MAX == 14


@pytest.mark.parametrize(
    "code",
    ["insufficient_funds", "late_failure", "bank_cannot_process", "check_returned", "refer_to_customer", "processing_error"],
)
def test_reversals_that_say_there_was_no_money_are_tried_again(code: str) -> None:
    assert webhooks.after_reversal(code, 1, RetrySpec(jitter=0.1), 0.5) == RetryAfter(seconds=300 * 1.05)


@pytest.mark.parametrize("code", ["incorrect_account_details", "account_closed", "debit_not_authorized", "mandate_cancelled"])
def test_reversals_that_ask_for_another_method(code: str) -> None:
    assert webhooks.after_reversal(code, 1, RetrySpec(), 0.5) == AskCustomer(reason="new_payment_method")


def test_a_breaker_counts_probes_and_periods_one_by_one() -> None:
    policy = BreakerSpec()
    assert breaker.PROBE_SECONDS == 1.0
    assert Breaker() == Breaker(state=State.CLOSED, period=0, failures=0, until=0.0, probes=0, good=0)
    probing = Breaker(state=State.HALF_OPEN, period=4, probes=2)
    abandoned = answered(probing, 4, Sight.NEITHER, policy, 0.0)
    assert abandoned == Breaker(state=State.HALF_OPEN, period=4, probes=1)
    assert answered(probing, 4, Sight.BAD, policy, 0.0).period == 5


def test_how_long_a_claimer_backs_off() -> None:
    assert [round(claimer.backoff(n, 0.0), 6) for n in (0, 1, 3, 6, 99)] == [0.2, 0.4, 1.6, 10.0, 10.0]


def test_what_room_is_worth_a_claim() -> None:
    assert claimer.worthwhile(500, 200, 100) == 33  # a third of the lane's share
    assert claimer.worthwhile(500, 200, 300) == 50  # a quarter of all
    assert claimer.worthwhile(20, 200, 300) == 20
    assert claimer.worthwhile(500, 2, 2) == 1
    assert claimer.worthwhile(500, 8, 99) == 2
    assert claimer.worthwhile(500, 4, 99) == 1
    assert claimer.worthwhile(500, 200, 1) == 1


def test_the_room_of_a_lane_that_uses_nothing() -> None:
    one, other = Lane(0), Lane(1)
    sure = {one: 2, other: 2}
    assert claimer.room(one, {one: 2, other: 2}, (), 4, sure) == 0
    assert claimer.room(one, {other: 4}, (), 4, sure) == 1  # the half that is never lent, though the other has taken all
    assert claimer.room(one, {}, (), 4, sure) == 3  # all but that half of the other's
    assert claimer.room(one, {}, (other,), 4, sure) == 2
