"""The audit over real rows: clean as the engine writes them, and for each rule a change that breaks just this one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from billing_shards.audit import rules
from billing_shards.audit.auditor import audit
from billing_shards.audit.model import AuditReport, ProviderCharge
from billing_shards.db import queries
from billing_shards.errors import InvalidInput
from billing_shards.jobs import store
from billing_shards.jobs.model import RENEWAL, RETRY
from billing_shards.payments.model import ActionRequired, DeclineClass, Declined, Outcome, Succeeded, Unknown, WebhookEvent
from billing_shards.payments.refunds import work
from billing_shards.payments.refunds.request import RefundOrder, request
from billing_shards.payments.settle import Result, settle
from billing_shards.payments.webhooks.apply import Applier
from billing_shards.payments.webhooks.receive import Received, keep
from tests.mysql.shard_set import DueJob, ShardSet

TODAY = datetime.now(UTC).date()
START = TODAY - timedelta(days=10)
NEXT = datetime.combine(START + timedelta(days=30), datetime.min.time())
SOFT = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds", provider_ref="ch_soft")
HARD = Declined(decline_class=DeclineClass.HARD, code="stolen_card", provider_ref="ch_hard")
OUTCOMES: dict[str, Sequence[Outcome]] = {
    "paid": [Succeeded(provider_ref="ch_paid")],
    "yen": [Succeeded(provider_ref="ch_yen")],
    "second": [SOFT, Succeeded(provider_ref="ch_second")],
    "lost": [HARD],
    "asked": [ActionRequired()],
    "doubt": [Unknown(reason="timeout")],
    "new": [],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A small business of which every kind of job exists; `jobs` by the name of the subscription."""

    shard_set: ShardSet
    jobs: dict[str, DueJob]

    def change(self, name: str, statement: str, **params: object) -> None:
        """Change rows of one subscription's shard; its ids are filled in. Some row must be found."""
        job = self.jobs[name]
        known = {"job": job.job, "invoice": job.invoice, "subscription": job.subscription}
        assert self.shard_set.change(job.shard, statement, **known, **params)

    def book(self, name: str, debit: str, credit: str, *, kind: int, invoice: int = 999_999) -> None:
        """One more ledger entry, numbered as it should be."""
        self.change(
            name,
            "INSERT INTO ledger_entry SELECT %(shard)s, next_value, %(debit)s, %(credit)s, 5, 'USD', %(kind)s, %(of)s, "
            "RANDOM_BYTES(32), NOW(6) FROM shard_sequence WHERE shard_id = %(shard)s AND name = 'ledger'",
            debit=debit,
            credit=credit,
            kind=kind,
            of=invoice,
        )
        self.change(name, _NEXT.format(1), counter="ledger")

    def audit(self, charges: Sequence[ProviderCharge] | None = None, **options: object) -> AuditReport:
        return audit(self.shard_set.router, self.shard_set.spec, provider_charges=charges, **options)  # type: ignore[arg-type]

    def charges(self) -> list[ProviderCharge]:
        """The list of a provider that agrees with us."""
        query = (
            "SELECT t.shard_id, j.invoice_id, t.attempt_no, t.provider_ref, t.outcome, t.amount, t.currency "
            "FROM payment_attempt t JOIN billing_job j ON j.shard_id = t.shard_id AND j.id = t.job_id "
            "WHERE t.shard_id = %(shard)s AND t.provider_ref IS NOT NULL"
        )
        rows = [row for shard in self.shard_set.shards for row in self.shard_set.rows(shard, query)]
        return [
            ProviderCharge(
                id=f"{row[3]}", reference=f"{row[0]}/{row[1]}/{row[2]}", status=_status(row[4]), amount=row[5], currency=row[6]
            )
            for row in rows
        ]


def _status(outcome: int) -> str:
    return "succeeded" if outcome == 1 else "failed"


_NEXT = "UPDATE shard_sequence SET next_value = next_value + {} WHERE shard_id = %(shard)s AND name = %(counter)s"


