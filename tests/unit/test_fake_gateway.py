"""The fake gateway over real HTTP: every rule of docs/gateway-protocol.md, SIGKILL included."""

import asyncio
import concurrent.futures
import http.client
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hack.fake_gateway import FakeGateway, load
from hack.fake_gateway.model import KeyRecord
from hack.fake_gateway.process import ROOT
from hack.fake_gateway.store import Made, NewCharge, Store
from hack.fake_gateway.writer import GroupWriter, connect


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: Any


def call(
    gateway: FakeGateway, method: str, path: str, body: Any = None, headers: dict[str, Any] | None = None, timeout: float = 30
) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=timeout)
    try:
        content = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, content, headers or {})
        response = connection.getresponse()
        text = response.read()
        return Reply(response.status, response.headers, json.loads(text) if text.startswith(b"{") else text.decode())
    finally:
        connection.close()


def charge(gateway: FakeGateway, key: str, *, headers: dict[str, Any] | None = None, timeout: float = 30, **fields: Any) -> Reply:
    body = {"amount": 1999, "currency": "USD", "payment_method": "pm_card", "reference": f"3/{key}/1"} | fields
    return call(gateway, "POST", "/v1/charges", body, {"Idempotency-Key": key} | (headers or {}), timeout)


def charge_until_answered(gateway: FakeGateway, key: str, **fields: Any) -> tuple[Reply, int]:
    """As a careful caller does: the same key again after 409, 429 or no answer. Returns the answer and the tries."""
    for tries in range(1, 100):
        try:
            reply = charge(gateway, key, **fields)
        except http.client.RemoteDisconnected:
            continue
        if reply.status not in {409, 429}:
            return reply, tries
        time.sleep(0.02)
    raise AssertionError("no answer in 99 tries")


def charge_without_answer(gateway: FakeGateway, key: str, **fields: Any) -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        charge(gateway, key, **fields)


