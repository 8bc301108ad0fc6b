"""The fake gateway's refunds, and what it tells by webhook: to a real server that keeps everything it is sent."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import pytest

from hack.fake_gateway import FakeGateway

SECRETS = ["whsec_old", "whsec_new"]
PATIENCE_SECONDS = 30.0

_numbers = count(1)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@dataclass
class Receiver:
    """Keeps every webhook; refuses the first `refusals` of each event."""

    refusals: int = 0
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    _seen: Counter[str] = field(default_factory=Counter)

    def take(self, headers: dict[str, str], body: bytes) -> int:
        self.bodies.append(body)
        self.headers.append(headers)
        event_id = json.loads(body)["id"]
        self._seen[event_id] += 1
        return 500 if self._seen[event_id] <= self.refusals else 204

    def events(self, subject: str) -> list[dict[str, Any]]:
        """What came about the charge, intent or refund of this id, in the order in which it came."""
        events = [json.loads(body) for body in list(self.bodies)]
        return [e for e in events if subject in json.dumps(e["data"])]

    def kinds(self, subject: str) -> list[str]:
        return [event["type"] for event in self.events(subject)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = made.take(dict(self.headers), body)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}/hooks"
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGateway]:
    with FakeGateway.start(tmp_path_factory.mktemp("gateway")) as started:
        yield started


@pytest.fixture
def gateway(shared: FakeGateway, receiver: Receiver) -> Iterator[FakeGateway]:
    """A provider that tells `receiver`."""
    shared.reset()
    shared.configure(webhook_url=receiver.url, webhook_secrets=SECRETS, webhook_retry_seconds=0.05)
    yield shared
    shared._call("PUT", "/admin/config", {})


def post(gateway: FakeGateway, path: str, key: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(  # noqa: S310 - our own URL
        gateway.url + path, json.dumps(body).encode(), {"Idempotency-Key": key, "Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def get(gateway: FakeGateway, path: str) -> dict[str, Any]:
    return gateway._call("GET", path)


def charge(gateway: FakeGateway, payment_method: str = "pm_card", **fields: Any) -> dict[str, Any]:
    number = next(_numbers)
    body = {"amount": 1000, "currency": "USD", "payment_method": payment_method, "reference": f"3/{number}/1", **fields}
    _, document = post(gateway, "/v1/charges", f"charge-{number}", body)
    made: dict[str, Any] = document.get("charge", document)
    return made


def refund(gateway: FakeGateway, of: dict[str, Any], amount: int, *, key: str | None = None, **fields: Any) -> tuple[int, Any]:
    number = next(_numbers)
    body = {"charge": of["id"], "amount": amount, "currency": of["currency"], "reference": f"refund/{number}", **fields}
    return post(gateway, "/v1/refunds", key or f"refund-{number}", body)


# Refunds


def test_refunds_add_up_to_the_charge_and_no_further(shared: FakeGateway) -> None:
    made = charge(shared)
    assert refund(shared, made, 400)[0] == 200
    assert refund(shared, made, 600)[0] == 200
    status, answer = refund(shared, made, 1)
    assert (status, answer["error"]["code"]) == (400, "refund_too_large")
    refunds = get(shared, f"/v1/refunds?charge={made['id']}")["data"]
    assert [(r["amount"], r["status"]) for r in refunds] == [(600, "succeeded"), (400, "succeeded")]


def test_refunds_at_once_stay_within_the_charge(shared: FakeGateway) -> None:
    made = charge(shared)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: refund(shared, made, 300)[0], range(10)))
    assert Counter(answers) == {200: 3, 400: 7}


def test_a_refunds_key_is_kept_and_a_refusal_is_not(shared: FakeGateway) -> None:
    made = charge(shared)
    fields = {"key": f"same-{made['id']}", "reference": "refund/same"}
    first = refund(shared, made, 1000, **fields)
    assert refund(shared, made, 1000, **fields) == first
    assert refund(shared, made, 999, **fields)[1]["error"]["code"] == "idempotency_key_mismatch"
    assert get(shared, "/v1/refunds?reference=refund/same")["data"] == [first[1]]


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"charge": "ch_none"}, 404, "resource_missing"),
        ({"currency": "EUR"}, 400, "parameter_invalid"),
        ({"amount": 0}, 400, "parameter_invalid"),
        ({"reason": "x"}, 400, "parameter_invalid"),
        ({"amount": 1001}, 400, "refund_too_large"),
    ],
)
def test_a_refund_that_cannot_be_is_refused_by_name(shared: FakeGateway, changes: dict[str, Any], status: int, code: str) -> None:
    made = charge(shared)
    answer = refund(shared, made, **{"amount": 1000, **changes})
    assert (answer[0], answer[1]["error"]["code"]) == (status, code)
    assert get(shared, f"/v1/refunds?charge={made['id']}")["data"] == []


def test_only_a_charge_that_succeeded_is_refunded(shared: FakeGateway) -> None:
    for method in ("pm_decline_do_not_honor", "pm_pending"):
        assert refund(shared, charge(shared, method), 1)[1]["error"]["code"] == "charge_not_refundable"


@pytest.mark.parametrize(
    ("payment_method", "statuses"),
    [
        ("pm_refund_pending", ["pending", "succeeded"]),
        ("pm_refund_late_failure", ["pending", "failed"]),
        ("pm_refund_fails", ["failed"]),
    ],
)
def test_a_charges_payment_method_chooses_its_refunds_fate(
    gateway: FakeGateway, receiver: Receiver, payment_method: str, statuses: list[str]
) -> None:
    made = charge(gateway, payment_method)
    _, document = refund(gateway, made, 700)
    assert document["status"] == statuses[0]
    until(lambda: receiver.kinds(document["id"]) == [f"refund.{statuses[0]}"])
    gateway.advance(61)
    assert get(gateway, f"/v1/refunds/{document['id']}")["status"] == statuses[-1]
    until(lambda: receiver.kinds(document["id"]) == [f"refund.{status}" for status in statuses])
    left = 300 if statuses[-1] == "succeeded" else 1000
    assert refund(gateway, made, left + 1)[1]["error"]["code"] == "refund_too_large"
    assert refund(gateway, made, left)[0] == 200


def test_a_refunds_answer_may_be_lost_as_a_charges(shared: FakeGateway) -> None:
    made = charge(shared)
    shared.configure(payment_methods={"pm_card": {"lost_answer_rate": 1}})
    try:
        with pytest.raises(OSError, match="closed connection"):
            refund(shared, made, 1000, reference="refund/lost")
    finally:
        shared.configure(payment_methods={})
    assert get(shared, "/v1/refunds?reference=refund/lost")["data"][0]["status"] == "succeeded"


# Webhooks


@pytest.mark.parametrize(
    ("payment_method", "kinds"),
    [
        ("pm_card", ["charge.succeeded"]),
        ("pm_decline_stolen_card", ["charge.failed"]),
        ("pm_requires_action", ["charge.requires_action"]),
        ("pm_customer_completes", ["charge.requires_action", "charge.succeeded"]),
        ("pm_pending", ["charge.pending", "charge.succeeded"]),
        ("pm_late_failure", ["charge.succeeded", "charge.reversed"]),
    ],
)
def test_what_becomes_of_a_charge_is_told(
    gateway: FakeGateway, receiver: Receiver, payment_method: str, kinds: list[str]
) -> None:
    made = charge(gateway, payment_method)
    until(lambda: receiver.kinds(made["id"]) == kinds[:1])
    gateway.advance(3601)
    until(lambda: receiver.kinds(made["id"]) == kinds)
    last = receiver.events(made["id"])[-1]
    assert last["data"] == get(gateway, f"/v1/charges/{made['id']}")
    until(lambda: gateway.summary()["webhooks"] == {"told": len(kinds), "waiting": 0})


def test_each_body_is_signed_with_every_secret_at_the_providers_time(gateway: FakeGateway, receiver: Receiver) -> None:
    gateway.advance(1_000_000)
    charge(gateway)
    until(lambda: len(receiver.bodies) == 1)
    moment, *marks = receiver.headers[0]["Webhook-Signature"].split(",")
    assert abs(int(moment.removeprefix("t=")) - time.time() - 1_000_000) < 60
    signed = moment.removeprefix("t=").encode() + b"." + receiver.bodies[0]
    assert marks == ["v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in SECRETS]


def test_a_charge_that_succeeded_is_reversed_by_hand_once(gateway: FakeGateway, receiver: Receiver) -> None:
    made = charge(gateway)
    reversed_charge = gateway.reverse(made["id"], "insufficient_funds")
    assert (reversed_charge["status"], reversed_charge["failure"]["decline_code"]) == ("reversed", "insufficient_funds")
    until(lambda: sorted(receiver.kinds(made["id"])) == ["charge.reversed", "charge.succeeded"])
    with pytest.raises(urllib.error.HTTPError) as again:
        gateway.reverse(made["id"])
    again.value.close()
    assert again.value.code == 400
    assert refund(gateway, made, 1)[1]["error"]["code"] == "charge_not_refundable"


def test_what_the_customer_or_a_cancel_made_of_a_charge_is_told_once(gateway: FakeGateway, receiver: Receiver) -> None:
    completed, failed, canceled = (charge(gateway, "pm_requires_action") for _ in range(3))
    gateway.complete(completed["id"])
    gateway.complete(failed["id"], fails=True)
    for _ in range(2):
        assert post(gateway, f"/v1/charges/{canceled['id']}/cancel", "unused", {})[1]["status"] == "canceled"
    until(lambda: gateway.summary()["webhooks"] == {"told": 6, "waiting": 0})
    for made, kind in ((completed, "charge.succeeded"), (failed, "charge.failed"), (canceled, "charge.canceled")):
        assert set(receiver.kinds(made["id"])) == {"charge.requires_action", kind}
        (told,) = (event for event in receiver.events(made["id"]) if event["type"] == kind)
        assert told["data"] == get(gateway, f"/v1/charges/{made['id']}")


def test_stripe_tells_of_a_canceled_intent(gateway: FakeGateway, receiver: Receiver) -> None:
    fields = "amount=1000&currency=usd&payment_method=pm_requires_action&confirm=true&off_session=true"
    made = form(gateway, "/v1/payment_intents", fields)
    canceled = form(gateway, f"/v1/payment_intents/{made['id']}/cancel", "")
    until(lambda: sorted(receiver.kinds(made["id"])) == ["payment_intent.canceled", "payment_intent.requires_action"])
    (told,) = (event for event in receiver.events(made["id"]) if event["type"] == "payment_intent.canceled")
    assert told["data"]["object"] == canceled


def form(gateway: FakeGateway, path: str, fields: str) -> dict[str, Any]:
    headers = {"Idempotency-Key": f"form-{next(_numbers)}", "Content-Type": "application/x-www-form-urlencoded"}
    request = urllib.request.Request(gateway.url + path, fields.encode(), headers)  # noqa: S310 - our own URL
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        document: dict[str, Any] = json.load(answer)
        return document


def test_what_is_refused_is_sent_again_until_it_is_taken(gateway: FakeGateway, receiver: Receiver) -> None:
    receiver.refusals = 2
    made = charge(gateway)
    until(lambda: gateway.summary()["webhooks"] == {"told": 1, "waiting": 0})
    events = receiver.events(made["id"])
    assert len(events) == 3
    assert len({json.dumps(event) for event in events}) == 1


def test_duplicates_lateness_and_loss_are_drawn(gateway: FakeGateway, receiver: Receiver) -> None:
    gateway.configure(webhook_duplicate_rate=1)
    twice = charge(gateway)
    until(lambda: receiver.kinds(twice["id"]) == ["charge.succeeded"] * 2)
    gateway.configure(webhook_duplicate_rate=0, webhook_late_rate=1, webhook_late_seconds=500)
    late = charge(gateway)
    until(lambda: gateway.summary()["webhooks"]["waiting"] == 1)
    time.sleep(1)  # its sender has taken it up, and sleeps
    gateway.configure(webhook_late_rate=0)
    on_time = charge(gateway)
    until(lambda: receiver.kinds(on_time["id"]) == ["charge.succeeded"])
    assert receiver.kinds(late["id"]) == []
    gateway.advance(501)
    until(lambda: receiver.kinds(late["id"]) == ["charge.succeeded"])
    gateway.configure(webhook_lost_rate=1)
    lost = charge(gateway)
    until(lambda: gateway.summary()["webhooks"]["waiting"] == 0)
    assert receiver.kinds(lost["id"]) == []


def test_events_survive_sigkill(gateway: FakeGateway, receiver: Receiver) -> None:
    receiver.refusals = 10**9
    made = [charge(gateway) for _ in range(5)]
    until(lambda: len(receiver.bodies) >= 5)
    gateway.kill()
    receiver.refusals = 0
    gateway.restart()
    until(lambda: gateway.summary()["webhooks"] == {"told": 5, "waiting": 0})
    assert all(receiver.events(each["id"]) for each in made)


def test_nothing_is_told_where_nobody_listens(shared: FakeGateway) -> None:
    shared.reset()
    charge(shared)
    assert shared.summary()["webhooks"] == {"told": 0, "waiting": 0}