@pytest.fixture
def world(make_shard_set: Callable[..., ShardSet]) -> World:
    shard_set = make_shard_set(shardCount=2)
    jobs = {}
    for name in OUTCOMES:
        amount, currency = (1200, "JPY") if name == "yen" else (990, "USD")
        shard_set.add_subscription(
            name,
            amount=amount,
            currency=currency,
            interval_unit=1,
            interval_count=30,
            start_date=START,
            next_period=1,
            next_invoice_at=NEXT,
        )
        jobs[name] = shard_set.add_due_job(name, period_start=START, amount=amount, currency=currency)
    shard_set.add_subscription("waiting", interval_unit=1, interval_count=30, start_date=NEXT.date(), next_invoice_at=NEXT)
    new = jobs["new"]
    shard_set.change(new.shard, "UPDATE billing_job SET due_at = NOW(6) + INTERVAL 1 DAY WHERE id = %(job)s", job=new.job)
    for round_ in range(2):
        _charge_all(shard_set, round_)
    return World(shard_set=shard_set, jobs=jobs)


def _charge_all(shard_set: ShardSet, round_: int) -> None:
    """Claim and settle all that is due, then make declined jobs due at once."""
    for shard in shard_set.shards:
        for lane in (RENEWAL, RETRY):
            jobs = store.claim(shard_set.router, shard, lane, limit=10, lease_seconds=60, provider="http").jobs
            results = [Result(job=job, outcome=OUTCOMES[job.subscription][round_], draw=0.0) for job in jobs]
            settle(shard_set.router, shard, results, policy=shard_set.spec.retry)
        declined = (
            "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s AND status = 0 AND subscription_id = 'second'"
        )
        shard_set.change(shard, declined)


def broken(report: AuditReport) -> dict[str, int]:
    return {result.rule.name: result.offenders for result in report.rules if result.offenders}


def test_what_the_engine_writes_is_clean(world: World) -> None:
    report = world.audit(world.charges())
    assert broken(report) == {}
    assert report.clean
    assert report.provider is not None
    assert (report.provider.charges, report.provider.double, report.provider.missing, report.provider.in_doubt) == (3, 0, 0, 0)
    assert {name: report.sizes[name] for name in ("subscriptions", "invoices", "jobs", "attempts", "entries")} == {
        "subscriptions": 8,
        "invoices": 7,
        "jobs": 7,
        "attempts": 7,
        "entries": 10,
    }
    assert report.balances["JPY", "clearing"] == 1200
    assert report.balances["JPY", "receivable"] == 0
    assert report.balances["USD", "receivable"] == 4 * 990
    assert report.balances["USD", "revenue"] == -6 * 990
    assert [result.rule for result in report.rules] == list(rules.RULES)


def test_without_a_list_the_provider_is_not_judged(world: World) -> None:
    report = world.audit()
    assert report.clean
    assert report.provider is None
    assert not {result.rule for result in report.rules} & set(rules.PROVIDER_RULES)


def test_an_empty_shard_set_is_clean(shard_set: ShardSet) -> None:
    done: list[tuple[int, int]] = []
    report = audit(shard_set.router, shard_set.spec, provider_charges=[], on_progress=lambda *seen: done.append(seen))
    assert report.clean
    assert done == [(number, 8) for number in range(1, 9)]


# For each rule: how to break it, and it alone.


def _second_owner(world: World) -> None:
    with world.shard_set.owners["b"].engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO shard_owner (shard_id, epoch, state, updated_at) VALUES (0, 2, 1, NOW(6))")


def _stray_row(world: World) -> None:
    with world.shard_set.owners["b"].engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO outbox VALUES (0, 1, 'x', 'wrong-shard', '{}', NOW(6), NULL, 0)")


def _wrong_shard(world: World) -> None:
    shard = (world.shard_set.shard_of("stray") + 1) % 2
    columns = (
        "customer_id, service, amount, currency, interval_unit, interval_count, start_date, time_zone, payment_method, status"
    )
    world.shard_set.change(
        shard,
        f"INSERT INTO subscription (shard_id, id, {columns}, next_period, next_invoice_at, created_at, updated_at) "
        "VALUES (%(shard)s, 'stray', 'c', 's', 1, 'USD', 1, 1, %(day)s, 'UTC', 'pm', 1, 0, %(day)s, NOW(6), NOW(6))",
        day=NEXT.date(),
    )