def of_reference(gateway: FakeGateway, reference: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(gateway, "GET", f"/v1/charges?reference={urllib.parse.quote(reference)}").body["data"]
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited 30 s in vain"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGateway]:
    with FakeGateway.start(tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture
def gateway(shared_gateway: FakeGateway) -> FakeGateway:
    assert call(shared_gateway, "PUT", "/admin/config", {}).status == 200
    shared_gateway.reset()
    return shared_gateway


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    with FakeGateway.start(tmp_path) as gateway:
        yield gateway


# Answers


def test_success_has_the_documented_shape(gateway: FakeGateway) -> None:
    reply = charge(gateway, "k", metadata={"service": "video"})
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("application/json")
    assert "Idempotent-Replayed" not in reply.headers
    charge_id, created = reply.body.pop("id"), reply.body.pop("created")
    assert charge_id.startswith("ch_")
    assert created.endswith("Z")
    assert reply.body == {
        "status": "succeeded",
        "amount": 1999,
        "currency": "USD",
        "payment_method": "pm_card",
        "reference": "3/k/1",
        "metadata": {"service": "video"},
        "failure": None,
    }
    assert call(gateway, "GET", f"/v1/charges/{charge_id}").body["reference"] == "3/k/1"


def test_decline_is_402_with_codes_and_the_failed_charge_and_is_replayed(gateway: FakeGateway) -> None:
    first = charge(gateway, "k", payment_method="pm_decline_lost_card")
    assert first.status == 402
    error = first.body["error"]
    assert (error["type"], error["code"], error["decline_code"]) == ("card_error", "card_declined", "lost_card")
    assert error["advice_code"] == "do_not_try_again"
    assert first.body["charge"]["status"] == "failed"
    again = charge(gateway, "k", payment_method="pm_decline_lost_card")
    assert (again.status, again.body, again.headers["Idempotent-Replayed"]) == (402, first.body, "true")
    assert gateway.summary()["charges"] == {
        "total": 1,
        "succeeded": 0,
        "failed": 1,
        "pending": 0,
        "requires_action": 0,
        "reversed": 0,
        "canceled": 0,
    }


def test_declines_n_times_are_counted_per_invoice(gateway: FakeGateway) -> None:
    method = "pm_declines_2_insufficient_funds"
    statuses = [charge(gateway, f"a{n}", payment_method=method, reference=f"3/17/{n}").status for n in (1, 2, 3)]
    assert statuses == [402, 402, 200]
    assert charge(gateway, "b1", payment_method=method, reference="3/18/1").status == 402


def test_requires_action(gateway: FakeGateway) -> None:
    reply = charge(gateway, "k", payment_method="pm_requires_action")
    assert (reply.status, reply.body["status"]) == (200, "requires_action")


@pytest.mark.parametrize(("decline_rate", "expected"), [(0, "succeeded"), (1, "failed")])
def test_pending_charge_settles_when_its_time_has_come(gateway: FakeGateway, decline_rate: float, expected: Any) -> None:
    gateway.configure(settle_after_seconds=3600, pending_decline_rate=decline_rate)
    first = charge(gateway, "k", payment_method="pm_pending")
    assert (first.status, first.body["status"], first.body["next_check_seconds"]) == (200, "pending", 3600)
    path = f"/v1/charges/{first.body['id']}"
    gateway.advance(3500)
    assert call(gateway, "GET", path).body["status"] == "pending"
    gateway.advance(101)
    settled = call(gateway, "GET", path).body
    assert settled["status"] == expected
    assert "next_check_seconds" not in settled
    assert (settled["failure"] is None) is (expected == "succeeded")
    assert charge(gateway, "k", payment_method="pm_pending").body == first.body  # the stored answer, as it was
    assert gateway.summary()["charges"][expected] == 1


# Charges that wait for the customer


def cancel(gateway: FakeGateway, charge_id: str, headers: dict[str, Any] | None = None) -> Reply:
    return call(gateway, "POST", f"/v1/charges/{charge_id}/cancel", headers=headers)


def complete(gateway: FakeGateway, charge_id: str, body: Any = None) -> Reply:
    return call(gateway, "POST", f"/admin/charges/{charge_id}/complete", body)


def waiting(gateway: FakeGateway, key: str, payment_method: str = "pm_requires_action") -> dict[str, Any]:
    reply = charge(gateway, key, payment_method=payment_method)
    assert (reply.status, reply.body["status"]) == (200, "requires_action")
    assert "next_check_seconds" not in reply.body
    made: dict[str, Any] = reply.body
    return made


def test_a_charge_that_waits_is_canceled_for_good(gateway: FakeGateway) -> None:
    made = waiting(gateway, "k")
    reply = cancel(gateway, made["id"])
    assert (reply.status, reply.body) == (200, {**made, "status": "canceled"})
    assert cancel(gateway, made["id"]).body == reply.body
    assert call(gateway, "GET", f"/v1/charges/{made['id']}").body == reply.body
    assert of_reference(gateway, "3/k/1") == [reply.body]
    assert list(gateway.charges()) == [reply.body]
    for body in (None, {"fails": True}):
        refused = complete(gateway, made["id"], body)
        assert (refused.status, refused.body["error"]["param"]) == (400, "id")
        assert "this charge is canceled" in refused.body["error"]["message"]
    assert call(gateway, "GET", f"/v1/charges/{made['id']}").body == reply.body
    assert charge(gateway, "k", payment_method="pm_requires_action").body == made  # the stored answer, as it was
    summary = gateway.summary()
    assert (summary["charges"]["canceled"], summary["charges"]["total"], summary["succeeded_by_currency"]) == (1, 1, {})
    page = call(gateway, "GET", "/?status=canceled").body
    assert 'class="status canceled"' in page


@pytest.mark.parametrize("method", ["pm_card", "pm_decline_lost_card", "pm_pending"])
def test_a_cancel_leaves_any_other_charge_as_it_is(gateway: FakeGateway, method: str) -> None:
    made = charge(gateway, "k", payment_method=method).body
    made = made.get("charge", made)
    assert (cancel(gateway, made["id"]).status, cancel(gateway, made["id"]).body) == (200, made)
    assert of_reference(gateway, "3/k/1") == [made]


def test_a_cancel_leaves_a_reversed_charge_as_it_is(gateway: FakeGateway) -> None:
    reversed_charge = gateway.reverse(charge(gateway, "k").body["id"])
    assert cancel(gateway, reversed_charge["id"]).body == reversed_charge


def test_a_cancel_needs_a_charge_and_the_api_key(gateway: FakeGateway) -> None:
    made = waiting(gateway, "k")
    missing = cancel(gateway, "ch_none")
    assert (missing.status, missing.body["error"]["code"]) == (404, "resource_missing")
    assert complete(gateway, "ch_none").status == 404
    gateway.configure(api_key="sk_test")
    assert cancel(gateway, made["id"]).status == 401
    assert cancel(gateway, made["id"], {"Authorization": "Bearer sk_test"}).body["status"] == "canceled"


@pytest.mark.parametrize(("fails", "status", "code"), [(False, "succeeded", None), (True, "failed", "authentication_required")])
def test_the_customer_completes_a_charge_once(gateway: FakeGateway, fails: bool, status: str, code: str | None) -> None:
    made = waiting(gateway, "k")
    completed = gateway.complete(made["id"], fails=fails)
    assert completed == {**made, "status": status, "failure": completed["failure"]}
    assert (completed["failure"] and completed["failure"]["decline_code"]) == code
    assert of_reference(gateway, "3/k/1") == [completed]
    with pytest.raises(urllib.error.HTTPError) as again:
        gateway.complete(made["id"])
    again.value.close()
    assert again.value.code == 400
    assert cancel(gateway, made["id"]).body == completed


def test_only_a_charge_that_waits_is_completed(gateway: FakeGateway) -> None:
    for number, method in enumerate(("pm_card", "pm_pending")):
        made = charge(gateway, f"k{number}", payment_method=method).body
        assert complete(gateway, made["id"]).status == 400
        assert call(gateway, "GET", f"/v1/charges/{made['id']}").body == made


@pytest.mark.parametrize(("body", "param"), [({"fails": 1}, "fails"), ({"code": "x"}, "code"), ([], "body")])
def test_a_bad_completion_is_named(gateway: FakeGateway, body: Any, param: str) -> None:
    made = waiting(gateway, "k")
    reply = complete(gateway, made["id"], body)
    assert (reply.status, reply.body["error"]["param"]) == (400, param)
    assert of_reference(gateway, "3/k/1") == [made]


def test_a_customer_completes_by_and_by_unless_it_was_canceled_before(gateway: FakeGateway) -> None:
    gateway.configure(settle_after_seconds=3600)
    left, canceled, late = (waiting(gateway, key, "pm_customer_completes") for key in ("left", "canceled", "late"))
    gateway.advance(3500)
    assert cancel(gateway, canceled["id"]).body["status"] == "canceled"
    gateway.advance(101)
    assert cancel(gateway, late["id"]).body == {**late, "status": "succeeded"}
    assert of_reference(gateway, "3/left/1") == [{**left, "status": "succeeded"}]
    assert of_reference(gateway, "3/canceled/1") == [{**canceled, "status": "canceled"}]


def test_of_a_cancel_and_a_completion_at_once_exactly_one_happens(gateway: FakeGateway) -> None:
    ids = [waiting(gateway, f"k{number}")["id"] for number in range(40)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        pairs = [
            [pool.submit(act, gateway, charge_id) for act in ((cancel, complete) if number % 2 else (complete, cancel))]
            for number, charge_id in enumerate(ids)
        ]
    statuses = []
    for number, (charge_id, pair) in enumerate(zip(ids, pairs, strict=True)):
        canceled, completed = (reply.result() for reply in (pair if number % 2 else pair[::-1]))
        statuses.append(call(gateway, "GET", f"/v1/charges/{charge_id}").body["status"])
        assert canceled.body["status"] == statuses[-1]
        assert completed.status == (200 if statuses[-1] == "succeeded" else 400)
    assert set(statuses) == {"succeeded", "canceled"}


def test_of_a_cancel_and_a_settlement_at_once_one_happens_and_is_told(tmp_path: Path) -> None:
    async def body() -> tuple[str | None, str | None, list[str]]:
        store = Store(tmp_path / "state")
        before, settled, canceled = (
            json.dumps({"id": "ch_x", "status": status}) for status in ("requires_action", "succeeded", "canceled")
        )
        record = KeyRecord(fingerprint="", http_status=200, body=before, created=0.0, generation=0)
        made = NewCharge(charge_id="ch_x", group="3/k", document=before, settles_at=10.0, settled=settled)
        await store.save("k", record, Made(charge=made), None, tell=True)
        _, after = await asyncio.gather(store.settle(10.0, tell=True), store.change_charge("ch_x", before, canceled, told=10.0))
        late = await store.change_charge("ch_x", before, json.dumps({"id": "ch_x", "status": "failed"}), told=10.0)
        told = [event.kind for _, event in store.events_after(0)]
        await store.close()
        return after, late, told

    after, late, told = asyncio.run(body())
    assert after is not None
    assert late == after, "what is judged by how it was before changes nothing"
    assert told == [f"charge.{json.loads(after)['status']}"]


def test_the_answer_of_a_charges_first_cancel_may_be_lost(gateway: FakeGateway) -> None:
    made, other = waiting(gateway, "k"), charge(gateway, "other").body
    gateway.configure(payment_methods={"pm_requires_action": {"cancel_lost_answer_rate": 1.0}})
    assert cancel(gateway, other["id"]).body == other
    with pytest.raises(http.client.RemoteDisconnected):
        cancel(gateway, made["id"])
    assert of_reference(gateway, "3/k/1") == [{**made, "status": "canceled"}]
    assert cancel(gateway, made["id"]).body == {**made, "status": "canceled"}
    assert gateway.summary()["faults"] == {"cancel_lost_answer": 1}


def test_of_many_cancels_at_once_one_loses_its_answer(gateway: FakeGateway) -> None:
    made = waiting(gateway, "k")
    gateway.configure(cancel_lost_answer_rate=1.0)

    def status(_: int) -> str | None:
        try:
            answered: str = cancel(gateway, made["id"]).body["status"]
        except http.client.RemoteDisconnected:
            return None
        return answered

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert Counter(pool.map(status, range(8))) == {None: 1, "canceled": 7}
    assert gateway.summary()["faults"] == {"cancel_lost_answer": 1}


def test_a_cancel_whose_answer_was_lost_survives_sigkill(own_gateway: FakeGateway) -> None:
    own_gateway.configure(cancel_lost_answer_rate=1.0)
    made = waiting(own_gateway, "k", "pm_customer_completes")
    with pytest.raises(http.client.RemoteDisconnected):
        cancel(own_gateway, made["id"])
    own_gateway.restart()
    own_gateway.advance(3600)
    assert cancel(own_gateway, made["id"]).body == {**made, "status": "canceled"}
    assert own_gateway.summary()["faults"] == {"cancel_lost_answer": 1}


# Stripe's words for it


def intent(gateway: FakeGateway, key: str, payment_method: str) -> dict[str, Any]:
    fields = {"amount": 1999, "currency": "usd", "payment_method": payment_method, "confirm": "true", "off_session": "true"}
    reply = stripe(gateway, "/v1/payment_intents", fields, {"Idempotency-Key": key})
    made: dict[str, Any] = reply.body["error"]["payment_intent"] if reply.status == 402 else reply.body
    return made


def stripe(gateway: FakeGateway, path: str, fields: dict[str, Any], headers: dict[str, Any] | None = None) -> Reply:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return call(gateway, "POST", path, urllib.parse.urlencode(fields), form | (headers or {}))


@pytest.mark.parametrize(
    ("method", "reason"),
    [("pm_requires_action", None), ("pm_requires_action", "abandoned"), ("pm_decline_lost_card", "requested_by_customer")],
)
def test_an_intent_that_waits_or_failed_is_canceled_once(gateway: FakeGateway, method: str, reason: str | None) -> None:
    made = intent(gateway, "k", method)
    assert (made["canceled_at"], made["cancellation_reason"]) == (None, None)
    path = f"/v1/payment_intents/{made['id']}"
    reply = stripe(gateway, f"{path}/cancel", {"cancellation_reason": reason} if reason else {})
    assert (reply.status, reply.body["status"], reply.body["cancellation_reason"]) == (200, "canceled", reason)
    assert (reply.body["amount_received"], reply.body["last_payment_error"]) == (0, None)
    assert abs(reply.body["canceled_at"] - time.time()) < 60
    assert call(gateway, "GET", path).body == reply.body
    again = stripe(gateway, f"{path}/cancel", {})
    assert (again.status, again.body["error"]["type"]) == (400, "invalid_request_error")
    assert again.body["error"]["code"] == "payment_intent_unexpected_state"
    assert again.body["error"]["payment_intent"] == reply.body
    assert complete(gateway, made["id"]).status == 400


@pytest.mark.parametrize(("method", "status"), [("pm_card", "succeeded"), ("pm_pending", "processing")])
def test_an_intent_that_is_beyond_it_is_not_canceled(gateway: FakeGateway, method: str, status: str) -> None:
    made = intent(gateway, "k", method)
    reply = stripe(gateway, f"/v1/payment_intents/{made['id']}/cancel", {})
    assert (reply.status, reply.body["error"]["code"]) == (400, "payment_intent_unexpected_state")
    assert reply.body["error"]["payment_intent"] == made
    assert made["status"] == status
    assert call(gateway, "GET", f"/v1/payment_intents/{made['id']}").body == made


def test_a_bad_cancel_of_an_intent_is_refused(gateway: FakeGateway) -> None:
    made, own = intent(gateway, "k", "pm_requires_action"), waiting(gateway, "own")
    for fields, param in (({"cancellation_reason": "whim"}, "cancellation_reason"), ({"amount": "1"}, "amount")):
        reply = stripe(gateway, f"/v1/payment_intents/{made['id']}/cancel", fields)
        assert (reply.status, reply.body["error"]["param"]) == (400, param)
    for missing in ("pi_none", own["id"]):
        reply = stripe(gateway, f"/v1/payment_intents/{missing}/cancel", {})
        assert (reply.status, reply.body["error"]["code"]) == (404, "resource_missing")
    assert {each["status"] for each in gateway.charges()} == {"requires_action"}


def test_the_answer_of_an_intents_cancel_may_be_lost(gateway: FakeGateway) -> None:
    gateway.configure(cancel_lost_answer_rate=1.0)
    path = f"/v1/payment_intents/{intent(gateway, 'k', 'pm_requires_action')['id']}"
    with pytest.raises(http.client.RemoteDisconnected):
        stripe(gateway, f"{path}/cancel", {})
    assert call(gateway, "GET", path).body["status"] == "canceled"
    assert stripe(gateway, f"{path}/cancel", {}).status == 400


# Idempotency keys


def test_same_key_is_replayed_whatever_the_order_of_the_json(gateway: FakeGateway) -> None:
    first = charge(gateway, "k", metadata={"a": "1", "b": "2"})
    text = '{"metadata": {"b": "2", "a": "1"}, "reference":"3/k/1", "payment_method":"pm_card","currency":"USD", "amount":1999}'
    again = call(gateway, "POST", "/v1/charges", text, {"Idempotency-Key": "k"})
    assert (again.status, again.body, again.headers["Idempotent-Replayed"]) == (200, first.body, "true")
    assert gateway.summary()["charges"]["total"] == 1


@pytest.mark.parametrize(
    "other",
    [
        {"amount": 2000},
        {"currency": "EUR"},
        {"payment_method": "pm_other"},
        {"reference": "3/k/2"},
        {"metadata": {"a": "1"}},
    ],
)
def test_same_key_with_other_parameters_is_refused(gateway: FakeGateway, other: dict[str, Any]) -> None:
    charge(gateway, "k")
    reply = charge(gateway, "k", **other)
    assert reply.status == 400
    assert (reply.body["error"]["type"], reply.body["error"]["code"]) == ("idempotency_error", "idempotency_key_mismatch")
    assert gateway.summary()["charges"]["total"] == 1


def test_concurrent_requests_with_one_key_make_one_charge(gateway: FakeGateway) -> None:
    gateway.configure(delay_ms=300)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda _: charge(gateway, "k"), range(20)))
    fresh = [reply for reply in replies if reply.status == 200 and "Idempotent-Replayed" not in reply.headers]
    conflicts = [reply for reply in replies if reply.status == 409]
    assert len(fresh) == 1
    assert conflicts
    assert {reply.status for reply in replies} <= {200, 409}
    assert conflicts[0].body["error"]["code"] == "idempotency_key_in_use"
    assert charge(gateway, "k").body == fresh[0].body
    assert gateway.summary()["charges"]["total"] == 1


def test_expired_key_is_a_new_request_and_its_double_charge_is_seen(gateway: FakeGateway) -> None:
    gateway.configure(key_ttl_seconds=86_400)
    first = charge(gateway, "k")
    gateway.advance(86_399)
    assert charge(gateway, "k").headers["Idempotent-Replayed"] == "true"
    gateway.advance(2)
    second = charge(gateway, "k", amount=2500)  # other parameters are no mismatch either
    assert (second.status, second.headers["Idempotent-Replayed"]) == (200, None)
    assert second.body["id"] != first.body["id"]
    summary = gateway.summary()
    assert (summary["double_charges"], summary["double_charge_references"]) == (1, ["3/k"])


# Faults


def test_answer_lost_after_the_charge_was_made(gateway: FakeGateway) -> None:
    charge_without_answer(gateway, "k", payment_method="pm_lost_answer")
    (found,) = of_reference(gateway, "3/k/1")
    assert found["status"] == "succeeded"
    again = charge(gateway, "k", payment_method="pm_lost_answer")
    assert (again.body, again.headers["Idempotent-Replayed"]) == (found, "true")
    summary = gateway.summary()
    assert (summary["faults"], summary["unanswered"], summary["answers"]) == ({"lost_answer": 1}, 1, {"200": 1})


def test_conflict_while_the_charge_is_made_in_the_background(gateway: FakeGateway) -> None:
    gateway.configure(conflict_seconds=5)
    first = charge(gateway, "k", payment_method="pm_conflict")
    assert (first.status, first.body["error"]["code"]) == (409, "idempotency_key_in_use")
    assert charge(gateway, "k", payment_method="pm_conflict").status == 409
    assert of_reference(gateway, "3/k/1") == []
    gateway.advance(5)
    reply, _ = charge_until_answered(gateway, "k", payment_method="pm_conflict")
    assert (reply.status, reply.headers["Idempotent-Replayed"]) == (200, "true")
    assert [reply.body] == of_reference(gateway, "3/k/1")
    assert gateway.summary()["in_flight"] == 0


def test_hanging_request_charges_after_its_caller_has_left(gateway: FakeGateway) -> None:
    gateway.configure(hang_seconds=3600)
    with pytest.raises(TimeoutError):
        charge(gateway, "k", payment_method="pm_hang", timeout=0.3)
    assert charge(gateway, "k", payment_method="pm_hang").status == 409
    assert of_reference(gateway, "3/k/1") == []
    gateway.advance(3600)
    reply, _ = charge_until_answered(gateway, "k", payment_method="pm_hang")
    assert (reply.status, reply.headers["Idempotent-Replayed"]) == (200, "true")
    assert gateway.summary()["charges"]["total"] == 1


@pytest.mark.parametrize(("method", "charges"), [("pm_500_before", 0), ("pm_500_after", 1)])
def test_500_is_stored_and_replayed_whether_the_charge_was_made_or_not(gateway: FakeGateway, method: str, charges: int) -> None:
    first = charge(gateway, "k", payment_method=method)
    assert (first.status, first.body["error"]["type"]) == (500, "api_error")
    again = charge(gateway, "k", payment_method=method)
    assert (again.status, again.body, again.headers["Idempotent-Replayed"]) == (500, first.body, "true")
    assert len(of_reference(gateway, "3/k/1")) == charges


def test_429_names_the_wait_and_is_not_stored(gateway: FakeGateway) -> None:
    gateway.configure(rate_limited_times=2, retry_after_seconds=7)
    replies = [charge(gateway, "k", payment_method="pm_rate_limited") for _ in range(3)]
    assert [reply.status for reply in replies] == [429, 429, 200]
    assert replies[0].headers["Retry-After"] == "7"
    assert "Idempotent-Replayed" not in replies[2].headers


def test_max_rps_refuses_and_recovers(gateway: FakeGateway) -> None:
    gateway.configure(max_rps=0.01)
    replies = [charge(gateway, "a"), charge(gateway, "b")]
    assert [reply.status for reply in replies] == [200, 429]
    assert 90 <= int(replies[1].headers["Retry-After"]) <= 100
    gateway.advance(100)
    assert charge(gateway, "b").status == 200


def test_service_with_a_fault_leaves_the_others_alone(gateway: FakeGateway) -> None:
    gateway.configure(services={"video": {"decline_rate": 1.0, "decline_codes": {"do_not_honor": 1}}})
    assert charge(gateway, "a", metadata={"service": "audio"}).status == 200
    assert charge(gateway, "b", metadata={"service": "video"}).body["error"]["decline_code"] == "do_not_honor"


RATES: dict[str, Any] = {
    "seed": 42,
    "decline_rate": 0.2,
    "rate_limited_rate": 0.3,
    "in_flight_conflict_rate": 0.3,
    "conflict_seconds": 0.01,
    "lost_answer_rate": 0.3,
    "error_500_before_rate": 0.1,
    "error_500_after_rate": 0.1,
    "hang_rate": 0.2,
    "hang_seconds": 0.01,
    "pending_rate": 0.2,
}


def run_of_keys(gateway: FakeGateway, keys: list[str]) -> tuple[Any, Any, Any]:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda key: charge_until_answered(gateway, key), keys))
    answers = {key: (reply.status, reply.body.get("status")) for key, (reply, _) in zip(keys, replies, strict=True)}
    summary = gateway.summary()
    return answers, summary["faults"], summary["charges"]


