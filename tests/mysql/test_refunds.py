"""Refunds on real servers: their sum, their keys, what is booked, and what reversals make of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from billing_shards.cli.codes import ExitCode
from billing_shards.errors import BillingShardsError, InvalidInput, NotPossible
from billing_shards.errors import NotFound as NothingThere
from billing_shards.jobs.model import RETRY
from billing_shards.payments import recheck
from billing_shards.payments.asker import Asker
from billing_shards.payments.model import AttemptOutcome, DeclineClass, Declined, NotFound, NotSent, Succeeded, Unknown
from billing_shards.payments.refunds import work
from billing_shards.payments.refunds.close import close_in_review
from billing_shards.payments.refunds.model import RefundStatus
from billing_shards.payments.refunds.request import RefundOrder, request
from billing_shards.payments.webhooks.model import RefundReference
from billing_shards.process import ShardSet as Named
from billing_shards.process import providers
from tests.mysql.command import cli
from tests.mysql.money import SHARD, Money
from tests.mysql.shard_set import DueJob

R = RefundStatus


def refunded(amount: int) -> tuple[str, str, int]:
    return ("refunds:video", "clearing:http", amount)


def reverse(money: Money, due: DueJob, attempt: int = 1, amount: int = 990) -> None:
    money.hear("charge.reversed", f"{SHARD}/{due.invoice}/{attempt}", amount=amount, code="late_failure")
    money.apply()


def test_a_refund_goes_to_the_charge_it_is_of_and_is_booked_on_success(money: Money) -> None:
    due = money.paid()
    reference = money.refund(due, 300)
    assert (money.refunds(), money.entries(due)[1:]) == ([R.REQUESTED], [])
    assert money.push() == 1
    assert (money.refunds(), money.entries(due)[1:]) == ([R.SUCCEEDED], [refunded(300)])
    assert money.invoice(due) == 2
    kind, payload = money.events(due)[-1]
    assert (kind, payload) == (
        "invoice.refunded",
        {"invoice": due.invoice, "refund": reference, "amount": 300, "currency": "USD", "by": "ours"},
    )
    act = money.shard_set.rows(SHARD, "SELECT actor, act, subject, reason FROM manual_act WHERE shard_id = %(shard)s")
    assert [tuple(row) for row in act] == [("anna", "invoice.refund", f"invoice:{due.invoice}", "asked for it")]
    assert money.push() == 0
    assert money.broken() == {}


def test_refunds_add_up_to_what_was_paid_and_not_to_more(money: Money) -> None:
    due = money.paid()
    money.refund(due, 300, "k1")
    money.push()
    money.refund(due, 90, "k2")
    with pytest.raises(InvalidInput, match=r"--amount: is not within the 6\.00 USD that are left"):
        money.refund(due, 601, "k3")
    money.push()
    money.refund(due, None, "k4")
    with pytest.raises(InvalidInput, match=r"0\.00 USD"):
        money.refund(due, 1, "k5")
    with pytest.raises(InvalidInput, match="--amount"):
        money.refund(due, None, "k6")
    money.push()
    assert sorted(amount for *_, amount in money.entries(due)[1:]) == [90, 300, 600]
    assert money.broken() == {}


def test_the_same_key_is_the_same_refund(money: Money) -> None:
    due = money.paid()
    first = money.refund(due, 300)
    assert money.refund(due, 300) == first
    money.push()
    assert money.refund(due, None) == first
    with pytest.raises(InvalidInput, match=r"--key: stands for a refund of 3\.00 USD"):
        money.refund(due, 301)
    assert (money.refunds(), money.shard_set.count("manual_act")) == ([R.SUCCEEDED], 1)


def test_two_at_once_cannot_both_pass_the_bound(money: Money) -> None:
    due = money.paid()
    together = threading.Barrier(8)

    def ask(number: int) -> bool:
        together.wait()
        try:
            money.refund(due, 300, f"k{number}")
        except InvalidInput:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 3
    assert money.one("SELECT SUM(amount) FROM refund WHERE shard_id = %(shard)s") == 900


def test_many_with_one_key_make_one(money: Money) -> None:
    due = money.paid()
    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(lambda _: money.refund(due, 300), range(6)))) == 1
    assert money.refunds() == [R.REQUESTED]


@pytest.mark.parametrize("after", [True, False])
def test_a_lost_answer_to_the_commit_asks_once(money: Money, lose_commit: Callable[[bool], None], after: bool) -> None:
    due = money.paid()
    lose_commit(after)
    money.refund(due, 300)
    assert (money.refunds(), money.shard_set.count("manual_act")) == ([R.REQUESTED], 1)


@pytest.mark.parametrize("after", [True, False])
def test_a_lost_answer_to_the_commit_takes_and_books_once(money: Money, lose_commit: Callable[[bool], None], after: bool) -> None:
    due = money.paid()
    money.refund(due, 300)
    lose_commit(after)
    (taken,) = money.take(again=False)
    (outcome,) = money.with_providers(lambda found: work.ask(found, [taken]))
    lose_commit(after)
    work.settle(money.shard_set.router, taken, outcome, policy=money.shard_set.spec.retry)
    assert (money.refunds(), money.entries(due)[1:]) == ([R.SUCCEEDED], [refunded(300)])
    assert money.told(due) == ["payment.succeeded", "invoice.refunded"]


def test_what_is_not_paid_cannot_be_refunded(money: Money) -> None:
    due = money.due()
    with pytest.raises(InvalidInput, match="INVOICE: is not paid"):
        money.refund(due, 300)
    with pytest.raises(NothingThere, match="3/999"):
        request(money.shard_set.router, RefundOrder(shard=3, invoice=999, amount=1, key="k", actor="a", reason="r"))
    for key in ("", " k", "k\n", "ü", "x" * 129):
        with pytest.raises(InvalidInput, match="--key"):
            money.refund(due, 300, key)
    assert money.refunds() == []


def test_an_invoice_whose_job_is_deleted_can_be_refunded(money: Money) -> None:
    due = money.paid()
    money.shard_set.change(SHARD, "DELETE FROM billing_job WHERE shard_id = %(shard)s")
    money.refund(due, 300)
    money.push()
    assert money.refunds() == [R.SUCCEEDED]


def test_a_refund_that_is_pending_is_booked_when_it_succeeds(money: Money) -> None:
    due = money.paid(payment_method="pm_refund_pending")
    reference = money.refund(due, 300)
    money.push()
    assert (money.refunds(), money.entries(due)[1:]) == ([R.PENDING], [])
    money.fake.advance(100)
    assert money.push(again=False) == 0
    money.hear("refund.succeeded", reference, amount=300)
    money.apply()
    assert money.push(again=False) == 1
    money.apply(again=True)
    assert (money.refunds(), money.entries(due)[1:], money.results()) == ([R.SUCCEEDED], [refunded(300)], ["known"])


@pytest.mark.parametrize("method", ["pm_refund_fails", "pm_refund_late_failure"])
def test_a_failed_refund_books_nothing_and_its_amount_may_be_refunded_anew(money: Money, method: str) -> None:
    due = money.paid(payment_method=method)
    money.refund(due)
    money.push()
    money.fake.advance(100)
    money.push()
    assert (money.refunds(), money.entries(due)[1:]) == ([R.FAILED], [])
    kind, payload = money.events(due)[-1]
    assert (kind, payload["code"]) == ("refund.failed", "refund_failed")
    money.refund(due, key="k2")
    assert money.broken() == {}


@pytest.mark.parametrize("method", ["pm_lost_answer", "pm_500_after", "pm_conflict", "pm_rate_limited"])
def test_whatever_happens_on_the_way_it_is_refunded_once(money: Money, method: str) -> None:
    due = money.due(payment_method=method)
    for _ in range(4):
        money.shard_set.change(SHARD, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s AND status = 0")
        money.work()
        money.fake.advance(1)
    assert money.invoice(due) == 2
    money.refund(due, 300)
    for _ in range(6):
        money.push()
        money.fake.advance(1)
    assert (money.refunds(), money.entries(due)[1:]) == ([R.SUCCEEDED], [refunded(300)])
    assert money.told(due)[-1] == "invoice.refunded"
    assert money.broken() == {}


def test_a_process_that_died_after_the_send_is_followed_by_a_look_up(money: Money) -> None:
    due = money.paid()
    money.refund(due, 300)
    (taken,) = money.take()
    money.with_providers(lambda found: work.ask(found, [taken]))
    assert money.take() == []
    money.shard_set.change(SHARD, "UPDATE refund SET due_at = NOW(6) WHERE shard_id = %(shard)s")
    (again,) = money.take(again=False)
    assert again.sent_age is not None
    assert work.settle(money.shard_set.router, taken, Unknown(reason="late"), policy=money.shard_set.spec.retry) is None
    (outcome,) = money.with_providers(lambda found: work.ask(found, [again]))
    assert work.settle(money.shard_set.router, again, outcome, policy=money.shard_set.spec.retry) is not None
    assert (money.refunds(), money.entries(due)[1:]) == ([R.SUCCEEDED], [refunded(300)])


def test_a_request_that_never_arrived_begins_its_keys_life_with_the_next_send(money: Money) -> None:
    due = money.paid()
    money.refund(due, 300)
    (taken,) = money.take()
    assert taken.sent_age is None
    work.settle(money.shard_set.router, taken, NotSent(reason="down"), policy=money.shard_set.spec.retry)
    assert (money.refunds(), money.one("SELECT sent_at IS NULL FROM refund WHERE shard_id = %(shard)s")) == ([R.REQUESTED], 1)
    money.push()
    assert money.refunds() == [R.SUCCEEDED]


def test_after_the_keys_life_it_is_only_looked_for_and_then_a_person_looks(money: Money) -> None:
    due = money.paid()
    reference = money.refund(due, 300)
    (taken,) = money.take()
    work.settle(money.shard_set.router, taken, Unknown(reason="time-out"), policy=money.shard_set.spec.retry)
    money.shard_set.change(SHARD, "UPDATE refund SET sent_at = sent_at - INTERVAL 1 DAY WHERE shard_id = %(shard)s")
    while money.push():
        pass
    assert (money.refunds(), money.told(due)) == ([R.REVIEW], ["payment.succeeded", "refund.review"])
    assert money.one("SELECT checks FROM refund WHERE shard_id = %(shard)s") == len(
        money.shard_set.spec.retry.check_delays_seconds
    )
    with pytest.raises(InvalidInput):
        money.refund(due, 700, "k2")
    money.hear("refund.succeeded", reference, amount=300)
    money.apply()
    assert money.push(again=False) == 1
    assert money.refunds() == [R.REVIEW]
    assert money.told(due)[-1] == "refund.review"


def in_review(money: Money, due: DueJob, amount: int) -> str:
    """A refund that nobody can tell of; its reference."""
    reference = money.refund(due, amount)
    money.shard_set.change(SHARD, "UPDATE refund SET status = 5, due_at = NULL, sent_at = NOW(6) WHERE shard_id = %(shard)s")
    return reference


@pytest.mark.parametrize(
    ("word", "status", "entries", "told"),
    [
        (["--made", "re_1"], "succeeded", [refunded(300)], "invoice.refunded"),
        (["--not-made"], "failed", [], "refund.failed"),
    ],
)
def test_a_person_says_what_became_of_a_refund_in_review(
    money: Money, tmp_path: Path, word: list[str], status: str, entries: list[tuple[str, str, int]], told: str
) -> None:
    due = money.paid()
    reference = in_review(money, due, 300)
    manifest = money.shard_set.manifest(tmp_path / "manifest.yaml")
    close = ["invoice", "close-refund", reference, *word, "--reason", "seen at the bank", "--actor", "anna", "--manifest"]
    shown = cli(*close, manifest, "--json").json
    assert (shown["refund"], shown["status"], shown["key"], shown["amount"]) == (reference, status, "k1", 300)
    assert (money.entries(due)[1:], money.told(due)[-1]) == (entries, told)
    act = money.shard_set.rows(
        SHARD, "SELECT actor, act, subject FROM manual_act WHERE act LIKE '%%close%%' AND shard_id = %(shard)s"
    )
    assert [tuple(row) for row in act] == [("anna", "invoice.close_refund", f"invoice:{due.invoice}")]
    assert "invoice.close_refund" in cli("invoice", "show", f"{SHARD}/{due.invoice}", "--manifest", manifest).out
    again = cli(*close, manifest)
    assert (again.code, f"is {status}, and only one in review is closed" in again.err) == (ExitCode.FAILED, True)
    assert money.push() == 0
    assert money.broken() == {}
    left = 690 if status == "succeeded" else 990
    assert money.refund(due, left, "k2")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["{ref}"], ExitCode.BAD_INPUT, "--made: or --not-made: one of them"),
        (["{ref}", "--made", "re_1", "--not-made"], ExitCode.BAD_INPUT, "--made: or --not-made: one of them"),
        (["{ref}", "--made", "ré"], ExitCode.BAD_INPUT, "--made: must be the provider's name"),
        (["{ref}", "--not-made", "--reason", " "], ExitCode.BAD_INPUT, "--reason: is empty"),
        (["1/1/1", "--not-made"], ExitCode.BAD_INPUT, "REFUND: 1/1/1 names no refund"),
        (["{ref}9", "--not-made"], ExitCode.NOT_FOUND, "is not there"),
        (["9999/1/r1", "--not-made"], ExitCode.BAD_INPUT, "names no refund"),
    ],
)
def test_what_does_not_close_a_refund_is_named_and_changes_nothing(
    money: Money, tmp_path: Path, words: list[str], code: ExitCode, message: str
) -> None:
    due = money.paid()
    reference = f"{SHARD}/{due.invoice}/r7"
    in_review(money, due, 300)
    money.shard_set.change(SHARD, "UPDATE refund SET id = 7 WHERE shard_id = %(shard)s")
    manifest = money.shard_set.manifest(tmp_path / "manifest.yaml")
    named = [word.replace("{ref}", reference) for word in words]
    ended = cli("invoice", "close-refund", "--reason", "seen", *named, "--actor", "anna", "--manifest", manifest)
    assert (ended.code, message in ended.err) == (code, True), ended.err
    assert (money.refunds(), money.told(due)) == ([R.REVIEW], ["payment.succeeded"])


@pytest.mark.parametrize("dies", [False, True])
def test_a_refund_that_the_provider_is_being_asked_about_is_not_closed_until_the_asker_is_done_or_lost(
    money: Money,
    dies: bool,
) -> None:
    due = money.paid()
    reference = in_review(money, due, 300)
    money.hear("refund.succeeded", reference, amount=300)
    money.apply()
    (taken,) = money.take(again=False)
    named = RefundReference(shard=SHARD, invoice=due.invoice, refund=taken.refund.id)
    policy = money.shard_set.spec.retry
    with pytest.raises(NotPossible, match="is being asked about it now"):
        close_in_review(money.shard_set.router, named, None, policy=policy, actor="anna", reason="seen")
    if dies:
        money.shard_set.change(SHARD, "UPDATE refund SET due_at = NOW(6) WHERE shard_id = %(shard)s")
    else:
        work.settle(money.shard_set.router, taken, Unknown(reason="late"), policy=policy)
    assert close_in_review(money.shard_set.router, named, None, policy=policy, actor="anna", reason="seen").status is R.FAILED
    assert work.settle(money.shard_set.router, taken, Succeeded(provider_ref="re_1"), policy=policy) is None
    assert (money.refunds(), money.entries(due)[1:], str(named)) == ([R.FAILED], [], reference)


def test_a_refund_that_fails_after_it_succeeded_is_booked_back(money: Money) -> None:
    due = money.paid(payment_method="pm_refund_late_failure")
    reference = money.refund(due, 300)
    money.push()
    (taken,) = money.take()
    work.settle(money.shard_set.router, taken, Succeeded(provider_ref="re_x"), policy=money.shard_set.spec.retry)
    assert money.entries(due)[1:] == [refunded(300)]
    money.fake.advance(100)
    money.hear("refund.succeeded", reference, amount=300)
    money.hear("refund.failed", reference, amount=300)
    money.apply()
    assert money.push(again=False) == 1
    assert (money.refunds(), money.entries(due)[1:]) == (
        [R.FAILED],
        [refunded(300), ("clearing:http", "refunds:video", 300)],
    )
    kind, payload = money.events(due)[-1]
    assert (kind, payload["came_back"]) == ("refund.failed", True)
    money.apply(again=True)
    assert money.results() == ["known", "known"]
    assert money.broken() == {}
    money.refund(due, 990, "k2")


# Refunds and late failures


def test_a_charge_that_was_taken_back_cannot_be_refunded(money: Money) -> None:
    due = money.paid()
    reverse(money, due)
    with pytest.raises(InvalidInput, match="is not paid"):
        money.refund(due, 300)


def test_a_refunded_charge_that_is_taken_back_whole_is_owed_whole(money: Money) -> None:
    """The customer got both back, so that with the next payment the refund is what is left: as it was meant."""
    due = money.paid()
    money.refund(due, 300)
    money.push()
    reverse(money, due)
    assert money.invoice(due) == 1
    assert money.broken() == {}
    money.shard_set.change(SHARD, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s")
    money.work(RETRY)
    assert money.invoice(due) == 2
    with pytest.raises(InvalidInput, match=r"6\.90 USD"):
        money.refund(due, 691, "k2")
    money.refund(due, 690, "k2")
    money.push()
    assert money.one("SELECT attempt_no FROM refund WHERE shard_id = %(shard)s AND amount = 690") == 2
    assert money.broken() == {}


def test_the_rest_of_a_refunded_charge_that_is_taken_back_leaves_nothing_owed(money: Money) -> None:
    due = money.paid()
    money.refund(due, 300)
    money.push()
    reverse(money, due, amount=690)
    assert (money.invoice(due), money.results()) == (2, ["taken_back_in_part"])
    assert money.entries(due)[1:] == [refunded(300), refunded(690)]
    with pytest.raises(InvalidInput):
        money.refund(due, 1, "k2")
    assert money.broken() == {}


def test_more_than_is_left_is_taken_back_only_by_mistake(money: Money) -> None:
    due = money.paid()
    money.refund(due, 300)
    money.push()
    reverse(money, due, amount=700)
    assert (money.results(), money.entries(due)[1:]) == (["reversed_more_than_left"], [refunded(300)])
    assert money.told(due)[-1] == "payment.review"


@pytest.mark.parametrize(("amount", "result"), [(690, "taken_back_in_part"), (691, "reversed_more_than_left")])
def test_a_part_that_is_taken_back_does_not_wait_for_a_refund_that_nobody_can_tell_of(
    money: Money, amount: int, result: str
) -> None:
    """Found by the simulator: it waited for ever, and nobody was called."""
    due = money.paid()
    in_review(money, due, 300)
    reverse(money, due, amount=amount)
    assert money.results() == [result]
    assert money.broken() == {}


def test_a_part_that_is_taken_back_waits_for_refunds_that_are_under_way(money: Money) -> None:
    due = money.paid(payment_method="pm_refund_late_failure")
    money.refund(due, 990)
    money.push()
    reverse(money, due, amount=400)
    assert money.results() == [None]
    money.fake.advance(100)
    money.push()
    assert money.refunds() == [R.FAILED]
    money.apply(again=True)
    assert (money.results(), money.entries(due)[1:]) == (["taken_back_in_part"], [refunded(400)])


def test_a_refund_asked_for_before_the_charge_was_taken_back_fails_at_the_provider(money: Money) -> None:
    due = money.paid()
    money.refund(due, 300)
    charge = money.one("SELECT provider_ref FROM payment_attempt WHERE shard_id = %(shard)s AND job_id = %(id)s", id=due.job)
    money.fake.reverse(charge)
    reverse(money, due)
    money.push()
    assert money.refunds() == [R.FAILED]
    kind, payload = money.events(due)[-1]
    assert (kind, payload["code"]) == ("refund.failed", "charge_not_refundable")
    assert len(money.entries(due)) == 2
    assert money.broken() == {}


def test_a_refund_and_a_reversal_at_once_never_both_change_what_the_other_checked(money: Money) -> None:
    for number in range(6):
        due = money.paid(f"race-{number}")
        money.hear("charge.reversed", f"{SHARD}/{due.invoice}/1", event_id=f"ev_{number}", code="late_failure")
        together = threading.Barrier(2)

        def ask(due: DueJob = due, together: threading.Barrier = together) -> None:
            together.wait()
            try:
                money.refund(due, 990)
            except InvalidInput as error:
                assert error.field == "INVOICE"  # noqa: PT017 - in a thread

        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(ask)
            together.wait()
            money.apply()
            asked.result()
        while money.apply(again=True):
            pass
        assert money.invoice(due) == 1
    assert set(money.results()) == {"reversed"}
    assert money.broken() == {}


# The housekeeper's way, and the command's


def test_the_housekeeper_pushes_from_a_thread_of_its_own(money: Money) -> None:
    due = money.paid()
    money.refund(due, 300)
    named = Named(name="main", spec=money.shard_set.spec, secrets=money.shard_set.secrets)
    with Asker(money.shard_set.router, lambda: providers(named), money.shard_set.spec) as asker:
        assert asker.refunds(money.database, [SHARD])
        assert not asker.refunds(money.database, [SHARD])
    assert money.refunds() == [R.SUCCEEDED]


def test_a_provider_that_is_not_listed_any_more_is_waited_for(money: Money) -> None:
    due = money.paid()
    money.shard_set.change(SHARD, "UPDATE payment_attempt SET provider = 'gone' WHERE shard_id = %(shard)s")
    money.refund(due, 300)
    money.push()
    assert (money.refunds(), money.one("SELECT due_at > NOW(6) FROM refund WHERE shard_id = %(shard)s")) == ([R.REQUESTED], 1)


def test_the_command_asks_for_a_refund(money: Money, tmp_path: Path) -> None:
    due = money.paid()
    manifest = money.shard_set.manifest(tmp_path / "manifest.yaml")
    ask: list[str | Path] = ["refund", f"{SHARD}/{due.invoice}", "--reason", "broken", "--actor", "anna", "--manifest", manifest]
    first = cli(*ask, "--amount", "3.00", "--key", "k1", "--json").json
    assert (first["amount"], first["currency"], first["status"], first["key"]) == (300, "USD", "requested", "k1")
    assert cli(*ask, "--amount", "3.00", "--key", "k1", "--json").json == first
    assert money.push() == 1
    too_much = cli(*ask, "--amount", "9.00", "--key", "k2")
    assert (too_much.code, "6.90 USD" in too_much.err) == (ExitCode.BAD_INPUT, True)
    rest = cli(*ask)
    assert (rest.code, "6.90 USD by http, requested" in rest.out, rest.err.startswith("key ")) == (ExitCode.OK, True, True)
    assert cli("refund", "3/999", "--reason", "x", "--manifest", manifest).code == ExitCode.NOT_FOUND
    story = cli("invoice", "show", f"{SHARD}/{due.invoice}", "--manifest", manifest, "--json").json
    told = [(refund["amount"], refund["status"], refund["source"]) for refund in story["refunds"]]
    assert told == [(300, "succeeded", "ours"), (690, "requested", "ours")]
    shown = cli("invoice", "show", f"{SHARD}/{due.invoice}", "--manifest", manifest).out
    assert "refund succeeded" in shown


def test_nothing_is_asked_for_where_the_database_refuses(money: Money) -> None:
    due = money.paid()
    money.shard_set.change(SHARD, "UPDATE shard_owner SET state = 2 WHERE shard_id = %(shard)s")
    with pytest.raises(BillingShardsError, match="fenced"):
        money.refund(due, 300)
    assert money.refunds() == []


# Late failures that no webhook told of


def test_a_refund_that_fails_finds_the_charge_that_was_taken_back(money: Money) -> None:
    due = money.paid()
    charge = money.one("SELECT provider_ref FROM payment_attempt WHERE shard_id = %(shard)s AND job_id = %(id)s", id=due.job)
    money.fake.reverse(charge)
    money.refund(due, 300)
    named = Named(name="main", spec=money.shard_set.spec, secrets=money.shard_set.secrets)
    with Asker(money.shard_set.router, lambda: providers(named), money.shard_set.spec) as asker:
        asker.refunds(money.database, [SHARD])
    assert (money.refunds(), money.invoice(due), money.outcomes(due)) == ([R.FAILED], 1, [AttemptOutcome.REVERSED])
    assert money.told(due) == ["payment.succeeded", "refund.failed", "payment.reversed"]
    reverse(money, due)
    assert money.results() == ["known"]
    assert money.broken() == {}


@pytest.mark.parametrize("after", [True, False])
def test_what_a_look_up_says_is_booked_once_and_only_where_it_says_so(
    money: Money, lose_commit: Callable[[bool], None], after: bool
) -> None:
    router, spec, due = money.shard_set.router, money.shard_set.spec, money.paid()
    found = recheck.charged(router, SHARD, due.invoice)
    assert found is not None
    assert (str(found.attempt), found.provider) == (f"{SHARD}/{due.invoice}/1", "http")
    for answer in (Succeeded(provider_ref="ch_1"), Unknown(reason="?"), NotFound(), NotSent(reason="down")):
        assert not recheck.take_back(router, spec, found.attempt, answer, draw=0.0)
    assert money.invoice(due) == 2
    declined = Declined(decline_class=DeclineClass.RETRYABLE, code="late_failure", provider_ref="ch_1")
    lose_commit(after)
    assert recheck.take_back(router, spec, found.attempt, declined, draw=0.0)
    assert (money.invoice(due), len(money.entries(due))) == (1, 2)
    assert recheck.charged(router, SHARD, due.invoice) is None
    assert recheck.charged(router, SHARD, 999) is None
    assert money.broken() == {}


def test_a_person_asks_whether_a_charge_still_stands(money: Money, tmp_path: Path) -> None:
    due = money.paid()
    manifest = money.shard_set.manifest(tmp_path / "manifest.yaml")
    ask: list[str | Path] = ["invoice", "recheck", f"{SHARD}/{due.invoice}", "--manifest", manifest]
    standing = {"charge": f"{SHARD}/{due.invoice}/1", "provider": "http", "answer": "succeeded", "reversed": False}
    assert cli(*ask, "--json").json == standing
    charge = money.one("SELECT provider_ref FROM payment_attempt WHERE shard_id = %(shard)s AND job_id = %(id)s", id=due.job)
    money.fake.reverse(charge)
    assert cli(*ask, "--json").json == {**standing, "answer": "declined", "reversed": True}
    assert money.invoice(due) == 1
    again = cli(*ask)
    assert (again.code, "is not paid" in again.err) == (ExitCode.BAD_INPUT, True)
    assert money.broken() == {}
