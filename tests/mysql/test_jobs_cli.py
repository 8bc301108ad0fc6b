"""`billing-shards jobs` over real databases: what it finds, what it does, what it refuses, and the record that it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from billing_shards.cli.codes import ExitCode
from billing_shards.errors import InvalidInput, NotPossible
from billing_shards.jobs import inspect, store
from billing_shards.jobs.manual import Verb
from billing_shards.jobs.model import RETRY, Lane, Status
from billing_shards.payments import manual
from billing_shards.payments.model import ActionRequired, DeclineClass, Declined, Outcome, Succeeded, Unresolvable
from billing_shards.payments.settle import Result, settle
from tests.mysql.command import Ended, cli
from tests.mysql.shard_set import DueJob, ShardSet, pretty
from tests.mysql.test_purge import broken
from tests.mysql.test_queue import claim, expire, fill, reap_all, status

HARD = Declined(decline_class=DeclineClass.HARD, code="stolen_card", provider_ref="ch_no")
UNKNOWN_FOR_EVER = Unresolvable(reason="not found at the provider, and its key has expired")
WHY = ("--reason", "the bank called")


@pytest.fixture
def manifest(shard_set: ShardSet, tmp_path: Path) -> Path:
    return shard_set.manifest(tmp_path / "main.yaml", services=[{"name": "video", "lane": 7}])


@pytest.fixture
def jobs(manifest: Path) -> Callable[..., Ended]:
    """Run `billing-shards jobs …` over the set."""

    def run(*arguments: str) -> Ended:
        return cli("jobs", *arguments, "--manifest", manifest)

    return run


def add(shard_set: ShardSet, **columns: Any) -> DueJob:
    """A due job on shard 3."""
    return fill(shard_set, 1, **columns)[0]


def end(shard_set: ShardSet, due: DueJob, outcome: Outcome) -> None:
    """Claim the due renewals of its shard and settle them so."""
    results = [Result(job=job, outcome=outcome, draw=0.0) for job in claim(shard_set, due.shard)]
    assert [result.job.id for result in results] == [due.job]
    settle(shard_set.router, due.shard, results, policy=shard_set.spec.retry)


def name(due: DueJob) -> str:
    return f"{due.shard}/{due.job}"


def acts(shard_set: ShardSet, due: DueJob) -> list[dict[str, Any]]:
    query = (
        "SELECT actor, act, subject, reason, before_act, after_act FROM manual_act WHERE shard_id = %(shard)s ORDER BY created_at"
    )
    found = [dict(row._mapping) for row in shard_set.rows(due.shard, query)]
    return [{**row, "before_act": json.loads(row["before_act"]), "after_act": json.loads(row["after_act"])} for row in found]


def review_of(shard_set: ShardSet) -> DueJob:
    due = add(shard_set)
    end(shard_set, due, UNKNOWN_FOR_EVER)
    return due


# list and show


def test_jobs_are_listed_by_when_they_are_due_and_narrowed_down(shard_set: ShardSet, jobs: Callable[..., Ended]) -> None:
    late = shard_set.add_due_job("late", overdue_seconds=7200)
    shard_set.add_due_job("soon", overdue_seconds=-3600)
    own = shard_set.add_due_job("own", lane=15, overdue_seconds=30)
    gone = shard_set.add_due_job("gone", lane=50, overdue_seconds=20)
    paid = shard_set.add_due_job("paid", lane=20)
    (claimed,) = claim(shard_set, paid.shard, lane=Lane(20))
    done = Result(job=claimed, outcome=Succeeded(provider_ref="ch"), draw=0.0)
    settle(shard_set.router, paid.shard, [done], policy=shard_set.spec.retry)

    def subscriptions(*arguments: str) -> list[str]:
        return [job["subscription_id"] for job in jobs("list", "--json", *arguments).json["jobs"]]

    assert subscriptions() == ["late", "own", "gone", "soon"]
    assert subscriptions("--limit", "2") == ["late", "own"]
    assert subscriptions("--lane", "video retry") == subscriptions("--lane", "15") == ["own"]
    assert subscriptions("--lane", "lane 25 renewal") == ["gone"]
    assert subscriptions("--lane", "video") == []
    assert subscriptions("--status", "succeeded") == ["paid"]
    assert subscriptions("--status", "succeeded", "--status", "ready", "--lane", "renewal") == ["late", "soon"]
    assert subscriptions("--subscription", "own") == ["own"]
    assert subscriptions("--subscription", "own", "--lane", "renewal") == subscriptions("--subscription", "nobody") == []
    assert late.subscription in subscriptions("--shard", str(late.shard))
    shown = jobs("list").out.splitlines()
    assert shown[0].split()[:3] == ["job", "status", "lane"]
    assert shown[1].split()[:3] == [name(late), "ready", "renewal"]
    assert "an attempt, overdue for 2 h" in shown[1]
    assert "lane 25 renewal" in shown[3]
    assert jobs("list", "--limit", "1").out.splitlines()[-1] == "the first 1; --limit shows more"
    assert own.shard in range(8)
    assert gone.shard in range(8)


def test_a_list_of_nothing_says_so(jobs: Callable[..., Ended]) -> None:
    assert jobs("list").out == "no such jobs\n"
    assert jobs("list", "--json").json == {"jobs": []}


WRONG: list[tuple[list[str], str]] = [
    (["list", "--status", "late"], "--status: late is none of ready, processing, succeeded"),
    (["list", "--lane", "audio"], "--lane: audio is none of renewal, retry, video, video retry"),
    (["list", "--shard", "8"], "--shard: 8 is not below shardCount 8"),
    (["list", "--limit", "0"], "'--limit'"),
    (["show", "17"], "JOB: 17 is not of the form SHARD/ID"),
    (["retry", "9/1", *WHY], "JOB: shard 9 is not below shardCount 8"),
    (["retry", "3/1", "--reason", " "], "--reason: is empty"),
    (["retry", "3/1", "--reason", "x" * 501], "--reason: has 501 characters, at most 500 are kept"),
    (["retry", "3/1", *WHY, "--actor", ""], "--actor: is empty"),
    (["retry", "3/1", *WHY, "--actor", "a\x1b[31m"], "--actor: has characters that cannot be printed"),
    (["retry", "3/1"], "'--reason'"),
]


def test_wrong_input_is_named_by_its_field(jobs: Callable[..., Ended]) -> None:
    for arguments, told in WRONG:
        ended = jobs(*arguments)
        assert ended.code == ExitCode.BAD_INPUT, arguments
        assert told in ended.err


def test_a_job_that_lost_every_worker_tells_its_history(shard_set: ShardSet, jobs: Callable[..., Ended]) -> None:
    due = add(shard_set)
    for _ in range(3):
        shard_set.change(3, "UPDATE billing_job SET due_at = NOW(6) WHERE shard_id = %(shard)s")
        expire(shard_set, claim(shard_set)[0])
        assert reap_all(shard_set, lost_leases_max=3) == 1
    shown = jobs("show", name(due)).out
    assert f"job {name(due)}: review, lane renewal" in shown
    assert "a person: its attempt's outcome is unknown; lost 3 workers" in shown
    assert "attempt 1 begun" in shown
    assert "payment.review" in shown
    told = jobs("show", name(due), "--json").json
    assert (told["job"]["status"], told["job"]["lost_leases"], told["job"]["attempt_open"]) == ("review", 3, True)
    assert [event["type"] for event in told["events"]][-1] == "payment.review"


def test_a_job_that_is_not_there_has_an_exit_code(jobs: Callable[..., Ended]) -> None:
    for arguments in (["show", "3/99"], ["retry", "3/99", *WHY]):
        ended = jobs(*arguments)
        assert ended.code == ExitCode.NOT_FOUND
        assert ended.err.startswith("error: job 3/99: is not there")


def test_lists_are_found_by_index(shard_set: ShardSet) -> None:
    fill(shard_set, 150)
    params: dict[str, Any] = {"lanes": (0, 1), "statuses": (0, 1), "limit": 10}
    rows = shard_set.explain(3, inspect._q.list_jobs, shards=(3,), **params)
    by_key = {row["table"]: (row["key"], row["Extra"]) for row in rows if row["table"] == "billing_job"}
    assert by_key["billing_job"][0] == "claim", pretty(rows)
    assert any("Using index for group-by" in (row["Extra"] or "") for row in rows), pretty(rows)
    rows = shard_set.explain(3, inspect._q.jobs_by_key, keys=(b"x" * 32, b"y" * 32), **params)
    assert rows[0]["key"] == "idempotency", pretty(rows)


# Acts


def test_a_job_in_review_is_retried_on_the_record_under_its_open_attempt(
    shard_set: ShardSet, jobs: Callable[..., Ended], manifest: Path
) -> None:
    due = review_of(shard_set)
    assert status(shard_set, due).status == Status.REVIEW
    ended = jobs("retry", name(due), *WHY, "--actor", "Zoë from finance")
    assert (ended.code, ended.out) == (ExitCode.OK, f"job {name(due)}: due now\n")
    row = status(shard_set, due)
    assert (row.status, row.lane, row.attempt_open) == (Status.READY, RETRY, 1)
    (job,) = claim(shard_set, lane=RETRY)
    assert (job.resumed, job.attempt_no, job.checks) == (True, 1, 0)
    assert shard_set.count("payment_attempt") == 1
    (act,) = acts(shard_set, due)
    assert act["actor"] == "Zoë from finance"
    assert (act["act"], act["subject"], act["reason"]) == ("job.retry", f"job:{due.job}", "the bank called")
    assert (act["before_act"]["status"], act["after_act"]["status"]) == ("review", "ready")
    story = cli("invoice", "show", due.subscription, "--manifest", manifest).out
    assert "job.retry by Zoë from finance" in story
    assert "the bank called" in story


def test_an_attempt_that_nobody_can_tell_of_is_closed_on_a_persons_word_alone(
    shard_set: ShardSet, jobs: Callable[..., Ended]
) -> None:
    due = review_of(shard_set)
    assert jobs("close-attempt", name(due), *WHY).out == f"job {name(due)}: attempt closed, due now\n"
    (job,) = claim(shard_set, lane=RETRY)
    assert (job.attempt_no, job.resumed) == (2, False)
    query = "SELECT outcome, code, finished_at IS NOT NULL FROM payment_attempt WHERE shard_id = %(shard)s ORDER BY attempt_no"
    assert [tuple(row) for row in shard_set.rows(3, query)] == [(4, "closed_by_hand", 1), (0, None, 0)]
    assert not {"open_attempts", "attempt_numbers"} & broken(shard_set).keys()
    assert acts(shard_set, due)[0]["act"] == "job.close_attempt"
    refused = jobs("close-attempt", name(due), *WHY)
    assert refused.code == ExitCode.FAILED
    assert "is not in review" in refused.err


def test_a_failed_job_is_tried_again_and_its_invoice_is_owed_again(shard_set: ShardSet, jobs: Callable[..., Ended]) -> None:
    due = add(shard_set)
    end(shard_set, due, HARD)
    assert jobs("retry", name(due), *WHY).code == ExitCode.OK
    invoice = "SELECT status FROM invoice WHERE shard_id = %(shard)s AND id = %(id)s"
    assert shard_set.rows(3, invoice, id=due.invoice)[0][0] == 1
    assert "job_state" not in broken(shard_set)
    (job,) = claim(shard_set, lane=RETRY)
    assert (job.resumed, job.attempt_no) == (False, 2)
    paid = Result(job=job, outcome=Succeeded(provider_ref="ch_2"), draw=0.0)
    assert settle(shard_set.router, 3, [paid], policy=shard_set.spec.retry) == []
    assert shard_set.rows(3, invoice, id=due.invoice)[0][0] == 2
    assert acts(shard_set, due)[0]["after_act"]["invoice_status"] == 1


def test_one_that_waits_for_the_customer_is_canceled_to_be_tried_again(shard_set: ShardSet, jobs: Callable[..., Ended]) -> None:
    due = add(shard_set)
    end(shard_set, due, ActionRequired())
    assert status(shard_set, due).status == Status.AWAITING_CUSTOMER
    assert "the customer; a look in " in jobs("list").out
    assert jobs("retry", name(due), *WHY).code == ExitCode.OK
    assert "next: attempt 1 is canceled, unless it was paid" in jobs("show", name(due)).out
    assert [(job.id, job.attempt_no, job.canceling) for job in claim(shard_set, lane=RETRY)] == [(due.job, 1, True)]
    assert acts(shard_set, due)[0]["after_act"]["attempt_open"] is True


def test_one_that_waits_for_another_payment_method_is_never_due(shard_set: ShardSet, jobs: Callable[..., Ended]) -> None:
    due = add(shard_set)
    end(shard_set, due, Declined(decline_class=DeclineClass.NEW_METHOD, code="expired_card"))
    (row,) = jobs("list", "--json").json["jobs"]
    assert (row["status"], row["due_at"]) == ("awaiting-customer", None)
    assert "9999" not in jobs("list").out + jobs("show", name(due)).out
    assert "waits for the customer;" in jobs("show", name(due)).out
    assert jobs("show", name(due), "--json").json["job"]["due_at"] is None


def test_a_job_is_taken_back_from_a_worker_whose_outcome_then_changes_nothing(
    shard_set: ShardSet, jobs: Callable[..., Ended]
) -> None:
    due = add(shard_set)
    (first,) = claim(shard_set)
    assert jobs("release", name(due), *WHY).out == f"job {name(due)}: taken back\n"
    row = status(shard_set, due)
    assert (row.status, row.lease_token, row.attempt_open) == (Status.READY, 0, 1)
    late = Result(job=first, outcome=Succeeded(provider_ref="ch_late"), draw=0.0)
    assert settle(shard_set.router, 3, [late], policy=shard_set.spec.retry) == [first]
    assert store.renew(shard_set.router, [first], lease_seconds=60) == 0
    (second,) = claim(shard_set)
    assert second.resumed
    assert second.attempt_key == first.attempt_key


def test_a_job_is_set_aside_with_an_event_and_nothing_claims_it(shard_set: ShardSet, jobs: Callable[..., Ended]) -> None:
    due = add(shard_set)
    assert jobs("set-aside", name(due), *WHY).code == ExitCode.OK
    assert claim(shard_set) == []
    assert status(shard_set, due).status == Status.REVIEW
    (payload,) = shard_set.rows(3, "SELECT payload FROM outbox WHERE shard_id = %(shard)s AND type = 'payment.review'")
    assert json.loads(payload[0]) == {"invoice": due.invoice, "reason": "set_aside"}
    assert "a person: it was set aside" in jobs("list").out
    assert jobs("retry", name(due), *WHY).code == ExitCode.OK
    assert [job.attempt_no for job in claim(shard_set, lane=RETRY)] == [1]


def test_what_cannot_be_done_is_refused_with_the_reason_and_leaves_no_record(
    shard_set: ShardSet, jobs: Callable[..., Ended]
) -> None:
    due = add(shard_set)
    not_in_work = jobs("release", name(due), *WHY)
    assert (not_in_work.code, not_in_work.err) == (ExitCode.FAILED, f"error: job {name(due)}: is not in work\n")
    (job,) = claim(shard_set)
    for command in ("retry", "set-aside"):
        assert "is in work until its lease ends" in jobs(command, name(due), *WHY).err
    assert shard_set.count("manual_act") == 0
    assert status(shard_set, due).lease_token == job.token


def test_several_jobs_are_acted_upon_up_to_the_first_that_cannot_be(shard_set: ShardSet, jobs: Callable[..., Ended]) -> None:
    one, two, three = fill(shard_set, 3)
    claim(shard_set, limit=1)
    claimed = next(due for due in (one, two, three) if status(shard_set, due).status == Status.PROCESSING)
    first, last = (due for due in (one, two, three) if due is not claimed)
    ended = jobs("set-aside", name(first), name(claimed), name(last), *WHY, "--json")
    assert ended.code == ExitCode.FAILED
    assert [(job["shard_id"], job["id"]) for job in ended.json["jobs"]] == [(3, first.job)]
    assert status(shard_set, last).status == Status.READY


def test_an_invoice_that_is_void_is_not_collected_by_hand(shard_set: ShardSet) -> None:
    due = add(shard_set)
    end(shard_set, due, HARD)
    shard_set.change(3, "UPDATE invoice SET status = 4 WHERE shard_id = %(shard)s AND id = %(id)s", id=due.invoice)
    with pytest.raises(NotPossible, match="invoice that is void"):
        manual.act(shard_set.router, 3, due.job, Verb.RETRY, actor="a", reason="b")
    with pytest.raises(InvalidInput, match="--reason"):
        manual.act(shard_set.router, 3, due.job, Verb.RETRY, actor="a", reason="")


@pytest.mark.parametrize("after", [True, False])
def test_a_lost_answer_to_commit_leaves_one_act_and_one_change(
    shard_set: ShardSet, lose_commit: Callable[[bool], None], after: bool
) -> None:
    due = review_of(shard_set)
    lose_commit(after)
    done = manual.act(shard_set.router, 3, due.job, Verb.RETRY, actor="a", reason="b")
    assert (done.before["status"], done.after["status"]) == ("review", "ready")
    assert len(acts(shard_set, due)) == 1
    assert status(shard_set, due).status == Status.READY


def test_the_application_cannot_change_the_record(shard_set: ShardSet) -> None:
    due = review_of(shard_set)
    manual.act(shard_set.router, 3, due.job, Verb.RETRY, actor="a", reason="b")
    for statement in ("UPDATE manual_act SET actor = 'x'", "DELETE FROM manual_act"):
        with shard_set.router.read(3) as connection, pytest.raises(Exception, match="denied"):
            connection.exec_driver_sql(statement)