def test_run_reproduces_from_its_seed_whatever_the_order(gateway: FakeGateway) -> None:
    gateway.configure(**RATES)
    keys = [f"k{number}" for number in range(80)]
    first = run_of_keys(gateway, keys)
    gateway.reset()
    assert run_of_keys(gateway, keys[::-1]) == first
    assert len(first[1]) == 6, "every kind of fault happened"
    gateway.reset()
    gateway.configure(seed=43)
    assert run_of_keys(gateway, keys) != first


def test_a_key_that_meets_every_fault_gets_through_with_one_charge(gateway: FakeGateway) -> None:
    everything = {name: 1.0 for name in RATES if name.endswith("_rate")} | {"pending_rate": 0, "decline_rate": 0}
    gateway.configure(**everything | {"error_500_before_rate": 0, "hang_seconds": 0.01, "conflict_seconds": 0.01})
    reply, _ = charge_until_answered(gateway, "k")
    assert (reply.status, reply.headers["Idempotent-Replayed"]) == (500, None)
    assert gateway.summary()["faults"] == {"rate_limited": 1, "hang": 1, "error_500_after": 1}
    assert len(of_reference(gateway, "3/k/1")) == 1


# Wrong input


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"amount": 0}, "amount"),
        ({"amount": -5}, "amount"),
        ({"amount": 19.99}, "amount"),
        ({"amount": "1999"}, "amount"),
        ({"amount": True}, "amount"),
        ({"amount": 2**53}, "amount"),
        ({"currency": "usd"}, "currency"),
        ({"currency": "US"}, "currency"),
        ({"payment_method": ""}, "payment_method"),
        ({"payment_method": None}, "payment_method"),
        ({"reference": "x" * 256}, "reference"),
        ({"reference": "\ud800"}, "reference"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": []}, "metadata"),
        ({"tip": 1}, "tip"),
    ],
)
def test_bad_parameter_is_named_and_nothing_is_stored(gateway: FakeGateway, fields: dict[str, Any], param: str) -> None:
    reply = charge(gateway, "k", **fields)
    assert reply.status == 400
    assert (reply.body["error"]["type"], reply.body["error"]["param"]) == ("invalid_request_error", param)
    assert charge(gateway, "k").status == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":' * 40_000, b"\xff", b"x" * 100_000])
