"""The real command line, as a process, over real databases."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from sqlalchemy import event

from billing_shards import schema
from billing_shards.cli import invoice
from billing_shards.cli.codes import ExitCode
from billing_shards.db import queries
from billing_shards.jobs import store
from billing_shards.jobs.model import RENEWAL
from billing_shards.payments.model import DeclineClass, Declined, Outcome, Succeeded
from billing_shards.payments.settle import Result, settle
from hack.mysql import wrong_ca
from tests.mysql.command import cli
from tests.mysql.shard_set import APPLICATION, NAME, DueJob, ShardSet, Site

HEAD = schema.expected_revision()

SENTINEL = "s3ntinel-passw0rd"


def write_manifest(path: Path, site: Site, secrets: Mapping[str, Mapping[str, str]] | None = None, **spec: Any) -> Path:
    resource = {"apiVersion": "billingshards.io/v1alpha1", "kind": "BillingShardSet", "metadata": {"name": NAME}}
    documents = [{**resource, "spec": site.document(**spec)}]
    for name, data in {**site.secrets_by_name, **(secrets or {})}.items():
        documents.append({"kind": "Secret", "metadata": {"name": name}, "stringData": dict(data)})
    path.write_text(yaml.safe_dump_all(documents))
    return path


def finish(shard_set: ShardSet, job: DueJob, outcome: Outcome) -> None:
    jobs = store.claim(shard_set.router, job.shard, RENEWAL, limit=10, lease_seconds=60, provider="http").jobs
    results = [Result(job=claimed, outcome=outcome, draw=0.0) for claimed in jobs]
    settle(shard_set.router, job.shard, results, policy=shard_set.spec.retry)


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# schema


def test_schemas_are_upgraded_granted_and_placed_once(empty_site: Site, tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path / "main.yaml", empty_site)
    before = cli("schema", "status", "--manifest", manifest)
    assert before.code == ExitCode.DATABASE
    first = cli("schema", "upgrade", "--manifest", manifest)
    assert (first.code, first.err) == (ExitCode.OK, "")
    assert lines(first.out)[1:] == [["a", "empty", HEAD], ["b", "empty", HEAD]]
    again = cli("schema", "upgrade", "--manifest", manifest, "--json")
    assert again.json == {"databases": [{"database": name, "was": HEAD, "revision": HEAD} for name in ("a", "b")]}
    after = cli("schema", "status", "--manifest", manifest)
    assert after.code == ExitCode.OK
    assert lines(after.out)[1:] == [[name, HEAD, "main", "8", "usable"] for name in ("a", "b")]
    shown = cli("status", "--manifest", manifest)
    assert [line[:3] for line in lines(shown.out)[1:]] == [["0-3", "a", "owner"], ["4-7", "b", "owner"]]


def test_one_schema_is_upgraded_alone_and_nothing_is_placed(empty_site: Site, tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path / "main.yaml", empty_site)
    assert cli("schema", "upgrade", "--database", "b", "--manifest", manifest).code == ExitCode.OK
    shown = cli("schema", "status", "--manifest", manifest, "--json")
    states = {row["database"]: row["state"] for row in shown.json["databases"]}
    assert states["a"].startswith("access denied")  # the application's user was not let in
    assert states["b"] == "is not set up yet: no shard was ever placed on it"


def test_a_database_that_is_down_does_not_keep_the_others_from_their_upgrade(empty_site: Site, tmp_path: Path) -> None:
    document = empty_site.document()
    document["databases"][0]["port"] = 9
    manifest = write_manifest(tmp_path / "main.yaml", empty_site, databases=document["databases"])
    ended = cli("schema", "upgrade", "--manifest", manifest)
    assert ended.code == ExitCode.DATABASE
    assert ended.err == "error: database a: not reachable (MySQL error 2003)\n"
    assert lines(ended.out)[1:] == [["b", "empty", HEAD]]
    shown = cli("schema", "status", "--json", "--manifest", write_manifest(tmp_path / "whole.yaml", empty_site))
    assert shown.json["databases"][1]["state"] == "is not set up yet: no shard was ever placed on it"


def test_an_unknown_database_is_named(shard_set: ShardSet, tmp_path: Path) -> None:
    ended = cli("schema", "upgrade", "--database", "c", "--manifest", shard_set.manifest(tmp_path / "main.yaml"))
    assert (ended.code, ended.err) == (ExitCode.BAD_INPUT, "error: --database: 'c' is not in spec.databases (a, b)\n")


# where the shard set comes from


def test_a_pod_reads_its_mounted_folders(shard_set: ShardSet, tmp_path: Path) -> None:
    config, secrets = tmp_path / "config", tmp_path / "secrets"
    config.mkdir()
    spec = shard_set.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    (config / "shardset.json").write_text(json.dumps({"name": NAME, "spec": spec}))
    for name, data in shard_set.site.secrets_by_name.items():
        (secrets / name).mkdir(parents=True)
        for key, value in data.items():
            (secrets / name / key).write_text(value)
    folders = {"BILLING_SHARDS_CONFIG_DIR": str(config), "BILLING_SHARDS_SECRETS_DIR": str(secrets)}
    ended = cli("status", "--json", env=folders)
    assert ended.code == ExitCode.OK
    assert [(row["first"], row["database"]) for row in ended.json["shards"]][::4] == [(0, "a"), (4, "b")]
    (secrets / "app" / "password").unlink()
    ended = cli("audit", env=folders)
    assert ended.code == ExitCode.BAD_INPUT
    assert ended.err == "error: secret app: key password cannot be read (FileNotFoundError)\n"


@pytest.mark.parametrize("command", [["status"], ["audit"], ["invoice", "show", "0/1"], ["schema", "status"]])
def test_a_wrong_password_is_one_line_without_the_password(shard_set: ShardSet, tmp_path: Path, command: Sequence[str]) -> None:
    wrong = {"app": {"username": APPLICATION.username, "password": SENTINEL}}
    ended = cli(*command, "--manifest", write_manifest(tmp_path / "main.yaml", shard_set.site, wrong))
    assert ended.code == ExitCode.DATABASE
    assert "access denied (MySQL error 1045): check user name, password and schema" in ended.out + ended.err
    assert SENTINEL not in ended.out + ended.err


def test_a_wrong_authority_and_a_missing_secret_are_named(shard_set: ShardSet, tmp_path: Path) -> None:
    other = {"ca-a": {"ca.crt": wrong_ca(tmp_path / "wrong.pem").read_text()}}
    ended = cli("audit", "--manifest", write_manifest(tmp_path / "ca.yaml", shard_set.site, other))
    assert ended.code == ExitCode.DATABASE
    assert ended.err.startswith("error: database a: the server's certificate was not accepted")
    ended = cli("audit", "--manifest", write_manifest(tmp_path / "secret.yaml", shard_set.site, {"app": {}}))
    assert (ended.code, ended.err) == (ExitCode.BAD_INPUT, "error: secret app: key username is not in the manifest\n")


def test_databases_of_another_set_are_refused(shard_set: ShardSet, tmp_path: Path) -> None:
    ended = cli("audit", "--manifest", write_manifest(tmp_path / "main.yaml", shard_set.site, shardCount=16))
    assert ended.code == ExitCode.DATABASE
    assert ended.err == "error: database a: was set up as database a of main with 8 shards\n"


# import and status

HEADER = "id,customer_id,service,amount,currency,interval,start_date,time_zone,payment_method\n"
ROWS = "".join(
    f"sub-{number},c-{number},video,{amount},1 month,2026-01-31,Europe/Vienna,pm_{number}\n"
    for number, amount in enumerate(["9.90,USD", "1200,JPY", "3.500,KWD", "5.00,EUR"])
)


def test_subscriptions_are_imported_once(shard_set: ShardSet, tmp_path: Path) -> None:
    manifest, file = shard_set.manifest(tmp_path / "main.yaml"), tmp_path / "subscriptions.csv"
    file.write_text(HEADER + ROWS)
    first = cli("import", file, "--manifest", manifest)
    assert (first.code, first.err) == (ExitCode.OK, "")
    assert first.out == "4 rows: 4 imported, 0 there already, 0 with a problem\n"
    again = cli("import", file, "--manifest", manifest, "--json")
    assert (again.json["imported"], again.json["already_there"]) == (0, 4)
    shown = cli("status", "--manifest", manifest, "--json")
    assert sum(row["not_invoiced"] for row in shown.json["shards"]) == 4


def test_a_wrong_file_imports_nothing_and_names_each_field(shard_set: ShardSet, tmp_path: Path) -> None:
    manifest, file = shard_set.manifest(tmp_path / "main.yaml"), tmp_path / "subscriptions.csv"
    wrong = "sub-9,c-9,video,-1.00,USD,1 month,2026-02-31,UTC,pm_9\nsub-\x1b[31m,c,video,1.00,XXQ,1 month,2026-01-31,UTC,pm\n"
    file.write_text(HEADER + ROWS + wrong)
    ended = cli("import", file, "--manifest", manifest)
    assert ended.code == ExitCode.BAD_INPUT
    assert shard_set.count("subscription") == 0
    found = [line.split(": ")[1:3] for line in ended.err.splitlines()]
    assert sorted(found) == [["line 6", "amount"], ["line 6", "start_date"], ["line 7", "currency"], ["line 7", "id"]]
    assert "\x1b" not in ended.out + ended.err
    skipped = cli("import", file, "--skip-invalid", "--manifest", manifest)
    assert skipped.code == ExitCode.OK
    assert skipped.out == "6 rows: 4 imported, 0 there already, 2 with a problem\n"
    assert shard_set.count("subscription") == 4


def test_a_file_that_is_not_there_is_named(shard_set: ShardSet, tmp_path: Path) -> None:
    ended = cli("import", tmp_path / "none.csv", "--manifest", shard_set.manifest(tmp_path / "main.yaml"))
    assert ended.code == ExitCode.BAD_INPUT
    assert ended.err.startswith(f"error: {tmp_path / 'none.csv'}: ")


def test_status_shows_what_waits_where(shard_set: ShardSet, tmp_path: Path) -> None:
    manifest = shard_set.manifest(tmp_path / "main.yaml")
    jobs = [shard_set.add_due_job(f"s{number}", overdue_seconds=7200) for number in range(4)]
    shard_set.change(
        jobs[0].shard, "UPDATE billing_job SET status = 5 WHERE shard_id = %(shard)s AND id = %(job)s", job=jobs[0].job
    )
    document = cli("status", "--json", "--manifest", manifest).json
    assert document["unowned"] == []
    by_shard = {row["first"]: row for row in document["shards"]}
    assert by_shard[jobs[0].shard]["review"] == 1
    assert sum(row["due"] for row in document["shards"]) == 3
    assert by_shard[jobs[1].shard]["oldest_due_seconds"] > 7000
    shown = cli("status", "--manifest", manifest)
    assert [line[:3] for line in lines(shown.out)[1:]] == [["0-3", "a", "owner"], ["4-7", "b", "owner"]]
    assert "2 h" in shown.out
    each = cli("status", "--shards", "--manifest", manifest)
    assert [line[0] for line in lines(each.out)[1:]] == [str(shard) for shard in range(8)]


def test_status_of_what_is_left_when_a_database_is_down(shard_set: ShardSet, tmp_path: Path) -> None:
    databases = shard_set.site.document()["databases"]
    databases[1]["port"] = 9
    manifest = write_manifest(tmp_path / "main.yaml", shard_set.site, databases=databases)
    ended = cli("status", "--manifest", manifest)
    assert ended.code == ExitCode.DATABASE
    assert [line[:3] for line in lines(ended.out)[1:]] == [["0-3", "a", "owner"]]
    assert ended.err == "error: database b: not reachable (MySQL error 2003)\n"
    assert cli("status", "--json", "--manifest", manifest).json["unowned"] == [4, 5, 6, 7]


# invoice show


def test_the_story_of_an_invoice_is_told_in_order(shard_set: ShardSet, tmp_path: Path) -> None:
    manifest = shard_set.manifest(tmp_path / "main.yaml")
    job = shard_set.add_due_job("sub-1")
    soft = Declined(decline_class=DeclineClass.RETRYABLE, code="insufficient_funds", provider_ref="ch_1")
    finish(shard_set, job, soft)
    declined = cli("invoice", "show", f"{job.shard}/{job.invoice}", "--manifest", manifest)
    assert declined.code == ExitCode.OK
    assert declined.out.splitlines()[0] == f"invoice {job.shard}/{job.invoice}: 9.90 USD, open"
    assert "attempt 1 declined" in declined.out
    assert "code insufficient_funds, charge ch_1" in declined.out
    assert declined.out.splitlines()[-1].split()[2:5] == ["next:", "attempt", "2"]
    shard_set.change(job.shard, "UPDATE billing_job SET due_at = NOW(6), lane = 0 WHERE shard_id = %(shard)s")
    finish(shard_set, job, Succeeded(provider_ref="ch_2"))
    paid = cli("invoice", "show", "sub-1", "--manifest", manifest)
    order = [
        "invoice issued",
        "attempt 1 begun",
        "attempt 1 declined",
        "attempt 2 begun",
        "attempt 2 succeeded",
        "payment.succeeded",
    ]
    places = [paid.out.index(what) for what in order]
    assert places == sorted(places)
    assert "clearing:http → receivable:sub-1 9.90 USD" in paid.out
    assert "next:" not in paid.out
    assert cli("invoice", "show", "sub-1@2024-02-10", "--manifest", manifest).out == paid.out
    document = cli("invoice", "show", "sub-1", "--json", "--manifest", manifest).json
    assert document["invoice"]["status"] == "paid"
    assert [attempt["outcome"] for attempt in document["attempts"]] == ["declined", "succeeded"]
    assert [entry["kind"] for entry in document["ledger"]] == ["invoice_issued", "payment_succeeded"]
    assert [event["type"] for event in document["events"]] == ["invoice.issued", "payment.failed", "payment.succeeded"]


def test_a_code_from_the_provider_cannot_act_on_the_terminal(shard_set: ShardSet, tmp_path: Path) -> None:
    job = shard_set.add_due_job("sub-1")
    finish(shard_set, job, Declined(decline_class=DeclineClass.RETRYABLE, code="\x1b]0;owned\x07\x1b[31m"))
    for form in ([], ["--json"]):
        shown = cli("invoice", "show", "sub-1", *form, "--manifest", shard_set.manifest(tmp_path / "main.yaml"))
        assert "owned" in shown.out
        assert "\x1b" not in shown.out
        assert "\x07" not in shown.out


@pytest.mark.parametrize("which", ["0/999", "nobody", "sub-1@1999-01-01"])
def test_an_invoice_that_is_not_there_has_an_exit_code(shard_set: ShardSet, tmp_path: Path, which: str) -> None:
    shard_set.add_due_job("sub-1")
    ended = cli("invoice", "show", which, "--manifest", shard_set.manifest(tmp_path / "main.yaml"))
    assert ended.code == ExitCode.NOT_FOUND
    assert ended.err.startswith(f"error: invoice {which}: is not on shard ")


def test_a_long_story_takes_no_more_queries_than_a_short_one(shard_set: ShardSet) -> None:
    job = shard_set.add_due_job("sub-1")
    asked: list[str] = []
    database = shard_set.router.owner(job.shard)

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    def count_queries() -> int:
        asked.clear()
        assert invoice.read(shard_set.router, invoice.parse("sub-1@2024-01-31", 8)) is not None
        return len(asked)

    event.listen(database.engine, "before_cursor_execute", note)
    short = count_queries()
    number = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
    shard_set.change(
        job.shard,
        "INSERT INTO invoice (shard_id, id, subscription_id, charge_type, period_start, period_end, amount, currency, status,"
        f" due_at, issued_at) {number} SELECT %(shard)s, 1000 + i, 'sub-1', 1, '2024-01-31' + INTERVAL i MONTH,"
        " '2024-01-31' + INTERVAL i + 1 MONTH, 990, 'USD', 1, NOW(6), NOW(6) FROM n",
    )
    shard_set.change(
        job.shard,
        "INSERT INTO payment_attempt (shard_id, job_id, attempt_no, idempotency_key, provider, amount, currency, outcome,"
        f" created_at, finished_at) {number} SELECT %(shard)s, %(job)s, i, RANDOM_BYTES(32), 'http', 990, 'USD', 2, NOW(6),"
        " NOW(6) FROM n",
        job=job.job,
    )
    assert count_queries() == short == 8
    found = invoice.read(shard_set.router, invoice.parse("sub-1@2024-01-31", 8))
    assert found is not None
    assert len(found.attempts) == 500
    assert sum("declined" in one.what for one in invoice.story(found)) == 500


def test_the_story_is_found_by_index(shard_set: ShardSet) -> None:
    job = shard_set.add_due_job("sub-1")
    for number in range(2, 150):  # fewer rows, and the optimizer may rather read them all
        shard_set.add_due_job(f"sub-{number}")
    inspect = queries("inspect")
    params = {
        "subscription": "sub-1",
        "day": None,
        "id": job.invoice,
        "key": job.key,
        "job": job.job,
        "account": "receivable:sub-1",
    }
    used = {
        name: [
            row["key"]
            for row in shard_set.explain(job.shard, getattr(inspect, name), invoice=job.invoice, **params)
            if row["table"]
        ]
        for name in ("invoice", "invoice_of_day", "subscription", "job", "attempts", "entries")
    }
    assert {name: keys for name, keys in used.items() if name != "entries"} == {
        "invoice": ["PRIMARY"],
        "invoice_of_day": ["period"],
        "subscription": ["PRIMARY"],
        "job": ["idempotency"],
        "attempts": ["PRIMARY"],
    }
    assert used["entries"][:2] == ["debit", "credit"]


# audit


@pytest.fixture
def paid(shard_set: ShardSet) -> DueJob:
    """One paid invoice whose periods are as the audit wants them."""
    shard_set.add_subscription("sub-1", interval_unit=1, interval_count=30, next_period=1, status=4, next_invoice_at=None)
    job = shard_set.add_due_job("sub-1")
    finish(shard_set, job, Succeeded(provider_ref="ch_1"))
    return job


def charge(job: DueJob, **changes: Any) -> str:
    listed = {"id": "ch_1", "reference": f"{job.shard}/{job.invoice}/1", "status": "succeeded", "amount": 990, "currency": "USD"}
    return json.dumps({**listed, "created": "2026-01-01T00:00:00Z", **changes}) + "\n"


def test_a_clean_audit_says_so(shard_set: ShardSet, paid: DueJob, tmp_path: Path) -> None:
    manifest, file = shard_set.manifest(tmp_path / "main.yaml"), tmp_path / "charges.ndjson"
    file.write_text(charge(paid))
    ended = cli("audit", "--provider-charges", file, "--manifest", manifest)
    assert (ended.code, ended.err) == (ExitCode.OK, "")
    assert ended.out.splitlines()[-3:] == ["double charges: 0", "missing charges: 0", "audit: clean"]
    assert "balance: clearing 9.90 USD" in ended.out.splitlines()
    without = cli("audit", "--manifest", manifest)
    assert without.code == ExitCode.OK
    assert without.out.splitlines()[-3:] == [
        "double charges: not checked (no provider's list)",
        "missing charges: not checked (no provider's list)",
        "audit: clean",
    ]


def test_problems_are_counted_shown_and_told_by_the_exit_code(shard_set: ShardSet, paid: DueJob, tmp_path: Path) -> None:
    manifest = shard_set.manifest(tmp_path / "main.yaml")
    twice = charge(paid) + charge(paid, id="ch_2") + charge(paid, id="ch_\x1b[31m", reference="\x1b[31mx")
    ended = cli("audit", "--provider-charges", "-", "--manifest", manifest, stdin=twice)
    assert ended.code == ExitCode.PROBLEMS
    assert ended.out.splitlines()[-3:] == ["double charges: 1", "missing charges: 0", "audit: 2 problems"]
    assert "\x1b" not in ended.out
    document = cli("audit", "--provider-charges", "-", "--json", "--manifest", manifest, stdin=twice).json
    assert (document["clean"], document["problems"], document["provider"]["double_charges"]) == (False, 2, 1)
    (double,) = [rule for rule in document["rules"] if rule["name"] == "double_charges"]
    assert double["examples"] == [{"shard": paid.shard, "invoice": paid.invoice, "charges": ["ch_1", "ch_2"]}]
    nothing = cli("audit", "--provider-charges", "-", "--manifest", manifest, stdin="")
    assert nothing.out.splitlines()[-3:] == ["double charges: 0", "missing charges: 1", "audit: 1 problems"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "provider's charges, line 2: is not JSON"),
        ("[]", "provider's charges, line 2: is not a JSON object"),
        (
            '{"id": "x", "reference": "r", "status": "succeeded", "amount": 9.9, "currency": "USD"}',
            "line 2: amount: must be a whole",
        ),
        ('{"id": "x", "reference": "r", "status": "succeeded", "amount": 9}', "line 2: currency: must be text"),
    ],
)
def test_a_wrong_list_is_refused_with_its_line(
    shard_set: ShardSet, paid: DueJob, tmp_path: Path, text: str, message: str
) -> None:
    manifest = shard_set.manifest(tmp_path / "main.yaml")
    ended = cli("audit", "--provider-charges", "-", "--manifest", manifest, stdin=charge(paid) + text)
    assert ended.code == ExitCode.BAD_INPUT
    assert message in ended.err
    assert ended.err.count("\n") == 1


def test_a_list_that_is_not_there_is_named(shard_set: ShardSet, tmp_path: Path) -> None:
    for place in (str(tmp_path / "none"), "http://127.0.0.1:9/v1/charges/export"):
        ended = cli("audit", "--provider-charges", place, "--manifest", shard_set.manifest(tmp_path / "main.yaml"))
        assert ended.code == ExitCode.BAD_INPUT
        assert ended.err.startswith(f"error: --provider-charges: {place} cannot be read (")


@dataclass(slots=True)
class Provider:
    """A provider's export over HTTP, which notes who asked with which key."""

    url: str
    keys: list[str | None]
    body: str = ""
    broken: bool = False