def _overdue_period(world: World) -> None:
    due = datetime.combine(START, datetime.min.time())
    world.shard_set.add_subscription("overdue", interval_unit=1, interval_count=30, start_date=START, next_invoice_at=due)


def _extra_job(world: World) -> None:
    world.change(
        "new",
        "INSERT INTO billing_job SELECT shard_id, id + 1, lane, 3, due_at, subscription_id, 999999, amount, currency,"
        " payment_method, 0, 0, 0, 0, 0, RANDOM_BYTES(32), grace_until, created_at, updated_at"
        " FROM billing_job WHERE id = %(job)s",
    )
    world.change("new", _NEXT.format(1), counter="id")


def _expired_lease(world: World) -> None:
    job = world.jobs["new"]
    world.change("new", "UPDATE billing_job SET due_at = NOW(6) WHERE id = %(job)s")
    assert store.claim(world.shard_set.router, job.shard, RENEWAL, limit=1, lease_seconds=60, provider="http").jobs
    world.change("new", "UPDATE billing_job SET due_at = NOW(6) - INTERVAL 1 HOUR WHERE id = %(job)s")


def _other_bad_debt(world: World) -> None:
    """Written off as another service's debt."""
    world.change("lost", "UPDATE invoice SET status = 4" + _INVOICE)
    world.change(
        "lost",
        "INSERT INTO ledger_entry SELECT %(shard)s, q.next_value, 'bad-debt:x', 'receivable:lost', j.amount, j.currency, 3,"
        " j.invoice_id, UNHEX(SHA2(CONCAT(j.idempotency_key, 'written off'), 256)), NOW(6) FROM shard_sequence q"
        " JOIN billing_job j ON j.shard_id = q.shard_id AND j.id = %(job)s WHERE q.shard_id = %(shard)s AND q.name = 'ledger'",
    )
    world.change("lost", _NEXT.format(1), counter="ledger")


def _refunded(world: World, *, succeeded: bool) -> None:
    """A refund of 3.00 of what `paid` paid: asked for, or given."""
    job, router, policy = world.jobs["paid"], world.shard_set.router, world.shard_set.spec.retry
    request(router, RefundOrder(shard=job.shard, invoice=job.invoice, amount=300, key="k", actor="a", reason="r"))
    if succeeded:
        for taken in work.take(router, job.shard):
            work.settle(router, taken, Succeeded(provider_ref="re_1"), policy=policy)
    assert world.audit().clean


def _reversed(world: World) -> None:
    """The charge of `paid`, taken back by the bank."""
    job, router = world.jobs["paid"], world.shard_set.router
    event = WebhookEvent(
        id="ev_1",
        kind="charge.reversed",
        reference=f"{job.shard}/{job.invoice}/1",
        provider_ref=None,
        amount=990,
        currency="USD",
        code="late_failure",
    )
    keep(router, "http", Received(event=event, body=b"", shard=job.shard, result=None))
    assert Applier(world.shard_set.spec, router).apply(router.owner(job.shard).name, [job.shard])
    assert world.audit().clean


def _after(prepare: Callable[[World], None], statement: str) -> Callable[[World], None]:
    def tamper(world: World) -> None:
        prepare(world)
        world.change("paid", statement)

    return tamper


def _changed(name: str, statement: str) -> Callable[[World], None]:
    return lambda world: world.change(name, statement)


def _booked(name: str, debit: str, credit: str, kind: int) -> Callable[[World], None]:
    return lambda world: world.book(name, debit, credit, kind=kind)


_SUBSCRIPTION = " WHERE shard_id = %(shard)s AND id = %(subscription)s"
_INVOICE = " WHERE shard_id = %(shard)s AND id = %(invoice)s"
_JOB = " WHERE shard_id = %(shard)s AND id = %(job)s"
_ATTEMPT = " WHERE shard_id = %(shard)s AND job_id = %(job)s"
_REFUND = " WHERE shard_id = %(shard)s AND invoice_id = %(invoice)s"
_REVERSAL = " WHERE shard_id = %(shard)s AND invoice_id = %(invoice)s AND kind = 4"
_asked = partial(_refunded, succeeded=False)
_given = partial(_refunded, succeeded=True)
_ENTRY = " WHERE shard_id = %(shard)s AND invoice_id = %(invoice)s"