def test_body_that_is_no_object_or_too_large(gateway: FakeGateway, body: Any) -> None:
    reply = call(gateway, "POST", "/v1/charges", body, {"Idempotency-Key": "k"})
    assert (reply.status, reply.body["error"]["param"]) == (400, "body")


@pytest.mark.parametrize("key", ["", "x" * 256, "schlüssel"])
def test_key_is_required_and_bounded(gateway: FakeGateway, key: str) -> None:
    reply = charge(gateway, key, headers={"Idempotency-Key": key.encode("latin-1")})
    assert (reply.status, reply.body["error"]["param"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/charges"), ("GET", "/v1/charges"), ("GET", "/v1/charges/ch_x"), ("GET", "/v1/charges/export")],
)
@pytest.mark.parametrize("sent", [None, "Bearer wrong", "sk_test"])
def test_api_key_is_asked_for_where_one_is_configured(gateway: FakeGateway, method: str, path: str, sent: str | None) -> None:
    gateway.configure(api_key="sk_test")
    headers = {"Idempotency-Key": "k"} | ({"Authorization": sent} if sent else {})
    reply = call(gateway, method, path, {} if method == "POST" else None, headers)
    assert (reply.status, reply.body["error"]["type"]) == (401, "authentication_error")


def test_right_api_key_is_let_in(gateway: FakeGateway) -> None:
    gateway.configure(api_key="sk_test")
    assert charge(gateway, "k", headers={"Authorization": "Bearer sk_test"}).status == 200


def test_refused_configuration_names_the_field_and_changes_nothing(gateway: FakeGateway) -> None:
    gateway.configure(decline_rate=0.25)
    before = call(gateway, "GET", "/admin/config").body
    for method in ("PUT", "PATCH"):
        reply = call(gateway, method, "/admin/config", {"seed": 5, "hang_rate": 2})
        assert (reply.status, reply.body["error"]["param"]) == (400, "hang_rate")
        assert "from 0 to 1, got 2" in reply.body["error"]["message"]
    with pytest.raises(urllib.error.HTTPError) as raised:
        gateway.configure(nonsense=1)
    raised.value.close()
    assert call(gateway, "GET", "/admin/config").body == before


def test_put_replaces_the_configuration_and_patch_changes_fields_of_it(gateway: FakeGateway) -> None:
    gateway.configure(seed=4, decline_rate=0.25)
    assert gateway.configure(delay_ms=3)["decline_rate"] == 0.25
    whole = call(gateway, "PUT", "/admin/config", {"delay_ms": 3}).body
    assert (whole["seed"], whole["decline_rate"], whole["delay_ms"]) == (0, 0.0, {"min": 3, "max": 3})


@pytest.mark.parametrize("body", [{"advance_seconds": -1}, {"advance_seconds": "1"}, {}, {"advance_seconds": 9e9}])
def test_clock_goes_forward_only_and_not_past_reason(gateway: FakeGateway, body: Any) -> None:
    reply = call(gateway, "POST", "/admin/clock", body)
    assert (reply.status, reply.body["error"]["param"]) == (400, "advance_seconds")


# Lists


def test_pages_and_export_have_every_charge_in_the_order_of_creation(gateway: FakeGateway) -> None:
    ids = [charge(gateway, f"k{number}").body["id"] for number in range(7)]
    paged: list[str] = []
    after = ""
    while True:
        page = call(gateway, "GET", f"/v1/charges?limit=3{after}").body
        paged += [entry["id"] for entry in page["data"]]
        if not page["has_more"]:
            break
        after = f"&starting_after={paged[-1]}"
    assert paged == ids
    assert [entry["id"] for entry in gateway.charges()] == ids


def test_charges_of_one_reference_come_newest_first_with_the_failed_ones(gateway: FakeGateway) -> None:
    charge(gateway, "a", reference="3/17/1", payment_method="pm_decline_do_not_honor")
    charge(gateway, "b", reference="3/17/1")
    charge(gateway, "c", reference="3/17/11")
    assert [entry["status"] for entry in of_reference(gateway, "3/17/1")] == ["succeeded", "failed"]
    assert of_reference(gateway, "3/17/2") == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("starting_after=ch_none", "starting_after"),
        ("reference=a&starting_after=ch_none", "starting_after"),
    ],
)
def test_bad_list_query_is_named(gateway: FakeGateway, query: str, param: str) -> None:
    reply = call(gateway, "GET", f"/v1/charges?{query}")
    assert (reply.status, reply.body["error"]["param"]) == (400, param)


