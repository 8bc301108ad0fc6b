"""A charge that waits for the customer, and another one that is wanted: never do both take money, whatever goes wrong between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from billing_shards.billing import subscriptions
from billing_shards.billing.model import Status as SubscriptionStatus
from billing_shards.billing.subscriptions import Subject
from billing_shards.jobs.manual import Verb
from billing_shards.jobs.model import RETRY, Status
from billing_shards.payments import manual
from billing_shards.payments.model import ActionRequired, AttemptOutcome, Declined, Succeeded, Unknown
from tests.mysql.life import BY, PAID, Life
from tests.mysql.money import SHARD, Money
from tests.mysql.shard_set import DueJob, ShardSet

O = AttemptOutcome  # noqa: E741 - short names for a table


@pytest.fixture
def waiting(money: Money) -> DueJob:
    """A job whose first attempt waits for the customer."""
    due = money.due(payment_method="pm_requires_action")
    money.work()
    assert (money.job(due).status, money.outcomes(due)) == (Status.AWAITING_CUSTOMER, [O.ACTION_REQUIRED])
    return due


def other_method(money: Money, due: DueJob, method: str = "pm_other") -> None:
    subject = Subject(id=due.subscription, shard_count=money.shard_set.spec.shard_count)
    subscriptions.change_payment_method(money.shard_set.router, subject, method, grace_seconds=86_400, by=BY)


def retry(money: Money, due: DueJob) -> manual.Done:
    return manual.act(money.shard_set.router, SHARD, due.job, Verb.RETRY, actor="anna", reason="the customer asked for it")


def look_again(money: Money) -> int:
    money.shard_set.change(SHARD, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s AND status = 0")
    return money.work(RETRY)


def charges(money: Money) -> list[tuple[str, str]]:
    """Reference and status of all that the provider has."""
    return [(charge["reference"], charge["status"]) for charge in money.fake.charges()]


def first_charge(money: Money) -> str:
    """Its id."""
    return str(next(money.fake.charges())["id"])


def reference(due: DueJob, attempt: int) -> str:
    return f"{due.shard}/{due.invoice}/{attempt}"


def test_the_first_charge_is_canceled_before_the_other_method_is_charged(money: Money, waiting: DueJob) -> None:
    other_method(money, waiting)
    assert (money.job(waiting).attempt_open, money.outcomes(waiting)) == (1, [O.CANCELING])
    assert money.broken() == {}
    assert money.work() == 1
    assert charges(money) == [(reference(waiting, 1), "canceled")]
    job = money.job(waiting)
    assert (job.status, job.attempt_no, job.attempt_open, job.due_in, job.grace > 80_000) == (Status.READY, 1, 0, 0, True)
    assert money.broken() == {}
    assert money.work() == 1
    assert charges(money) == [(reference(waiting, 1), "canceled"), (reference(waiting, 2), "succeeded")]
    assert (money.invoice(waiting), money.outcomes(waiting)) == (2, [O.DECLINED, O.SUCCEEDED])
    assert money.told(waiting) == ["payment.action_required", "payment_method.changed", "payment.succeeded"]
    assert money.broken() == {}


def test_what_the_customer_completed_first_pays_and_nothing_else_is_charged(money: Money, waiting: DueJob) -> None:
    other_method(money, waiting)
    money.fake.complete(first_charge(money))
    money.work()
    assert look_again(money) == 0
    assert charges(money) == [(reference(waiting, 1), "succeeded")]
    assert (money.invoice(waiting), money.outcomes(waiting)) == (2, [O.SUCCEEDED])
    assert money.broken() == {}


def test_what_the_customer_completes_between_our_look_and_our_word_pays(money: Money, waiting: DueJob) -> None:
    """The answer of the cancel itself says what became of the charge."""
    other_method(money, waiting)
    (job,) = money.claim()
    assert job.canceling
    first = first_charge(money)
    money.fake.complete(first)
    outcome = money.with_providers(lambda providers: providers.get("http").cancel(job.reference, first))
    assert outcome == Succeeded(provider_ref=first)


def test_a_customer_who_fails_to_complete_it_frees_the_other_method(money: Money, waiting: DueJob) -> None:
    other_method(money, waiting)
    money.fake.complete(first_charge(money), fails=True)
    money.work()
    money.work()
    assert charges(money) == [(reference(waiting, 1), "failed"), (reference(waiting, 2), "succeeded")]
    assert (money.invoice(waiting), money.outcomes(waiting)) == (2, [O.DECLINED, O.SUCCEEDED])
    assert money.broken() == {}


def test_a_lost_answer_of_the_cancel_is_asked_for_again(money: Money, waiting: DueJob) -> None:
    money.fake.configure(cancel_lost_answer_rate=1)
    other_method(money, waiting)
    money.work()
    job = money.job(waiting)
    assert (job.status, job.attempt_open, job.checks, money.outcomes(waiting)) == (Status.READY, 1, 1, [O.CANCELING])
    assert money.broken() == {}
    assert (look_again(money), look_again(money)) == (1, 1)
    assert charges(money) == [(reference(waiting, 1), "canceled"), (reference(waiting, 2), "succeeded")]
    assert money.invoice(waiting) == 2
    assert money.broken() == {}


def test_a_worker_that_dies_after_the_cancel_leaves_it_to_the_next(money: Money, waiting: DueJob) -> None:
    other_method(money, waiting)
    (job,) = money.claim()
    assert isinstance(money.ask(job), Declined)
    money.shard_set.change(SHARD, "UPDATE billing_job SET status = 0, lease_token = 0 WHERE shard_id = %(shard)s")
    assert (look_again(money), look_again(money)) == (1, 1)
    assert charges(money) == [(reference(waiting, 1), "canceled"), (reference(waiting, 2), "succeeded")]
    assert money.broken() == {}


def test_a_cancel_that_comes_late_from_a_worker_that_stood_still_harms_nothing(money: Money, waiting: DueJob) -> None:
    other_method(money, waiting)
    (stale,) = money.claim()
    money.shard_set.change(SHARD, "UPDATE billing_job SET status = 0, lease_token = 0 WHERE shard_id = %(shard)s")
    look_again(money)
    look_again(money)
    assert isinstance(money.ask(stale), Declined)
    assert charges(money) == [(reference(waiting, 1), "canceled"), (reference(waiting, 2), "succeeded")]
    money.settle(stale, money.ask(stale))
    assert (money.invoice(waiting), money.broken()) == (2, {})


def test_a_persons_retry_cancels_it_too_and_the_act_says_that_it_is_open(money: Money, waiting: DueJob) -> None:
    done = retry(money, waiting)
    assert (done.before["attempt_open"], done.after["attempt_open"], done.after["status"]) == (False, True, "ready")
    money.work()
    money.work()
    assert charges(money) == [(reference(waiting, 1), "canceled"), (reference(waiting, 2), "requires_action")]
    assert money.job(waiting).status == Status.AWAITING_CUSTOMER
    assert money.broken() == {}


def test_one_that_was_set_aside_meanwhile_is_canceled_when_a_person_lets_it_go_on(money: Money, waiting: DueJob) -> None:
    manual.act(money.shard_set.router, SHARD, waiting.job, Verb.SET_ASIDE, actor="anna", reason="wait")
    other_method(money, waiting)
    assert (money.job(waiting).status, money.outcomes(waiting)) == (Status.REVIEW, [O.ACTION_REQUIRED])
    retry(money, waiting)
    money.work()
    money.work()
    assert charges(money) == [(reference(waiting, 1), "canceled"), (reference(waiting, 2), "succeeded")]
    assert money.broken() == {}


def test_a_method_that_comes_while_it_is_being_canceled_is_brought_by_dunning(money: Money, waiting: DueJob) -> None:
    other_method(money, waiting, "pm_decline_expired_card")
    other_method(money, waiting, "pm_better")
    money.work()
    query = "SELECT next_dunning_at <= NOW(6) FROM subscription WHERE shard_id = %(shard)s AND id = %(id)s"
    assert money.one(query, id=waiting.subscription) == 1


def test_one_whose_cancel_nobody_answers_comes_to_review_where_a_person_may_close_it(money: Money, waiting: DueJob) -> None:
    retry(money, waiting)
    for _ in range(len(money.shard_set.spec.retry.check_delays_seconds) + 1):
        money.shard_set.change(SHARD, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s AND status = 0")
        (job,) = money.claim()
        money.settle(job, Unknown(reason="no answer"))
    row = money.job(waiting)
    assert (row.status, row.attempt_open, money.outcomes(waiting)) == (Status.REVIEW, 1, [O.CANCELING])
    assert money.told(waiting)[-1] == "payment.review"
    assert money.broken() == {}
    manual.act(money.shard_set.router, SHARD, waiting.job, Verb.CLOSE_ATTEMPT, actor="anna", reason="the provider says so")
    assert money.outcomes(waiting) == [O.NOT_SENT]
    (job,) = money.claim()
    assert (job.attempt_no, job.resumed, job.canceling) == (2, False, False)
    assert money.broken() == {}


def test_a_success_told_by_webhook_hurries_the_look(money: Money, waiting: DueJob) -> None:
    retry(money, waiting)
    (job,) = money.claim()
    money.settle(job, Unknown(reason="no answer"))
    assert money.job(waiting).due_in > 0
    money.fake.complete(first_charge(money))
    money.hear("charge.succeeded", reference(waiting, 1))
    money.apply()
    assert money.outcomes(waiting) == [O.CANCELING]
    assert money.work(RETRY) == 1
    money.apply(again=True)
    assert (money.invoice(waiting), money.outcomes(waiting), money.results()) == (2, [O.SUCCEEDED], ["known"])
    assert money.broken() == {}


# What the subscription is meanwhile


@pytest.fixture
def life(make_shard_set: Callable[..., ShardSet]) -> Life:
    started = Life(make_shard_set(shardCount=2, smoothing={"windowSeconds": 0}))
    started.schedule()
    started.charge(ActionRequired(provider_ref="ch_wait"))
    started.dun()
    assert started.status() is SubscriptionStatus.PAST_DUE
    return started


def change_method(life: Life) -> None:
    subscriptions.change_payment_method(life.shard_set.router, life.subject, "pm_new", grace_seconds=86_400, by=BY)


@pytest.mark.parametrize("suspended", [False, True])
def test_a_subscription_stays_late_while_its_charge_is_being_canceled(life: Life, *, suspended: bool) -> None:
    if suspended:
        life.at(30)
        life.dun()
    before = life.status()
    change_method(life)
    life.dun()
    life.charge(Unknown(reason="no answer"))
    life.at(30.5 if suspended else 0.5)
    life.dun()
    assert life.status() is before
    assert before is (SubscriptionStatus.SUSPENDED if suspended else SubscriptionStatus.PAST_DUE)
    assert "subscription.reactivated" not in life.events()
    assert life.is_clean()


def test_a_subscription_is_active_again_at_once_when_the_customer_has_completed_it(life: Life) -> None:
    """Also where that was the first attempt: there is no later one whose success would tell of it."""
    life.at(30)
    life.dun()
    assert life.status() is SubscriptionStatus.SUSPENDED
    change_method(life)
    assert life.charge(PAID) == 1
    life.dun()
    assert life.status() is SubscriptionStatus.ACTIVE
    assert life.is_clean()
