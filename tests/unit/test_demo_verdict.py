"""The demo's verdict: everything that can be wrong is told, and what is right passes."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from hack.demo.faults import KILLED, Kill
from hack.demo.figures import (
    Comparison,
    CurrencyFigures,
    Figures,
    Progress,
    compare,
    figures,
    ownership,
    progress,
)
from hack.demo.site import Pod
from hack.demo.subscriptions import Expected
from hack.demo.verdict import Evidence, checks, closing_lines, leases_reaped, lookups, resolved

USD = CurrencyFigures(
    subscriptions=90,
    invoices=100,
    amount=1000,
    paid=95,
    paid_amount=950,
    retry=3,
    customer=1,
    gave_up=1,
    charged=95,
    charged_amount=950,
)
JPY = CurrencyFigures(subscriptions=10, invoices=10, amount=500, paid=10, paid_amount=500, charged=10, charged_amount=500)
FIGURES = Figures(
    currencies={"USD": USD, "JPY": JPY}, attempts=115, open_attempts=0, first_attempt_at=100.0, last_outcome_at=150.0
)
PROVIDER: dict[str, Any] = {
    "requests": 130,
    "charges": {"failed": 5},
    "faults": {"lost_answer": 2, "in_flight_conflict": 1},
    "double_charges": 0,
}
AUDIT: dict[str, Any] = {
    "clean": True,
    "problems": 0,
    "rules": [{"name": "double_charges", "offenders": 0}, {"name": "ledger_gap", "offenders": 0}],
    "provider": {"charges": 105, "double_charges": 0, "missing_charges": 0, "in_doubt": 0, "after_the_list": 0},
}


def kill(kind: str, **changes: Any) -> Kill:
    done = {"exit_code": KILLED, "recovered_seconds": 3.0, **changes}
    return Kill(what=kind, kind=kind, pod=f"{kind}-pod", restarts_before=0, held=5, at=10.0, **done)


GOOD = Evidence(
    expected=Expected(subscriptions={"USD": 90, "JPY": 10}, invoices={"USD": 100, "JPY": 10}, amounts={"USD": 1000, "JPY": 500}),
    figures=FIGURES,
    audit=AUDIT,
    provider=PROVIDER,
    comparison=Comparison(charges=105, double=0, missing=0, unknown=0),
    kills=[kill("claimer"), kill("claimer"), kill("mysql")],
    kills_wanted={"claimer": 2, "mysql": 1},
    counters=Counter(
        {
            'billing_shards_jobs_reaped_total{to="ready"}': 7,
            'billing_shards_jobs_reaped_total{to="review"}': 1,
            'billing_shards_gateway_seconds_count{operation="find"}': 9,
            'billing_shards_gateway_seconds_count{operation="charge"}': 120,
        }
    ),
)


def problems(evidence: Evidence) -> dict[str, str]:
    return {check.name: check.problem for check in checks(evidence) if check.problem}


def with_figures(currency: str, **changes: int) -> Evidence:
    currencies = {**FIGURES.currencies, currency: replace(FIGURES.currencies[currency], **changes)}
    return replace(GOOD, figures=replace(FIGURES, currencies=currencies))


def test_what_is_right_passes() -> None:
    assert problems(GOOD) == {}
    assert closing_lines(GOOD) == ["double charges: 0", "missing charges: 0", "audit: clean"]


@pytest.mark.parametrize(
    ("evidence", "name", "words"),
    [
        (with_figures("USD", subscriptions=89), "subscriptions imported", "USD: 89 instead of 90"),
        (with_figures("USD", invoices=101, paid=96, paid_amount=950), "invoices written", "USD: 101 instead of 100"),
        (with_figures("JPY", amount=499), "invoices written", "JPY: 499 instead of 500"),
        (with_figures("USD", retry=2), "invoices settled", "1 are neither"),
        (replace(GOOD, figures=replace(FIGURES, open_attempts=4)), "outcomes known", "4 attempts"),
        (replace(GOOD, provider={**PROVIDER, "faults": {"lost_answer": 2}}), "faults met", "no conflicts"),
        (replace(GOOD, provider={**PROVIDER, "charges": {"failed": 0}}), "faults met", "no declines"),
        (replace(GOOD, counters=Counter()), "leases reaped", "no job"),
        (with_figures("USD", paid_amount=949), "money", "paid amount: USD: 949 instead of 950"),
        (with_figures("USD", paid=94, retry=4), "money", "paid: USD: 94 instead of 95"),
        (replace(GOOD, comparison=Comparison(charges=106, double=0, missing=0, unknown=1)), "money", "1 charges"),
        (replace(GOOD, audit={**AUDIT, "clean": False}), "audit", "not clean, 0 problems"),
        (replace(GOOD, audit={**AUDIT, "provider": None}), "audit", "was given no list"),
    ],
)
def test_one_thing_that_is_wrong_is_told(evidence: Evidence, name: str, words: str) -> None:
    assert words in problems(evidence)[name]


@pytest.mark.parametrize(
    "kills",
    [
        [kill("claimer"), kill("mysql")],
        [kill("claimer"), kill("claimer", exit_code=0), kill("mysql")],
        [kill("claimer"), kill("claimer", recovered_seconds=None), kill("mysql")],
    ],
    ids=["too few", "ended otherwise", "not back"],
)
def test_a_kill_counts_when_its_victim_died_of_it_and_is_back(kills: list[Kill]) -> None:
    assert problems(replace(GOOD, kills=kills)) == {"processes killed": "claimer: 1 instead of 2"}


def test_rules_of_the_audit_that_are_broken_are_named() -> None:
    broken = {**AUDIT, "clean": False, "problems": 3, "rules": [{"name": "ledger_gap", "offenders": 3}]}
    evidence = replace(GOOD, audit=broken)
    assert problems(evidence) == {"audit": "not clean, 3 problems (ledger_gap)"}
    assert closing_lines(evidence)[2] == "audit: not clean, 3 problems (ledger_gap)"


def test_a_double_charge_that_all_see_is_counted() -> None:
    audit = {**AUDIT, "clean": False, "problems": 2, "provider": {**AUDIT["provider"], "double_charges": 2}}
    comparison = Comparison(charges=107, double=2, missing=0, unknown=2)
    evidence = replace(GOOD, audit=audit, provider={**PROVIDER, "double_charges": 2}, comparison=comparison)
    assert problems(evidence)["double charges"] == "2"
    assert closing_lines(evidence)[0] == "double charges: 2"


def test_witnesses_that_disagree_fail_even_where_one_says_zero() -> None:
    evidence = replace(GOOD, provider={**PROVIDER, "double_charges": 1})
    assert problems(evidence)["double charges"] == "in dispute, audit says 0, provider says 1, comparison says 0"
    missing = replace(GOOD, comparison=Comparison(charges=104, double=0, missing=1, unknown=0))
    assert closing_lines(missing)[1] == "missing charges: in dispute, audit says 0, comparison says 1"


def test_an_audit_without_the_providers_list_proves_no_zero() -> None:
    lines = closing_lines(replace(GOOD, audit={**AUDIT, "provider": None}))
    assert lines[0] == "double charges: in dispute, audit says -1, provider says 0, comparison says 0"


def test_counters_tell_reaped_leases_and_questions() -> None:
    assert leases_reaped(GOOD) == 8
    assert lookups(GOOD) == 9
    assert resolved(GOOD) == 2
    assert resolved(replace(GOOD, figures=replace(FIGURES, open_attempts=1))) == 1


def charge(reference: str, amount: int = 100, status: str = "succeeded") -> str:
    return json.dumps({"reference": reference, "amount": amount, "currency": "USD", "status": status})


def test_charges_are_compared_by_reference_amount_and_currency() -> None:
    ours = ["1/10/1\t100\tUSD", "1/11/2\t100\tUSD", "2/12/1\t100\tUSD", ""]
    theirs = [
        charge("1/10/1"),
        charge("1/11/1", status="failed"),
        charge("1/11/2"),
        charge("2/12/1", amount=99),
        "",
    ]
    assert compare(ours, theirs, ours) == Comparison(charges=3, double=0, missing=1, unknown=1)


def test_two_attempts_of_one_invoice_that_succeeded_are_a_double_charge() -> None:
    ours = ["1/10/1\t100\tUSD"]
    found = compare(ours, [charge("1/10/1"), charge("1/10/2")], ours)
    assert found == Comparison(charges=2, double=1, missing=0, unknown=1)


def test_what_is_charged_while_the_lists_are_taken_is_neither_missing_nor_unknown() -> None:
    before, later = "1/10/1\t100\tUSD", ["1/11/2\t100\tUSD", "1/12/2\t100\tUSD"]
    found = compare([before], [charge("1/10/1"), charge("1/11/2")], [before, *later])
    assert found == Comparison(charges=2, double=0, missing=0, unknown=0)


def document(**counts: Any) -> str:
    return json.dumps({"not_invoiced": 0, "held_by_range": None, **counts})


def test_progress_adds_up_all_databases() -> None:
    found = progress(
        [
            document(jobs=10, paid=5, retry=2, held=3, held_by_range={"0": 1, "64": 2}),
            document(jobs=4, paid=3, customer=1, held_by_range={"64": 0}),
        ]
    )
    assert (found.jobs, found.settled, found.held) == (14, 11, 3)
    assert dict(found.held_by_range) == {0: 1, 64: 2}
    assert not found.complete


@pytest.mark.parametrize(
    ("found", "complete"),
    [
        (Progress(), False),
        (Progress(jobs=2, paid=1, retry=1), True),
        (Progress(jobs=5, paid=1, retry=1, customer=1, gave_up=1, review=1), True),
        (Progress(jobs=2, paid=1, held=1), False),
        (Progress(jobs=2, paid=1, unknown=1), False),
        (Progress(jobs=1, paid=1, not_invoiced=1), False),
    ],
)
def test_complete_is_when_nothing_is_left_to_do_for_now(found: Progress, complete: bool) -> None:
    assert found.complete is complete


def test_figures_add_up_all_databases() -> None:
    row = {"currency": "KWD", "subscriptions": 2, "invoices": 3, "amount": 30, "paid": 1, "paid_amount": 10}
    answer = {"currencies": [row], "attempts": 4, "open_attempts": 1, "first_attempt_at": 5.5, "last_outcome_at": 9.0}
    found = figures([json.dumps(answer), json.dumps({**answer, "first_attempt_at": 4.5, "last_outcome_at": 8.0})])
    assert found.currencies == {"KWD": CurrencyFigures(subscriptions=4, invoices=6, amount=60, paid=2, paid_amount=20)}
    assert (found.attempts, found.open_attempts, found.seconds) == (8, 2, 4.5)
    assert found.total("paid") == 2


def test_ownership_is_read_from_every_fence() -> None:
    assert ownership({"a": "0\t1\t80\n1\t1\t75\n", "b": "2\t3\t0\n"}) == {0: ("a", 1, 80), 1: ("a", 1, 75), 2: ("b", 3, 0)}


@pytest.mark.parametrize(
    ("pod", "works", "recovered"),
    [
        ({"restarts": 1, "ready": True}, True, 2.5),
        ({"restarts": 1, "ready": True}, False, None),
        ({"restarts": 1, "ready": False}, True, None),
        ({"restarts": 0, "ready": True}, True, None),
        (None, True, None),
    ],
)
def test_a_killed_process_is_back_once_its_successor_works(pod: Any, works: bool, recovered: float | None) -> None:
    shown: dict[str, Any] = {"name": "p", "component": "claimer", "shards": "000-063", "container_id": "c", "state": "Running"}
    now = Pod(**shown, **pod, last_exit_code=KILLED) if pod else None
    before = kill("claimer", exit_code=None, recovered_seconds=None)
    after = before.seen(now, works=works, now=12.5)
    assert after.recovered_seconds == recovered
    assert after.exit_code == (KILLED if recovered else None)
    assert after.seen(now, works=works, now=99.0).recovered_seconds == recovered
