"""The simulator can fail: each of these bugs, planted in the product, is found by one of the first seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from billing_shards.billing import decide as billing_decide
from billing_shards.billing import rowstore
from billing_shards.billing.model import Plan as Invoices
from billing_shards.db import error_code, queries
from billing_shards.jobs import model, store
from billing_shards.outbox import events
from billing_shards.payments import charge, manual, settle
from billing_shards.payments.model import DeclineClass, Declined, Outcome, Unknown
from billing_shards.payments.refunds import push
from billing_shards.payments.settle import Result
from billing_shards.shards.transactions import ShardTransaction
from tests.mysql.shard_set import ShardSet
from tests.simulation import keepers
from tests.simulation.faults import Driver
from tests.simulation.hosts import Claimer
from tests.simulation.simulate import run_seed
from tests.simulation.verdict import Verdict
from tests.simulation.world import Plan

SEEDS = range(1, 41)

Patch = pytest.MonkeyPatch
Adjust = Callable[[Plan], Plan]


def first_failure(simulated: ShardSet, adjust: Adjust) -> Verdict:
    """Of the first seeds."""
    driver = Driver()
    for seed in SEEDS:
        _, verdict = run_seed(seed, simulated, driver, adjust)
        if not verdict.sound:
            return verdict
    raise AssertionError(f"none of {len(SEEDS)} seeds found it")


def every(plan: Plan) -> Plan:
    """Seeds as they are."""
    return plan


def restless(plan: Plan) -> Plan:
    """Charges that are declined at first, with short waits, by hosts that stand still again and again."""
    retry = {"delays_seconds": (60,), "attempts_max": 4, "check_delays_seconds": (10, 60, 300, 3600)}
    spec = plan.spec.model_copy(update={"retry": plan.spec.retry.model_copy(update=retry)})
    methods = ("pm_soft_1", "pm_soft_2")
    return replace(
        plan,
        spec=spec,
        methods=methods,
        haste=4.0,
        claimers=3,
        disaster=0.5,
        steps_max=200,
        quiet=False,
        people=0.0,
        refunds=0.0,
        webhooks=False,
    )


def lonely(plan: Plan) -> Plan:
    """There is one claimer: what it loses it claims again itself."""
    plan = restless(plan)
    claimer = plan.spec.claimer.model_copy(update={"lease_seconds": 30, "lost_leases_max": 5})
    return replace(plan, spec=plan.spec.model_copy(update={"claimer": claimer}), claimers=1, haste=0.1, disaster=0.3)


def quiet(plan: Plan) -> Plan:
    """Nothing befalls a host."""
    return replace(plan, quiet=True, fault_share=0.0)


def faulty(plan: Plan) -> Plan:
    """Most transactions meet a fault."""
    return replace(plan, fault_share=0.9, quiet=False)


def authenticated(plan: Plan) -> Plan:
    """Charges wait for customers, who change their minds, over a bad network."""
    network = replace(plan.network, request_lost=0.4, answer_lost=0.2)
    return replace(
        plan,
        methods=("pm_customer", "pm_ok"),
        people=1.0,
        refunds=0.0,
        webhooks=True,
        quiet=False,
        disaster=0.05,
        fault_share=0.0,
        network=network,
        steps_max=300,
        days=20,
    )


def refunded(plan: Plan) -> Plan:
    """Money is given back, over a bad network."""
    network = replace(plan.network, request_late=0.5, answer_lost=0.2)
    return replace(
        plan,
        methods=("pm_ok",),
        refunds=1.0,
        network=network,
        quiet=False,
        disaster=0.05,
        fault_share=0.0,
        steps_max=300,
        days=20,
    )


def published(plan: Plan) -> Plan:
    """Events are published, with trouble."""
    return replace(plan, publishing=True, broker_trouble=0.3)


def change(patch: Patch, noun: str, name: str, *changes: tuple[str, str]) -> None:
    """Change the text of a named query."""
    texts = queries(noun)._texts
    text = texts[name]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    patch.setitem(texts, name, text)


def settle_without_token(patch: Patch) -> None:
    change(patch, "jobs", "finish", (" AND j.lease_token = r.token", ""))
    change(patch, "jobs", "finish_paid", ("lease_token = %(token)s", "%(token)s"))


def new_key_while_one_is_open(patch: Patch) -> None:
    change(patch, "jobs", "claim_candidates", ("attempt_open", "0"))
    change(patch, "jobs", "claim", ("(attempt_open = 0)", "1"))


def key_of_each_claim(patch: Patch) -> None:
    """The provider is not given the attempt's key but one of the lease."""
    patch.setattr(model.Job, "attempt_key", property(lambda job: model.attempt_key(job.key, job.token)))


def claim_without_attempt(patch: Patch) -> None:
    patch.setattr(store, "_open_attempts", lambda *_: None)