def test_unknown_charge_is_404(gateway: FakeGateway) -> None:
    reply = call(gateway, "GET", "/v1/charges/ch_none")
    assert (reply.status, reply.body["error"]["code"]) == (404, "resource_missing")


def test_summary_counts_requests_answers_and_money(gateway: FakeGateway) -> None:
    charge(gateway, "a", amount=100)
    charge(gateway, "a", amount=100)
    charge(gateway, "b", amount=70, currency="JPY")
    charge(gateway, "c", payment_method="pm_decline_do_not_honor")
    charge(gateway, "d", amount=0)
    summary = gateway.summary()
    assert (summary["requests"], summary["answers"], summary["replayed"]) == (5, {"200": 3, "400": 1, "402": 1}, 1)
    assert summary["succeeded_by_currency"] == {"USD": {"count": 1, "amount": 100}, "JPY": {"count": 1, "amount": 70}}
    assert (summary["double_charges"], summary["double_charge_references"], summary["in_flight"]) == (0, [], 0)


# The page


def test_page_shows_a_double_charge_first_and_as_such(gateway: FakeGateway) -> None:
    assert "No double charge" in call(gateway, "GET", "/").body
    charge(gateway, "a", reference="3/17/1", currency="KWD", amount=35200)
    charge(gateway, "b", reference="3/17/2", currency="KWD", amount=35200)
    for number in range(60):
        charge(gateway, f"k{number}")
    first = call(gateway, "GET", "/").body
    assert "1 double charge." in first
    assert "charged 2 times" in first
    assert first.index("3/17/1") < first.index("3/k59/1")
    assert first.count("35.200 KWD") == 2
    assert "70.400 KWD" in first
    assert "next →" in first
    second = call(gateway, "GET", "/?page=2").body
    assert "3/k0/1" in second
    assert "← previous" in second
    only = call(gateway, "GET", "/?double=1").body
    assert "3/17/1" in only
    assert "3/k" not in only