@contextmanager
def _providing() -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            state.keys.append(self.headers["Authorization"])
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/export")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = state.body.encode()
            self.send_response(200)
            self.close_connection = state.broken
            if self.path == "/sized":
                self.send_header("Content-Length", str(len(body) + state.broken))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n" + (b"" if state.broken else b"0\r\n\r\n"))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Provider(url=f"http://127.0.0.1:{server.server_port}", keys=[])
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def provider() -> Iterator[Provider]:
    with _providing() as made:
        yield made


def test_the_list_is_read_from_the_provider_with_its_key(
    shard_set: ShardSet, paid: DueJob, provider: Provider, tmp_path: Path
) -> None:
    provider.body = charge(paid)
    gateway = {"url": provider.url, "apiKeySecret": {"name": "provider"}}
    manifest = write_manifest(tmp_path / "main.yaml", shard_set.site, {"provider": {"apiKey": SENTINEL}}, gateway=gateway)
    ended = cli("audit", "--provider-charges", f"{provider.url}/export", "--manifest", manifest)
    assert (ended.code, ended.err) == (ExitCode.OK, "")
    assert provider.keys == [f"Bearer {SENTINEL}"]
    cli("audit", "--provider-charges", f"{provider.url}/moved", "--manifest", manifest)
    assert provider.keys[1:] == [f"Bearer {SENTINEL}", None]