def no_answer_is_a_decline(patch: Patch) -> None:
    honest = charge.charge

    async def hasty(*arguments: Any, **named: Any) -> Outcome:
        outcome = await honest(*arguments, **named)
        if isinstance(outcome, Unknown):
            return Declined(decline_class=DeclineClass.RETRYABLE, code="timeout")
        return outcome

    patch.setattr(charge, "charge", hasty)


def reaper_takes_leases_that_live(patch: Patch) -> None:
    change(patch, "jobs", "expired_lanes", ("HAVING MIN(due_at) < NOW(6)", ""))
    for name in ("expired_leases", "reap"):
        change(patch, "jobs", name, (" AND due_at < NOW(6)", ""))


def half_a_batch_after_a_deadlock(patch: Patch) -> None:
    """The statement alone is run again, though the server has rolled back all before it."""
    execute = ShardTransaction._execute

    def stubborn(self: ShardTransaction, query: str, params: Any) -> Any:
        try:
            return execute(self, query, params)
        except DBAPIError as error:
            if error_code(error) != 1213:
                raise
            return execute(self, query, params)

    patch.setattr(ShardTransaction, "_execute", stubborn)


def an_event_is_dropped(patch: Patch) -> None:
    write = events.write
    patch.setattr(events, "write", lambda transaction, first, told: write(transaction, first, told[1:]))


def periods_are_left_out(patch: Patch) -> None:
    """After an outage only the last period that was missed is invoiced."""
    honest = billing_decide.plan

    def hasty(*arguments: Any, **named: Any) -> Invoices:
        plan = honest(*arguments, **named)
        return replace(plan, invoices=plan.invoices[-1:])

    patch.setattr(billing_decide, "plan", hasty)


def events_out_of_order(patch: Patch) -> None:
    """Events of one subscription do not wait for one another."""
    patch.setattr(keepers, "chains", lambda events: [(event,) for event in events])


def outcomes_told_apart_by_job_alone(patch: Patch) -> None:
    """Where a process has lost a job and claimed it anew. Found by the simulator itself."""

    def careless(transaction: ShardTransaction, results: Sequence[Result]) -> list[Result]:
        rows = transaction.read(queries("jobs").held, {"held": store.held_rows(result.job for result in results)})
        held = {row[0] for row in rows}
        return [result for result in results if result.job.id in held]

    patch.setattr(settle, "_still_held", careless)
    for end in ("_die", "_stop"):  # what it remembers is what it trips over
        patch.setattr(Claimer, end, Claimer._pause)


def another_charge_beside_one_that_waits(patch: Patch) -> None:
    """The customer gives another card, and completes the first charge all the same."""
    patch.setattr(rowstore, "cancel_waiting", lambda *_: frozenset())
    patch.setattr(manual, "cancel_waiting", lambda *_: frozenset())


def a_cancel_without_an_answer_is_one_that_was_done(patch: Patch) -> None:
    honest = charge._cancel

    async def hasty(*arguments: Any) -> Outcome:
        outcome = await honest(*arguments)
        if isinstance(outcome, Unknown):
            return Declined(decline_class=DeclineClass.RETRYABLE, code="canceled")
        return outcome

    patch.setattr(charge, "_cancel", hasty)


def a_refund_is_sent_again_under_a_new_key(patch: Patch) -> None:
    honest = push._request
    patch.setattr(push, "_request", lambda taken: replace(honest(taken), key=f"{taken.token:x}"))


def refunds_are_settled_without_their_lease(patch: Patch) -> None:
    change(patch, "refunds", "finish", (" AND lease_token = %(token)s", ""))


@pytest.mark.parametrize(
    ("plant", "adjust", "shows"),
    [
        (settle_without_token, restless, "audit open_attempts"),
        (new_key_while_one_is_open, every, "audit open_attempts"),
        (key_of_each_claim, every, "times: "),
        (claim_without_attempt, every, "audit attempt_numbers"),
        (no_answer_is_a_decline, every, ""),
        (reaper_takes_leases_that_live, quiet, "though nothing befell any host"),
        (half_a_batch_after_a_deadlock, faulty, "audit "),
        (an_event_is_dropped, every, "audit outbox_numbers"),
        (periods_are_left_out, every, "audit periods"),
        (events_out_of_order, published, "first heard of in the order"),
        (outcomes_told_apart_by_job_alone, lonely, "_LeaseLostError"),
        (another_charge_beside_one_that_waits, authenticated, "charge"),
        (a_cancel_without_an_answer_is_one_that_was_done, authenticated, "charge"),
        (a_refund_is_sent_again_under_a_new_key, refunded, " made "),
        (refunds_are_settled_without_their_lease, refunded, ""),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_simulator_catches(
    simulated: ShardSet, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Patch], None], adjust: Adjust, shows: str
) -> None:
    plant(monkeypatch)
    verdict = first_failure(simulated, adjust)
    assert shows in "\n".join([*verdict.double, *verdict.lost])