BREAKS: list[tuple[str, str, Callable[[World], None]]] = [
    ("one_owner", "two owners", _second_owner),
    ("rows_on_owner", "row elsewhere", _stray_row),
    ("right_shard", "wrong shard", _wrong_shard),
    (
        "periods",
        "period skipped",
        _changed(
            "paid",
            "UPDATE subscription SET next_period = 2, next_invoice_at = next_invoice_at + INTERVAL 30 DAY" + _SUBSCRIPTION,
        ),
    ),
    ("periods", "short period", _changed("paid", "UPDATE invoice SET period_end = period_end - INTERVAL 1 DAY" + _INVOICE)),
    ("invoice_subscription", "subscription gone", _changed("paid", "DELETE FROM subscription" + _SUBSCRIPTION)),
    ("due_periods", "not invoiced", _overdue_period),
    (
        "next_invoice",
        "an hour late",
        _changed("paid", "UPDATE subscription SET next_invoice_at = next_invoice_at + INTERVAL 1 HOUR" + _SUBSCRIPTION),
    ),
    ("next_invoice", "never again", _changed("paid", "UPDATE subscription SET next_invoice_at = NULL" + _SUBSCRIPTION)),
    ("invoice_job", "job gone", _changed("new", "DELETE FROM billing_job" + _JOB)),
    ("invoice_job", "other amount", _changed("new", "UPDATE billing_job SET amount = amount - 1" + _JOB)),
    ("job_invoice", "invoice unknown", _extra_job),
    (
        "issue_entry",
        "other revenue",
        _changed("paid", "UPDATE ledger_entry SET credit_account = 'revenue:x'" + _ENTRY + " AND kind = 1"),
    ),
    ("payment_success", "attempt failed", _changed("paid", "UPDATE payment_attempt SET outcome = 2" + _ATTEMPT)),
    (
        "payment_entry",
        "other provider",
        _changed("paid", "UPDATE ledger_entry SET debit_account = 'clearing:x'" + _ENTRY + " AND kind = 2"),
    ),
    ("write_off_entry", "another service's", _other_bad_debt),
    ("reversal_entry", "other provider", _after(_reversed, "UPDATE ledger_entry SET credit_account = 'clearing:x'" + _REVERSAL)),
    ("entry_keys", "never reversed", _after(_reversed, "UPDATE payment_attempt SET outcome = 2" + _ATTEMPT)),
    ("refund_charge", "other charge", _after(_asked, "UPDATE refund SET charge_ref = 'ch_x'" + _REFUND)),
    ("refund_sum", "more than paid", _after(_asked, "UPDATE refund SET amount = 991" + _REFUND)),
    ("refund_entry", "not booked", _after(_asked, "UPDATE refund SET status = 2, succeeded_at = NOW(6)" + _REFUND)),
    ("refund_entry", "other amount", _after(_given, "UPDATE refund SET amount = amount - 1" + _REFUND)),
    ("refund_entry", "not booked back", _after(_given, "UPDATE refund SET status = 3" + _REFUND)),
    ("entry_invoice", "invoice unknown", _booked("paid", "clearing:http", "revenue:video", 2)),
    ("ledger_zero", "other account", _booked("paid", "cash:x", "revenue:video", 9)),
    ("receivable", "owes more", _booked("paid", "receivable:paid", "revenue:video", 9)),
    (
        "ledger_numbers",
        "last one lost",
        _changed("paid", "UPDATE shard_sequence SET next_value = next_value + 1 WHERE shard_id = %(shard)s AND name = 'ledger'"),
    ),
    ("outbox_held", "set aside for ever", _changed("paid", "UPDATE outbox SET held = 1 WHERE shard_id = %(shard)s AND id = 1")),
    ("outbox_numbers", "event lost", _changed("paid", "DELETE FROM outbox WHERE shard_id = %(shard)s AND id = 1")),
    (
        "counters",
        "behind",
        _changed("new", "UPDATE shard_sequence SET next_value = 1 WHERE shard_id = %(shard)s AND name = 'id'"),
    ),
    ("job_state", "done unpaid", _changed("new", "UPDATE billing_job SET status = 2" + _JOB)),
    ("job_state", "no such lane", _changed("new", "UPDATE billing_job SET lane = 255" + _JOB)),
    ("leases", "ended", _expired_lease),
    (
        "attempt_job",
        "job unknown",
        _changed(
            "paid",
            "INSERT INTO payment_attempt VALUES (%(shard)s, 9999, 1, RANDOM_BYTES(32), 'http', NULL, 1, 'USD', 2, NULL, "
            "NOW(6), NOW(6))",
        ),
    ),
    ("attempt_job", "other amount", _changed("paid", "UPDATE payment_attempt SET amount = amount + 1" + _ATTEMPT)),
    ("attempt_numbers", "one too few", _changed("paid", "UPDATE billing_job SET attempt_no = attempt_no + 1" + _JOB)),
    ("attempt_numbers", "first one gone", _changed("second", "DELETE FROM payment_attempt" + _ATTEMPT + " AND attempt_no = 1")),
    (
        "open_attempts",
        "earlier one unknown",
        _changed("second", "UPDATE payment_attempt SET outcome = 0" + _ATTEMPT + " AND attempt_no = 1"),
    ),
    ("open_attempts", "forgotten", _changed("doubt", "UPDATE billing_job SET attempt_open = 0" + _JOB)),
    ("job_keys", "other key", _changed("new", "UPDATE billing_job SET idempotency_key = RANDOM_BYTES(32)" + _JOB)),
    ("attempt_keys", "other key", _changed("lost", "UPDATE payment_attempt SET idempotency_key = RANDOM_BYTES(32)" + _ATTEMPT)),
    (
        "entry_keys",
        "other key",
        _changed("paid", "UPDATE ledger_entry SET idempotency_key = RANDOM_BYTES(32)" + _ENTRY + " AND kind = 2"),
    ),
]