def test_page_filters_and_escapes(gateway: FakeGateway) -> None:
    charge(gateway, "a", reference="<script>alert(1)</script>/1")
    charge(gateway, "b", payment_method="pm_decline_do_not_honor")
    whole = call(gateway, "GET", "/").body
    assert "<script>" not in whole
    assert "&lt;script&gt;" in whole
    failed = call(gateway, "GET", "/?status=failed").body
    assert "do_not_honor" in failed
    assert "alert" not in failed
    assert "3/b/1" in call(gateway, "GET", "/?q=decline_do").body
    assert call(gateway, "GET", "/?status=nonsense").status == 400
    assert call(gateway, "GET", "/?page=0").status == 400


# Processes


def test_charge_whose_answer_was_lost_survives_sigkill(own_gateway: FakeGateway) -> None:
    charge_without_answer(own_gateway, "k", payment_method="pm_lost_answer")
    own_gateway.restart()
    (found,) = of_reference(own_gateway, "3/k/1")
    again = charge(own_gateway, "k", payment_method="pm_lost_answer")
    assert (again.body, again.headers["Idempotent-Replayed"]) == (found, "true")


def test_every_answered_charge_survives_sigkill_under_load(own_gateway: FakeGateway) -> None:
    answered: dict[str, str] = {}

    def one(number: int) -> None:
        try:
            reply = charge(own_gateway, f"k{number}")
        except (http.client.HTTPException, OSError):
            return
        answered[f"k{number}"] = reply.body["id"]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        running = [pool.submit(one, number) for number in range(600)]
        wait_for(lambda: len(answered) >= 100)
        own_gateway.kill()
        concurrent.futures.wait(running)
    assert len(answered) < 600, "killed in the middle"
    own_gateway.restart()
    kept = {entry["id"] for entry in own_gateway.charges()}
    assert set(answered.values()) <= kept
    for key in list(answered)[:10]:
        assert charge(own_gateway, key).body["id"] == answered[key]


