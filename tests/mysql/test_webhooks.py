"""Webhooks on real servers: what is stored, what it leads to, and that nothing of it happens twice or is lost."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from itertools import permutations
from typing import Any

import aiohttp
import pytest

from billing_shards import receiver
from billing_shards.db import queries
from billing_shards.errors import InvalidInput
from billing_shards.jobs.model import RETRY, Status
from billing_shards.payments.model import ActionRequired, AttemptOutcome, Succeeded, Unknown, WebhookKind
from billing_shards.payments.webhooks import store
from billing_shards.payments.webhooks.apply import Applier
from billing_shards.process import ShardSet as Named
from billing_shards.process import providers as providers_of
from billing_shards.receiver import Door, Receiver
from billing_shards.shards.shardset import ManifestSecrets
from hack.fake_gateway.webhooks import signature
from tests.mysql.money import SHARD, Money
from tests.mysql.shard_set import DueJob, pretty

SECRET = "whsec_1"


def reference(due: DueJob, attempt: int = 1) -> str:
    return f"{due.shard}/{due.invoice}/{attempt}"


# At the door


def post(
    money: Money, bodies: list[tuple[str, bytes, dict[str, str]]], *, secrets: tuple[str, ...] = (SECRET,), tolerance: float = 300
) -> list[int]:
    """Send (path, body, headers) to a receiver, one after the other; the statuses of its answers."""
    door = Door(secrets=lambda: [secret.encode() for secret in secrets], tolerance_seconds=tolerance)

    async def send() -> list[int]:
        found_providers = providers_of(Named(name="main", spec=money.shard_set.spec, secrets=ManifestSecrets({})))
        served = Receiver(money.shard_set.router, found_providers, {"http": door}, money.shard_set.spec.shard_count)
        found = []
        try:
            async with served.serve(0) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                for path, body, headers in bodies:
                    async with session.post(path, data=io.BytesIO(body), headers=headers) as response:
                        found.append(response.status)
        finally:
            await found_providers.close()
        return found

    return asyncio.run(send())


def event(kind: str = "charge.succeeded", number: int = 1, **data: Any) -> bytes:
    charge = {"id": "ch_1", "reference": f"{SHARD}/17/1", "amount": 990, "currency": "USD", "status": "succeeded", **data}
    return json.dumps({"id": f"ev_{number}", "type": kind, "data": charge}).encode()


def signed(
    body: bytes, *secrets: str, at: float | None = None, path: str = "/webhooks/http"
) -> tuple[str, bytes, dict[str, str]]:
    header = signature(secrets or (SECRET,), body, time.time() if at is None else at)
    return path, body, {"Webhook-Signature": header}


def test_a_webhook_is_stored_once_on_the_shard_it_names(money: Money) -> None:
    assert post(money, [signed(event()), signed(event()), signed(event(number=2))]) == [200, 200, 200]
    rows = money.shard_set.rows(
        SHARD, "SELECT provider, event_id, kind, reference, amount, currency, status, tries FROM webhook ORDER BY event_id"
    )
    assert [tuple(row) for row in rows] == [
        ("http", f"ev_{n}", "charge.succeeded", f"{SHARD}/17/1", 990, "USD", 0, 0) for n in (1, 2)
    ]
    assert money.shard_set.count("webhook", f"shard_id <> {SHARD}") == 0


def test_what_is_not_proved_to_be_the_providers_stores_nothing(money: Money) -> None:
    body, now = event(), time.time()
    path, _, headers = signed(body)
    refused = [
        signed(body, "whsec_other"),
        (path, body, {}),
        (path, body + b" ", headers),
        (path, json.dumps(json.loads(body), indent=1).encode(), headers),
        signed(body, at=now - 400),
        signed(body, at=now + 400),
    ]
    assert post(money, refused) == [401] * len(refused)
    assert money.shard_set.count("webhook") == 0


def test_the_tolerance_is_a_setting(money: Money) -> None:
    old = signed(event(), at=time.time() - 400)
    assert post(money, [old]) == [401]
    assert post(money, [old], tolerance=500) == [200]


def test_a_secret_is_replaced_without_a_gap(money: Money) -> None:
    bodies = [event(number=number) for number in range(3)]
    sent = [signed(bodies[0], "old"), signed(bodies[1], "old", "new"), signed(bodies[2], "new")]
    assert post(money, sent, secrets=("new", "old")) == [200, 200, 200]


def test_what_is_no_event_and_who_is_no_provider(money: Money) -> None:
    odd = [b"not json", b"[]", b'{"id": "ev_1"}', json.dumps({"id": "ev " + "x" * 200, "type": "other"}).encode()]
    assert post(money, [signed(body) for body in odd]) == [400] * len(odd)
    assert post(money, [signed(event(), path="/webhooks/nobody"), signed(event(), path="/")]) == [404, 404]
    assert post(money, [signed(b'{"id": "' + b"x" * (1 << 20) + b'"}')]) == [413]
    assert money.shard_set.count("webhook") == 0


def test_without_a_secret_nobody_is_let_in(money: Money) -> None:
    assert post(money, [signed(event())], secrets=()) == [401]


def test_kinds_and_references_that_are_not_ours_are_stored_and_left_alone(money: Money) -> None:
    sent = [
        event("customer.updated", 1),
        event("charge.pending", 2),
        event("charge.succeeded", 3, reference="order-17"),
        event("charge.reversed", 4, reference=None),
        event("charge.succeeded", 5, reference="9/17/1"),
    ]
    assert post(money, [signed(body) for body in sent]) == [200] * len(sent)
    rows: dict[str, tuple[int, str]] = {}
    for shard in money.shard_set.shards:
        query = "SELECT event_id, status, result FROM webhook WHERE shard_id = %(shard)s"
        rows |= {row[0]: (row[1], row[2]) for row in money.shard_set.rows(shard, query)}
    ignored, unnamed = (1, "ignored"), (1, "no_reference")
    assert rows == {"ev_1": ignored, "ev_2": ignored, "ev_3": unnamed, "ev_4": unnamed, "ev_5": unnamed}
    assert not money.apply()


def test_our_own_failure_is_answered_so_that_it_is_sent_again(money: Money) -> None:
    """A fenced shard takes no write; a secret that cannot be read proves nothing."""
    money.shard_set.change(SHARD, "UPDATE shard_owner SET state = 2 WHERE shard_id = %(shard)s")
    assert post(money, [signed(event())]) == [503]
    money.shard_set.change(SHARD, "UPDATE shard_owner SET state = 1 WHERE shard_id = %(shard)s")
    assert post(money, [signed(event())]) == [200]
    assert money.shard_set.count("webhook") == 1


def test_a_webhook_follows_a_shard_that_moved(money: Money) -> None:
    other = next(database for name, database in money.shard_set.owners.items() if name != money.database)
    with other.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO shard_owner (shard_id, epoch, state, updated_at) VALUES (3, 2, 1, NOW(6))")
    moved = "UPDATE shard_owner SET state = 4, moved_to = %(to)s WHERE shard_id = %(shard)s"
    money.shard_set.change(SHARD, moved, to=other.name)
    assert post(money, [signed(event())]) == [200]
    with other.engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM webhook").scalar_one() == 1


def test_secrets_are_read_from_the_secret_each_time_and_unusable_ones_are_our_failure(money: Money) -> None:
    url = money.shard_set.spec.gateway.url
    spec = money.shard_set.site.spec(gateway={"url": url, "webhookSecret": {"name": "hooks"}})
    held: dict[str, dict[str, str]] = {}
    doors = receiver.doors(Named(name="main", spec=spec, secrets=ManifestSecrets(held)))
    with pytest.raises(InvalidInput, match="hooks"):
        doors["http"].secrets()
    held["hooks"] = {"webhookSecrets": "one\ntwo\n"}
    assert doors["http"].secrets() == [b"one", b"two"]
    assert receiver.doors(Named(name="main", spec=money.shard_set.spec, secrets=ManifestSecrets(held))) == {}


@pytest.mark.parametrize("after", [True, False])
def test_a_lost_answer_to_the_commit_stores_it_once(money: Money, lose_commit: Callable[[bool], None], after: bool) -> None:
    lose_commit(after)
    assert post(money, [signed(event())]) == [200]
    assert money.shard_set.count("webhook") == 1


# An outcome that was open


def test_a_success_makes_the_provider_be_asked_at_once_and_is_then_known(money: Money) -> None:
    due = money.due(payment_method="pm_pending")
    money.work()
    assert money.job(due).due_in > 5
    money.fake.advance(100)
    money.hear("charge.succeeded", reference(due))
    assert money.apply()
    assert money.job(due).due_in <= 0
    assert money.invoice(due) == 1
    assert money.work(RETRY) == 1
    money.apply(again=True)
    assert (money.invoice(due), money.results()) == (2, ["known"])
    assert money.told(due) == ["payment.succeeded"]
    assert money.entries(due) == [("clearing:http", f"receivable:{due.subscription}", 990)]
    assert money.broken() == {}


def test_a_webhook_settles_nothing_while_a_claimer_holds_the_job_and_is_not_lost(money: Money) -> None:
    """The claimer's answer never comes; the webhook did, meanwhile."""
    due = money.due()
    (job,) = money.claim()
    outcome = money.ask(job)
    assert isinstance(outcome, Succeeded)
    held = money.job(due)
    money.hear("charge.succeeded", reference(due))
    money.apply()
    money.apply(again=True)
    assert money.job(due) == held
    assert money.results() == [None]
    money.settle(job, Unknown(reason="time-out"))
    money.apply(again=True)
    assert money.job(due).due_in <= 0
    assert money.work(RETRY) == 1
    money.apply(again=True)
    assert (money.invoice(due), money.results()) == (2, ["known"])
    assert money.told(due) == ["payment.succeeded"]