@pytest.mark.parametrize(("rule", "how", "tamper"), BREAKS, ids=[f"{rule}-{how}".replace(" ", "_") for rule, how, _ in BREAKS])
def test_a_broken_rule_is_found_and_no_other(world: World, rule: str, how: str, tamper: Callable[[World], None]) -> None:
    tamper(world)
    report = world.audit(world.charges() if rule != "payment_success" else None)
    assert broken(report) == {rule: 1}, how
    (example,) = next(result.examples for result in report.rules if result.rule.name == rule)
    assert example.where
    assert report.problems == 1


def test_each_rule_is_broken_by_a_test() -> None:
    broken_here = {rule for rule, _, _ in BREAKS}
    assert broken_here | {rule.name for rule in rules.PROVIDER_RULES} == {rule.name for rule in rules.RULES}


def test_a_lost_entry_breaks_all_that_it_carried(world: World) -> None:
    world.change("paid", "DELETE FROM ledger_entry" + _ENTRY + " AND kind = 2")
    assert broken(world.audit()) == {"payment_entry": 1, "receivable": 1, "ledger_numbers": 1}


# The provider's list


def test_a_charge_of_an_open_attempt_is_in_doubt_and_no_problem(world: World) -> None:
    doubt = world.jobs["doubt"]
    found = ProviderCharge(
        id="ch_doubt", reference=f"{doubt.shard}/{doubt.invoice}/1", status="succeeded", amount=990, currency="USD"
    )
    report = world.audit([*world.charges(), found])
    assert report.clean
    assert report.provider is not None
    assert report.provider.in_doubt == 1


def test_an_invoice_charged_twice_is_found(world: World) -> None:
    first = next(charge for charge in world.charges() if charge.id == "ch_paid")
    report = world.audit([*world.charges(), replace(first, id="ch_again")])
    assert broken(report) == {"double_charges": 1}
    assert report.provider is not None
    assert report.provider.double == 1


def test_an_invoice_charged_by_two_attempts_is_found(world: World) -> None:
    both = [replace(c, status="succeeded") for c in world.charges() if c.id in ("ch_soft", "ch_second")]
    others = [c for c in world.charges() if c.id not in ("ch_soft", "ch_second")]
    assert broken(world.audit([*others, *both])) == {"double_charges": 1, "charge_attempt": 1}