def test_request_in_flight_at_sigkill_made_no_charge_and_its_retry_makes_one(own_gateway: FakeGateway) -> None:
    own_gateway.configure(hang_seconds=3600)
    with pytest.raises(TimeoutError):
        charge(own_gateway, "k", payment_method="pm_hang", timeout=0.3)
    own_gateway.restart()
    reply = charge(own_gateway, "k", payment_method="pm_hang")
    assert (reply.status, reply.headers["Idempotent-Replayed"]) == (200, None)
    assert own_gateway.summary()["charges"]["total"] == 1
    assert own_gateway.summary()["faults"] == {"hang": 1}


def test_configuration_clock_and_url_survive_a_restart(own_gateway: FakeGateway) -> None:
    own_gateway.configure(key_ttl_seconds=100, seed=6)
    url = own_gateway.url
    charge(own_gateway, "k")
    own_gateway.advance(101)
    own_gateway.restart()
    assert own_gateway.url == url
    assert call(own_gateway, "GET", "/admin/config").body["seed"] == 6
    assert call(own_gateway, "GET", "/admin/clock").body["offset_seconds"] == 101
    assert "Idempotent-Replayed" not in charge(own_gateway, "k").headers


def test_sigterm_answers_what_is_being_processed_and_exits_cleanly(tmp_path: Path) -> None:
    gateway = FakeGateway.start(tmp_path, delay_ms=500)
    process = gateway._process
    assert process is not None
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reply = pool.submit(charge, gateway, "k")
        wait_for(lambda: gateway.summary()["in_flight"] == 1)
        process.send_signal(signal.SIGTERM)
        assert reply.result().status == 200
    assert process.wait(20) == 0
    gateway.restart()
    assert gateway.summary()["requests"] == 1
    gateway.stop()