def test_a_success_beside_the_claimers_own_is_settled_once(money: Money) -> None:
    due = money.due()
    (job,) = money.claim()
    outcome = money.ask(job)
    money.hear("charge.succeeded", reference(due))
    money.apply()
    money.settle(job, outcome)
    money.apply(again=True)
    assert money.results() == ["known"]
    assert money.told(due) == ["payment.succeeded"]
    assert len(money.entries(due)) == 1


def test_a_webhook_that_is_ahead_of_the_providers_look_up_is_not_lost(money: Money) -> None:
    due = money.due(payment_method="pm_pending")
    money.work()
    checks = money.job(due).checks
    money.hear("charge.succeeded", reference(due))
    for _ in range(3):  # it still says pending
        money.apply(again=True)
        assert money.work(RETRY) == 1
        assert money.job(due).checks <= checks
    money.fake.advance(100)
    money.apply(again=True)
    money.work(RETRY)
    money.apply(again=True)
    assert (money.invoice(due), money.results()) == (2, ["known"])


def test_a_failure_makes_the_provider_be_asked_at_once(money: Money) -> None:
    money.fake.configure(pending_decline_rate=1.0)
    due = money.due(payment_method="pm_pending")
    money.work()
    money.fake.advance(100)
    money.hear("charge.failed", reference(due))
    money.apply()
    assert money.results() == ["asked"]
    assert money.work(RETRY) == 1
    assert money.told(due) == ["payment.failed"]
    assert money.outcomes(due) == [AttemptOutcome.DECLINED]