def test_a_charge_that_the_provider_does_not_know_is_missing(world: World) -> None:
    report = world.audit([charge for charge in world.charges() if charge.id != "ch_yen"])
    assert broken(report) == {"missing_charges": 1}
    assert report.provider is not None
    assert report.provider.missing == 1


def test_a_charge_made_after_the_list_was_taken_is_not_missing(world: World) -> None:
    report = world.audit([], listed_at=datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=1))
    assert report.clean
    assert report.provider is not None
    assert (report.provider.missing, report.provider.too_new) == (0, 3)


def _odd_charges(charge: ProviderCharge, shard: int, invoice: int) -> Iterator[tuple[str, ProviderCharge]]:
    yield "there, 990 USD here", replace(charge, amount=989)
    yield "990 EUR there", replace(charge, currency="EUR")
    yield "charge ch_paid here", replace(charge, id="ch_other")
    yield "no such attempt here", replace(charge, id="ch_x", reference=f"{shard}/{invoice + 1000}/1")
    yield "none of ours", replace(charge, id="ch_x", reference="order-17")
    yield "none of ours", replace(charge, id="ch_x", reference="2/1/1")
    yield "outcome 2 here", replace(charge, id="ch_soft", status="succeeded")


def test_a_charge_that_matches_no_attempt_is_found(world: World) -> None:
    listed = {charge.id: charge for charge in world.charges()}
    paid, lost = world.jobs["paid"], world.jobs["lost"]
    for reason, odd in _odd_charges(listed["ch_paid"], paid.shard, paid.invoice):
        charges = dict(listed)
        if reason == "outcome 2 here":
            odd = replace(odd, id="ch_hard", reference=f"{lost.shard}/{lost.invoice}/1")  # noqa: PLW2901
        if reason.startswith("charge"):
            del charges["ch_paid"]
        charges[odd.id] = odd
        report = world.audit(list(charges.values()))
        assert broken(report) == {"charge_attempt": 1}, reason
        (example,) = next(result.examples for result in report.rules if result.rule is rules.CHARGE_ATTEMPT)
        assert reason in example.where["reason"]


def test_a_charge_listed_twice_is_refused(world: World) -> None:
    charges = world.charges()
    with pytest.raises(InvalidInput, match="'ch_paid' is listed twice"):
        world.audit([*charges, next(charge for charge in charges if charge.id == "ch_paid")])


# Many offenders


def test_only_the_first_offenders_are_kept_but_all_are_counted(world: World) -> None:
    for shard in world.shard_set.shards:
        world.shard_set.change(shard, "UPDATE ledger_entry SET idempotency_key = RANDOM_BYTES(32) WHERE shard_id = %(shard)s")
    report = world.audit(examples_max=3)
    assert broken(report) == {"entry_keys": 10}
    assert len(next(result.examples for result in report.rules if result.offenders)) == 3


def test_a_paused_set_may_leave_periods_without_invoice(make_shard_set: Callable[..., ShardSet]) -> None:
    paused = make_shard_set(paused=True)
    paused.add_subscription("late", start_date=START, next_invoice_at=datetime.combine(START, datetime.min.time()))
    assert audit(paused.router, paused.spec).clean
    running = paused.spec.model_copy(update={"paused": False})
    assert broken(audit(paused.router, running)) == {"due_periods": 1}


def test_a_period_is_late_only_after_the_margin(shard_set: ShardSet) -> None:
    """An import of today may bring periods of last year."""
    begun = datetime.combine(START, datetime.min.time())
    now = datetime.now(UTC).replace(tzinfo=None)
    shard_set.add_subscription("imported", start_date=START, next_invoice_at=begun, updated_at=now - timedelta(minutes=5))
    assert audit(shard_set.router, shard_set.spec).clean
    assert broken(audit(shard_set.router, shard_set.spec, margin_seconds=60)) == {"due_periods": 1}


def test_the_list_of_tables_with_rows_of_a_shard_is_whole(shard_set: ShardSet) -> None:
    query = (
        "SELECT table_name FROM information_schema.columns WHERE table_schema = DATABASE() AND column_name = 'shard_id' "
        "AND table_name <> 'shard_owner'"
    )
    tables = {row[0] for row in shard_set.rows(0, query)}
    assert tables == set(re.findall(r"SELECT '(\w+)'", queries("audit").shards_with_rows))