def test_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from hack.fake_gateway import FakeGateway\n"
        "gateway = FakeGateway.start(pathlib.Path(sys.argv[1]))\n"
        "print(gateway.port, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    port = int(done.stdout)

    def refused() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) != 0

    wait_for(refused)


@pytest.mark.parametrize("content", ['{"seed": "x"}', None])
def test_bad_configuration_file_is_named_at_start(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    command = [sys.executable, "-m", "hack.fake_gateway", "--state", str(tmp_path / "s"), "--config", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "config" in done.stderr or "seed" in done.stderr
    assert "Traceback" not in done.stderr


def test_thousand_requests_in_flight() -> None:
    result = load.measure(charges=1000, in_flight=1000, delay_ms=200)
    assert (result["charges"], result["answers"]) == (1000, {"200": 1000})


def test_write_that_fails_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    insert = "INSERT INTO t SELECT value ->> 0 FROM json_each(?)"

    async def write() -> list[BaseException | None]:
        connection = connect(tmp_path / "state")
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY)")
        writer = GroupWriter(connection)
        results = await asyncio.gather(*[writer.write((insert, [number])) for number in (1, 2, 1, 3)], return_exceptions=True)
        await writer.close()
        return results

    results = asyncio.run(write())
    assert Counter(type(result) for result in results) == {type(None): 3, sqlite3.IntegrityError: 1}
    connection = connect(tmp_path / "state")
    assert connection.execute("SELECT a FROM t ORDER BY a").fetchall() == [(1,), (2,), (3,)]
    connection.close()