def test_a_job_in_review_is_looked_at_once_more(money: Money) -> None:
    due = money.due()
    (job,) = money.claim()
    money.ask(job)
    money.settle(job, Unknown(reason="time-out"))
    money.shard_set.change(SHARD, "UPDATE billing_job SET status = 5, checks = 10 WHERE shard_id = %(shard)s")
    money.hear("charge.succeeded", reference(due))
    money.apply()
    money.work(RETRY)
    assert money.invoice(due) == 2


def test_a_customer_who_authenticated_has_paid(money: Money) -> None:
    """The attempt was closed, for nobody could do more; the success that follows belongs to it."""
    due = money.due()
    (job,) = money.claim()
    money.ask(job)
    money.settle(job, ActionRequired())
    assert money.job(due).status == Status.AWAITING_CUSTOMER
    money.hear("charge.succeeded", reference(due))
    money.apply()
    assert money.outcomes(due) == [AttemptOutcome.PENDING]
    assert money.broken() == {}
    money.work(RETRY)
    money.apply(again=True)
    assert (money.invoice(due), money.results(), money.outcomes(due)) == (2, ["known"], [AttemptOutcome.SUCCEEDED])
    assert money.broken() == {}


def test_a_success_of_an_attempt_after_which_another_was_made_is_for_a_person(money: Money) -> None:
    due = money.due(payment_method="pm_declines_1_insufficient_funds")
    money.work()
    money.shard_set.change(SHARD, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s")
    money.work(RETRY)
    assert money.outcomes(due) == [AttemptOutcome.DECLINED, AttemptOutcome.SUCCEEDED]
    money.hear("charge.succeeded", reference(due, 1))
    money.apply()
    assert money.events(due)[-1][0] == "payment.review"
    assert money.events(due)[-1][1]["reason"] == "succeeded_after_another_attempt"
    assert len(money.entries(due)) == 1


# Late failures


def test_a_late_failure_reverses_the_ledger_and_opens_the_invoice_again(money: Money) -> None:
    due = money.paid()
    money.hear("charge.reversed", reference(due), code="insufficient_funds", provider_ref="ch_x")
    money.apply()
    job = money.job(due)
    assert (money.invoice(due), money.outcomes(due)) == (1, [AttemptOutcome.REVERSED])
    assert (job.status, job.lane, job.attempt_no, job.attempt_open) == (Status.READY, 1, 1, 0)
    assert 290 <= job.due_in <= 300
    assert money.entries(due) == [
        ("clearing:http", f"receivable:{due.subscription}", 990),
        (f"receivable:{due.subscription}", "clearing:http", 990),
    ]
    kind, payload = money.events(due)[-1]
    assert kind == "payment.reversed"
    assert (payload["invoice"], payload["attempt"], payload["code"], payload["retry_seconds"]) == (
        due.invoice,
        1,
        "insufficient_funds",
        300,
    )
    assert money.one("SELECT next_dunning_at <= NOW(6) FROM subscription WHERE id = %(id)s", id=due.subscription) == 1
    assert money.broken() == {}


def test_what_was_taken_back_is_collected_by_a_fresh_attempt(money: Money) -> None:
    due = money.paid()
    charge_id = money.one("SELECT provider_ref FROM payment_attempt WHERE shard_id = %(shard)s AND job_id = %(id)s", id=due.job)
    money.fake.reverse(charge_id)
    money.hear("charge.reversed", reference(due), code="late_failure")
    money.apply()
    money.shard_set.change(SHARD, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s")
    (job,) = money.claim(RETRY)
    assert (job.attempt_no, job.resumed) == (2, False)
    money.settle(job, money.ask(job))
    assert (money.invoice(due), money.outcomes(due)) == (2, [AttemptOutcome.REVERSED, AttemptOutcome.SUCCEEDED])
    assert [amount for *_, amount in money.entries(due)] == [990, 990, 990]
    assert money.told(due) == ["payment.succeeded", "payment.reversed", "payment.succeeded"]
    assert money.broken() == {}
    assert [charge["status"] for charge in money.fake.charges()] == ["reversed", "succeeded"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("late_failure", Status.READY),
        ("account_closed", Status.AWAITING_CUSTOMER),
        ("fraudulent", Status.REVIEW),
        (None, Status.REVIEW),
    ],
)
def test_the_banks_reason_says_who_acts_next(money: Money, code: str | None, status: Status) -> None:
    due = money.paid()
    money.hear("charge.reversed", reference(due), code=code)
    money.apply()
    job = money.job(due)
    assert (job.status, job.attempt_open, money.invoice(due)) == (status, 0, 1)
    assert money.broken() == {}


def test_a_reversal_is_booked_once_however_often_it_is_told(money: Money) -> None:
    due = money.paid()
    for number in range(3):
        money.hear("charge.reversed", reference(due), code="late_failure", event_id=f"ev_{number}")
    while money.apply(again=True):
        pass
    money.hear("charge.reversed", reference(due), code="late_failure", event_id="ev_1")
    money.hear("charge.succeeded", reference(due), event_id="ev_9")
    money.apply()
    assert sorted(map(str, money.results())) == ["known", "known", "known", "reversed"]
    assert len(money.entries(due)) == 2
    assert money.told(due) == ["payment.succeeded", "payment.reversed"]
    assert money.invoice(due) == 1


def test_a_reversal_that_comes_before_the_success_waits_for_it(money: Money) -> None:
    due = money.due()
    (job,) = money.claim()
    outcome = money.ask(job)
    money.hear("charge.reversed", reference(due), code="late_failure")
    money.apply()
    assert (money.results(), money.outcomes(due)) == ([None], [AttemptOutcome.UNKNOWN])
    money.settle(job, outcome)
    assert money.invoice(due) == 2
    money.apply(again=True)
    assert (money.results(), money.invoice(due), money.outcomes(due)) == (["reversed"], 1, [AttemptOutcome.REVERSED])
    assert money.broken() == {}


def test_a_charge_that_was_taken_back_before_we_knew_of_it_was_never_ours(money: Money) -> None:
    """The look-up tells the end of it: declined. There is nothing to reverse."""
    due = money.due()
    (job,) = money.claim()
    outcome = money.ask(job)
    assert isinstance(outcome, Succeeded)
    money.settle(job, Unknown(reason="time-out"))
    money.fake.reverse(outcome.provider_ref)
    money.hear("charge.succeeded", reference(due), event_id="ev_1")
    money.hear("charge.reversed", reference(due), event_id="ev_2", code="late_failure")
    money.apply()
    money.work(RETRY)
    assert money.outcomes(due) == [AttemptOutcome.DECLINED]
    while money.apply(again=True):
        pass
    assert money.results() == ["not_confirmed", "nothing_to_reverse"]
    assert money.told(due) == ["payment.failed"]
    assert money.entries(due) == []
    assert money.broken() == {}


def test_any_order_and_any_repetition_ends_the_same(money: Money) -> None:
    kinds: tuple[WebhookKind, ...] = ("charge.pending", "charge.succeeded", "charge.reversed")
    orders = list(permutations(kinds))
    jobs = [money.due(f"order-{number}", "pm_pending") for number in range(len(orders))]
    money.work()
    money.fake.advance(100)
    for step in range(6):
        for order, due in zip(orders, jobs, strict=True):
            money.hear(order[step % 3], reference(due), event_id=f"ev_{step}_{due.job}", code="late_failure")
        money.apply(again=True)
        money.work(RETRY)
    money.apply(again=True)
    assert None not in money.results()
    for due in jobs:
        assert (money.invoice(due), money.outcomes(due)) == (1, [AttemptOutcome.REVERSED])
        assert money.told(due) == ["payment.succeeded", "payment.reversed"]
        assert len(money.entries(due)) == 2
    assert money.broken() == {}


def test_a_late_failure_of_long_ago_brings_its_job_back(money: Money) -> None:
    """Finished jobs are deleted after a while; banks take back for months."""
    due = money.paid()
    money.shard_set.change(SHARD, "DELETE FROM billing_job WHERE shard_id = %(shard)s")
    money.shard_set.change(SHARD, "UPDATE subscription SET payment_method = 'pm_new' WHERE shard_id = %(shard)s")
    money.hear("charge.reversed", reference(due), code="late_failure")
    money.apply()
    job = money.job(due)
    assert (job.status, job.lane, job.attempt_no, job.attempt_open) == (Status.READY, 1, 1, 0)
    assert job.grace > 13 * 86_400
    assert money.broken() == {}
    money.shard_set.change(SHARD, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s")
    (fresh,) = money.claim(RETRY)
    assert (fresh.attempt_no, fresh.payment_method, fresh.key) == (2, "pm_new", due.key)
    money.settle(fresh, money.ask(fresh))
    assert money.invoice(due) == 2
    assert money.broken() == {}


def test_a_part_that_is_taken_back_is_a_refund_that_the_bank_made(money: Money) -> None:
    due = money.paid()
    money.hear("charge.reversed", reference(due), amount=300, code="general")
    money.apply()
    assert (money.invoice(due), money.outcomes(due), money.results()) == (2, [AttemptOutcome.SUCCEEDED], ["taken_back_in_part"])
    assert money.entries(due)[1:] == [("refunds:video", "clearing:http", 300)]
    kind, payload = money.events(due)[-1]
    assert (kind, payload["amount"], payload["by"]) == ("invoice.refunded", 300, "bank")
    assert money.broken() == {}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"amount": 991}, "reversal_differs"), ({"currency": "EUR"}, "reversal_differs")],
)
def test_a_reversal_of_something_else_changes_nothing_and_is_told(money: Money, fields: dict[str, Any], reason: str) -> None:
    due = money.paid()
    money.hear("charge.reversed", reference(due), **fields)
    money.apply()
    assert (money.invoice(due), money.results(), len(money.entries(due))) == (2, [reason], 1)
    assert money.events(due)[-1][1]["reason"] == reason


