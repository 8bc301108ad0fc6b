"""A person's word on one subscription, on real servers: what it changes, the act and the event it leaves, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from billing_shards.billing import subscriptions
from billing_shards.billing.model import Status
from billing_shards.billing.periods import Interval, Unit
from billing_shards.billing.subscriptions import By, Subject
from billing_shards.billing.terms import Change
from billing_shards.errors import InvalidInput, NotFound, NotPossible
from billing_shards.jobs.model import Status as JobStatus
from tests.mysql.command import cli
from tests.mysql.life import BY, NEW_METHOD, PAID, SOFT, Life
from tests.mysql.shard_set import ShardSet


@pytest.fixture
def life(make_shard_set: Callable[..., ShardSet]) -> Life:
    return Life(make_shard_set(shardCount=2, smoothing={"windowSeconds": 0}))


def acts(life: Life) -> list[tuple[str, str, str]]:
    query = "SELECT act, actor, reason FROM manual_act WHERE shard_id = %(shard)s ORDER BY created_at, id"
    return [tuple(row) for row in life.shard_set.rows(life.shard, query)]


def test_new_terms_hold_from_the_next_period_on(life: Life) -> None:
    life.schedule()
    router = life.shard_set.router
    subscriptions.update(router, life.subject, Change(amount=1500, currency="EUR", service="music"), by=BY)
    life.at(29)
    life.schedule()
    invoices = life.shard_set.rows(life.shard, "SELECT amount, currency FROM invoice WHERE shard_id = %(shard)s ORDER BY id")
    assert invoices == [(990, "USD"), (1500, "EUR")]
    assert [entry[1] for entry in life.entries(1)] == ["revenue:video", "revenue:music"]
    (told,) = life.told("subscription.updated")
    assert told == {"changes": {"amount": 1500, "currency": "EUR", "first_period_start": "2024-02-29", "service": "music"}}
    assert acts(life) == [("subscription.update", "anna", "asked for by the customer")]
    assert life.is_clean()


def test_another_interval_goes_on_where_the_last_period_ends(life: Life) -> None:
    life.schedule()
    subscriptions.update(life.shard_set.router, life.subject, Change(interval=Interval(unit=Unit.MONTH, count=2)), by=BY)
    life.at(29)
    life.schedule()
    subscriptions.update(life.shard_set.router, life.subject, Change(interval=Interval(unit=Unit.WEEK, count=1)), by=BY)
    life.at(110)
    life.schedule()
    assert [period[:2] for period in life.periods()][:4] == [
        ("2024-01-31", "2024-02-29"),
        ("2024-02-29", "2024-04-30"),
        ("2024-04-30", "2024-05-07"),
        ("2024-05-07", "2024-05-14"),
    ]
    before = subscriptions.show(life.shard_set.router, life.subject).spans
    assert [(span.terms.interval.count, span.next_period) for span in before] == [(1, 1), (2, 1)]
    assert life.is_clean()


def test_one_that_is_canceled_at_the_end_of_its_period_is_invoiced_no_more(life: Life) -> None:
    life.schedule()
    subscriptions.cancel(life.shard_set.router, life.subject, at_period_end=True, by=BY)
    assert life.told("subscription.updated") == [{"changes": {"cancel_at": "2024-02-29"}}]
    assert life.charge(PAID) == 1
    life.at(29)
    assert life.schedule() == 0
    assert life.status() is Status.CANCELED
    assert life.events() == ["subscription.updated", "payment.succeeded", "subscription.canceled"]
    assert life.is_clean()


def test_the_debt_of_one_that_is_canceled_is_still_collected(life: Life) -> None:
    life.schedule()
    life.charge(SOFT)
    life.dun()
    subscriptions.cancel(life.shard_set.router, life.subject, at_period_end=False, by=BY)
    life.at(1)
    assert life.charge(PAID) == 1
    life.dun()
    assert (life.status(), life.periods()[0][2]) == (Status.CANCELED, 2)
    assert life.events() == ["subscription.past_due", "subscription.canceled", "payment.succeeded"]
    assert life.is_clean()


def test_a_new_payment_method_brings_what_waits_forward(life: Life) -> None:
    life.schedule()
    life.charge(NEW_METHOD)
    life.dun()
    assert life.jobs() == [(JobStatus.AWAITING_CUSTOMER, 1, "pm_ok", 1)]
    subscriptions.change_payment_method(life.shard_set.router, life.subject, "pm_new", grace_seconds=60, by=BY)
    assert life.jobs() == [(JobStatus.READY, 1, "pm_new", 1)]
    (told,) = life.told("payment_method.changed")
    assert told == {}
    (act,) = life.shard_set.rows(life.shard, "SELECT before_act, after_act FROM manual_act")
    assert "pm_new" not in "".join(act)
    assert life.charge(PAID) == 1
    life.dun()
    assert life.status() is Status.ACTIVE
    life.at(29)
    life.schedule()
    assert life.jobs()[1][2] == "pm_new"
    assert life.is_clean()


def test_a_first_attempt_that_is_still_to_come_keeps_its_time(life: Life) -> None:
    life.schedule()
    life.shard_set.change(life.shard, "UPDATE billing_job SET due_at = '2024-02-01' WHERE shard_id = %(shard)s")
    subscriptions.change_payment_method(life.shard_set.router, life.subject, "pm_new", grace_seconds=60, by=BY)
    assert life.jobs() == [(JobStatus.READY, 0, "pm_new", 0)]
    assert life.claim() == []


def test_what_a_person_set_aside_stays_there(life: Life) -> None:
    life.schedule()
    life.shard_set.change(life.shard, "UPDATE billing_job SET status = 5 WHERE shard_id = %(shard)s")
    subscriptions.change_payment_method(life.shard_set.router, life.subject, "pm_new", grace_seconds=60, by=BY)
    assert life.jobs() == [(JobStatus.REVIEW, 0, "pm_new", 0)]


@pytest.mark.parametrize(
    ("word", "starts"),
    [
        ({"periods": 2}, ["2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30", "2024-05-31"]),
        ({"skip_to": date(2024, 4, 1)}, ["2024-04-30", "2024-05-31"]),
        ({"skip_to": date(2024, 6, 1)}, []),
    ],
)
def test_the_word_for_missed_periods(life: Life, word: dict[str, Any], starts: list[str]) -> None:
    life.at(130)  # 9 June
    assert life.schedule(missed_max=3) == 0
    subscriptions.catch_up(life.shard_set.router, life.subject, **word, by=BY)
    life.schedule(missed_max=3)
    assert [start for start, _, _ in life.periods()] == starts
    assert life.row.held_since is None
    assert life.is_clean()


def test_what_is_not_possible_changes_nothing(life: Life) -> None:
    life.schedule()
    router = life.shard_set.router
    with pytest.raises(NotFound):
        subscriptions.show(router, Subject(id="sub-x", shard_count=2))
    with pytest.raises(NotFound):
        subscriptions.cancel(router, Subject(id="sub-x", shard_count=2), at_period_end=False, by=BY)
    with pytest.raises(NotPossible):
        subscriptions.catch_up(router, life.subject, periods=3, by=BY)
    with pytest.raises(InvalidInput, match="reason"):
        subscriptions.cancel(router, life.subject, at_period_end=False, by=By(actor="anna", reason=" "))
    assert life.status() is Status.ACTIVE
    assert acts(life) == []
    assert life.events() == []


@pytest.mark.parametrize("after", [True, False])
def test_a_lost_answer_to_commit_is_done_once(life: Life, lose_commit: Callable[[bool], None], after: bool) -> None:
    life.schedule()
    lose_commit(after)
    row = subscriptions.update(life.shard_set.router, life.subject, Change(amount=1500), by=BY)
    assert row.terms.amount == 1500
    assert len(acts(life)) == len(life.told("subscription.updated")) == life.shard_set.count("subscription_span") == 1


# The command line


def test_the_commands_show_and_change_a_subscription(shard_set: ShardSet, tmp_path: Path) -> None:
    shard_set.add_subscription("sub-1", start_date=date(2999, 1, 31), next_invoice_at="2999-01-31")
    env = {"BILLING_SHARDS_MANIFEST": str(shard_set.manifest(tmp_path / "set.yaml"))}

    def run(*arguments: str) -> tuple[int | None, str]:
        ended = cli("subscription", *arguments, env=env)
        return ended.code, ended.out or ended.err

    why = ("--reason", "new tariff", "--actor", "anna")
    assert run("update", "sub-1", "--amount", "12.50", "--interval", "3 months", *why)[0] == 0
    assert run("payment-method", "sub-1", "pm_2", *why)[0] == 0
    found = cli("subscription", "show", "sub-1", "--json", env=env).json
    assert (found["amount"], found["interval"], found["status"], len(found["acts"])) == (1250, "3 months", "active", 2)
    assert run("cancel", "sub-1", "--at-period-end", *why)[0] == 0
    code, text = run("show", "sub-1")
    assert code == 0
    assert "active, ends on 2999-01-31" in text
    assert "12.50 USD every 3 months for video" in text
    assert "subscription.cancel by anna: new tariff" in text
    assert "pm_2" not in text
    assert run("cancel", "sub-1", *why) == (
        0,
        "subscription sub-1: canceled; 12.50 USD every 3 months for video; no next invoice\n",
    )
    assert run("cancel", "sub-1", *why) == (5, "error: the subscription is canceled already\n")
    assert run("show", "sub-x")[0] == 4


WRONG = [
    (("update", "sub-1"), "needs one of"),
    (("update", "sub-1", "--amount", "1.234"), "has 3 decimals"),
    (("update", "sub-1", "--currency", "XXX"), "ISO 4217"),
    (("update", "sub-1", "--currency", "EUR"), "is needed in the new currency"),
    (("update", "sub-1", "--interval", "monthly"), "is not like"),
    (("payment-method", "sub-1", "4111111111111111"), "looks like a card number"),
    (("catch-up", "sub-1"), "needs one of --periods and --skip-to"),
    (("catch-up", "sub-1", "--skip-to", "tomorrow"), "skip-to"),
    (("cancel", "sub-1", "--at-period-end", "--write-off"), "takes place now"),
]


def test_wrong_input_is_named(shard_set: ShardSet, tmp_path: Path) -> None:
    shard_set.add_subscription("sub-1", start_date=date(2999, 1, 31), next_invoice_at="2999-01-31")
    manifest = shard_set.manifest(tmp_path / "set.yaml")
    for arguments, said in WRONG:
        ended = cli("subscription", *arguments, "--reason", "test", "--actor", "anna", "--manifest", manifest)
        assert (ended.code, ended.out) == (2, ""), arguments
        assert said in ended.err, arguments
    assert shard_set.count("manual_act") == 0