def test_the_key_is_not_given_to_another_address(shard_set: ShardSet, paid: DueJob, provider: Provider, tmp_path: Path) -> None:
    provider.body = charge(paid)
    gateway = {"url": "http://provider.example", "apiKeySecret": {"name": "provider"}}
    manifest = write_manifest(tmp_path / "main.yaml", shard_set.site, {"provider": {"apiKey": SENTINEL}}, gateway=gateway)
    assert cli("audit", "--provider-charges", f"{provider.url}/export", "--manifest", manifest).code == ExitCode.OK
    assert provider.keys == [None]


def test_a_list_that_breaks_off_is_not_taken_for_the_whole(
    shard_set: ShardSet, paid: DueJob, provider: Provider, tmp_path: Path
) -> None:
    provider.body, provider.broken = charge(paid), True
    manifest = shard_set.manifest(tmp_path / "main.yaml")
    for path in ("export", "sized"):
        ended = cli("audit", "--provider-charges", f"{provider.url}/{path}", "--manifest", manifest)
        assert ended.code == ExitCode.BAD_INPUT
        assert ended.err.startswith(f"error: --provider-charges: {provider.url}/{path} cannot be read (IncompleteRead")


# on a terminal


def on_terminal(*arguments: str | Path, env: Mapping[str, str]) -> str:
    """What a terminal is shown on stdout and stderr together."""
    command = [sys.executable, "-c", "import sys; from billing_shards.cli import main; sys.exit(main())", *map(str, arguments)]
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", **env}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65_536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(master)
    assert process.returncode == ExitCode.OK
    return shown.decode()


def test_a_terminal_is_shown_progress_and_colours_unless_they_are_unwanted(
    shard_set: ShardSet, paid: DueJob, tmp_path: Path
) -> None:
    assert paid.job
    manifest = shard_set.manifest(tmp_path / "main.yaml")
    coloured = on_terminal("audit", "--manifest", manifest, env={"NO_COLOR": ""})
    assert "shards" in coloured
    assert "8/8" in coloured
    assert "\x1b[1m" in coloured
    plain = on_terminal("audit", "--manifest", manifest, env={"NO_COLOR": "1"})
    assert "audit: clean" in plain
    assert "\x1b[3" not in plain