@pytest.mark.parametrize("after", [True, False])
def test_a_lost_answer_to_the_commit_reverses_once(money: Money, lose_commit: Callable[[bool], None], after: bool) -> None:
    due = money.paid()
    money.hear("charge.reversed", reference(due), code="late_failure")
    lose_commit(after)
    money.apply()
    assert (money.invoice(due), len(money.entries(due)), money.results()) == (1, 2, ["reversed"])
    assert money.broken() == {}


def test_webhooks_of_attempts_that_are_not_there_are_done_with(money: Money) -> None:
    due = money.paid()
    for number, named in enumerate((f"{SHARD}/{due.invoice}/7", f"{SHARD}/999999/1", f"{SHARD}/{due.invoice}/r5")):
        money.hear("refund.failed" if "r" in named else "charge.reversed", named, event_id=f"ev_{number}")
    money.apply()
    assert money.results() == ["no_such_attempt", "no_such_attempt", "no_such_refund"]
    assert len(money.entries(due)) == 1


def test_old_webhooks_are_deleted_and_those_that_wait_are_kept(money: Money) -> None:
    due = money.due()
    money.claim()
    money.hear("charge.succeeded", reference(due), event_id="ev_waits")
    money.hear("other", reference(due), event_id="ev_done")
    money.apply()
    old = f"INTERVAL {store.KEPT_SECONDS} SECOND"
    money.shard_set.change(SHARD, f"UPDATE webhook SET due_at = due_at - {old} WHERE shard_id = %(shard)s")
    applier = Applier(money.shard_set.spec, money.shard_set.router)
    assert applier.purge(money.database, [SHARD])
    assert not applier.purge(money.database, [SHARD])
    assert money.one("SELECT event_id FROM webhook WHERE shard_id = %(shard)s") == "ev_waits"


def test_no_provider_takes_back_what_another_took(money: Money) -> None:
    due = money.paid()
    money.shard_set.change(SHARD, "UPDATE payment_attempt SET provider = 'other' WHERE shard_id = %(shard)s")
    money.hear("charge.reversed", reference(due))
    money.apply()
    assert (money.invoice(due), money.results()) == (2, ["other_provider"])


def test_a_part_that_is_told_again_after_its_row_was_deleted_is_taken_back_once(money: Money) -> None:
    due = money.paid()
    for _ in range(2):
        money.hear("charge.reversed", reference(due), amount=300, event_id="ev_1")
        money.apply()
        money.shard_set.change(SHARD, "DELETE FROM webhook WHERE shard_id = %(shard)s")
    assert len(money.entries(due)) == 2
    assert money.broken() == {}


@pytest.mark.parametrize(
    ("noun", "name", "params", "key"),
    [
        ("webhooks", "due_shards", {"shards": (SHARD,)}, "due"),
        ("webhooks", "due", {"limit": 10}, "due"),
        ("webhooks", "purgeable", {"limit": 10}, "due"),
        ("webhooks", "lock_jobs", {"keys": (b"1" * 32, b"2" * 32)}, "idempotency"),
        ("webhooks", "lock_invoices", {"ids": (1, 2)}, "PRIMARY"),
        ("webhooks", "attempts", {"first_keys": (b"1" * 32, b"2" * 32)}, "idempotency"),
        ("webhooks", "refunds", {"ids": (1, 2)}, "request"),
        ("refunds", "due_shards", {"shards": (SHARD,)}, "due"),
        ("refunds", "due", {"limit": 10}, "due"),
        ("refunds", "refunded", {"invoice": 1}, "request"),
    ],
)
def test_nothing_is_looked_for_or_locked_without_an_index(
    money: Money, noun: str, name: str, params: dict[str, Any], key: str
) -> None:
    plan = money.shard_set.explain(SHARD, getattr(queries(noun), name), **params)
    assert plan[0]["key"] == key, pretty(plan)
