"""The HTTP adapter: each row of docs/gateway-protocol.md against the fake provider, and whatever else may answer on that address.

What matters is on which side an answer falls: `NotSent` and `Declined` let a new attempt begin one day, `Unknown` never does.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from billing_shards.errors import InvalidInput
from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.guarded import GuardedGateway
from billing_shards.payments.http import HttpGateway
from billing_shards.payments.model import (
    ActionRequired,
    Cause,
    ChargeRequest,
    DeclineClass,
    Declined,
    Failed,
    Found,
    NotFound,
    NotSent,
    Outcome,
    Pending,
    RefundFound,
    RefundOutcome,
    RefundRequest,
    Succeeded,
    Unknown,
    Unresolvable,
)
from billing_shards.settings import GatewaySpec
from hack.fake_gateway import FakeGateway

SENTINEL = "sentinel-7f3a"
PATIENCE_SECONDS = 60.0

T = TypeVar("T")

_numbers = count(1)


def request(payment_method: str = "pm_card", **changes: Any) -> ChargeRequest:
    """A charge that no other test knows of."""
    number = next(_numbers)
    known = {"amount": 1999, "currency": "USD", "payment_method": payment_method}
    return ChargeRequest(**{"key": f"{number:064x}", "reference": f"7/{number}/1", **known, **changes})


def using(
    url: str, body: Callable[[PaymentGateway], Awaitable[T]], api_key: Callable[[], str | None] = lambda: None, **spec: Any
) -> T:
    """What `body` returns with an adapter for `url`; `spec` are fields of the gateway's spec."""

    async def main() -> T:
        settings = GatewaySpec(url=url, **spec)
        gateway = GuardedGateway(HttpGateway(settings, api_key, connections_max=50), settings)
        try:
            return await body(gateway)
        finally:
            await gateway.close()

    return asyncio.run(main())


def charge(url: str, wanted: ChargeRequest, **options: Any) -> Outcome:
    return using(url, lambda gateway: gateway.charge(wanted), **options)


def find(url: str, reference: str, **options: Any) -> Found:
    return using(url, lambda gateway: gateway.find(reference), **options)


# Against the fake provider


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGateway]:
    advice = {"do_not_honor": "do_not_try_again", "lost_card": "try_again_later"}
    with FakeGateway.start(tmp_path_factory.mktemp("gateway"), hang_seconds=1, advice_codes=advice) as started:
        yield started


def charges_of(provider: FakeGateway, wanted: ChargeRequest) -> list[str]:
    """The status of each charge that the provider made for this attempt."""
    return [made["status"] for made in provider.charges() if made["reference"] == wanted.reference]


def find_settled(provider: FakeGateway, wanted: ChargeRequest) -> Found:
    """The look-up's answer, once the provider has made up its mind."""

    async def body(gateway: PaymentGateway) -> Found:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while isinstance(found := await gateway.find(wanted.reference), NotFound):
                await asyncio.sleep(0.05)
        return found

    return using(provider.url, body)


def test_a_success_is_a_success_with_the_providers_reference(provider: FakeGateway) -> None:
    wanted = request()
    outcome = charge(provider.url, wanted)
    assert isinstance(outcome, Succeeded)
    (made,) = [made for made in provider.charges() if made["reference"] == wanted.reference]
    assert (made["id"], made["amount"], made["currency"], made["payment_method"]) == (
        outcome.provider_ref,
        1999,
        "USD",
        "pm_card",
    )
    assert find(provider.url, wanted.reference) == outcome


@pytest.mark.parametrize(("currency", "amount"), [("JPY", 1), ("KWD", 35_200), ("USD", 2**53 - 1)])
def test_amounts_go_as_whole_minor_units(provider: FakeGateway, currency: str, amount: int) -> None:
    wanted = request(currency=currency, amount=amount)
    assert isinstance(charge(provider.url, wanted), Succeeded)
    made = next(made for made in provider.charges() if made["reference"] == wanted.reference)
    assert (made["currency"], made["amount"]) == (currency, amount)


def test_the_same_key_sent_again_makes_one_charge(provider: FakeGateway) -> None:
    wanted = request()
    first = charge(provider.url, wanted)
    assert charge(provider.url, wanted) == first
    assert charges_of(provider, wanted) == ["succeeded"]


@pytest.mark.parametrize(
    ("code", "decline_class"),
    [
        ("insufficient_funds", DeclineClass.RETRYABLE),
        ("stolen_card", DeclineClass.HARD),
        ("expired_card", DeclineClass.NEW_METHOD),
        ("authentication_required", DeclineClass.CUSTOMER),
        ("do_not_honor", DeclineClass.HARD),  # only by the advice that comes with it
        ("lost_card", DeclineClass.RETRYABLE),  # likewise
    ],
)
def test_a_decline_keeps_code_and_advice_answered_or_found(provider: FakeGateway, code: str, decline_class: DeclineClass) -> None:
    wanted = request(f"pm_decline_{code}")
    outcome = charge(provider.url, wanted)
    assert isinstance(outcome, Declined)
    assert (outcome.code, outcome.decline_class) == (code, decline_class)
    assert outcome.provider_ref is not None
    assert find(provider.url, wanted.reference) == outcome
    assert charge(provider.url, wanted) == outcome
    assert charges_of(provider, wanted) == ["failed"]


@pytest.mark.parametrize(("payment_method", "kind"), [("pm_pending", Pending), ("pm_requires_action", ActionRequired)])
def test_what_is_not_settled_yet_is_told_so_and_found_again(
    provider: FakeGateway, payment_method: str, kind: type[Outcome]
) -> None:
    wanted = request(payment_method)
    outcome = charge(provider.url, wanted)
    assert type(outcome) is kind
    found = find(provider.url, wanted.reference)
    assert type(found) is kind
    assert getattr(found, "provider_ref", "") == getattr(outcome, "provider_ref", None)


@pytest.mark.parametrize(("payment_method", "again"), [("pm_lost_answer", Succeeded), ("pm_500_after", Unknown)])
def test_a_charge_whose_answer_is_no_use_is_unknown_until_it_is_found(
    provider: FakeGateway, payment_method: str, again: type[Outcome]
) -> None:
    wanted = request(payment_method)
    assert isinstance(charge(provider.url, wanted), Unknown)
    assert isinstance(find(provider.url, wanted.reference), Succeeded)
    assert type(charge(provider.url, wanted)) is again  # a stored 500 stays one
    assert charges_of(provider, wanted) == ["succeeded"]


def test_a_500_before_the_charge_is_unknown_as_well(provider: FakeGateway) -> None:
    wanted = request("pm_500_before")
    assert isinstance(charge(provider.url, wanted), Unknown)
    assert find(provider.url, wanted.reference) == NotFound()
    assert charges_of(provider, wanted) == []


def test_a_provider_that_takes_too_long_is_unknown_and_found_later(provider: FakeGateway) -> None:
    wanted = request("pm_hang")
    outcome = charge(provider.url, wanted, timeout_seconds=0.3)
    assert isinstance(outcome, Unknown)
    assert isinstance(find_settled(provider, wanted), Succeeded)
    assert charges_of(provider, wanted) == ["succeeded"]


def test_a_request_in_flight_is_unknown_and_says_when_to_ask(provider: FakeGateway) -> None:
    wanted = request("pm_conflict")
    assert charge(provider.url, wanted) == Unknown(reason="in flight", retry_after_seconds=1.0, cause=Cause.IN_FLIGHT)
    assert isinstance(find_settled(provider, wanted), Succeeded)
    assert isinstance(charge(provider.url, wanted), Succeeded)
    assert charges_of(provider, wanted) == ["succeeded"]


def test_a_reference_that_was_never_seen_is_not_found(provider: FakeGateway) -> None:
    assert find(provider.url, request().reference) == NotFound()


def test_a_key_with_other_parameters_is_for_a_person(provider: FakeGateway) -> None:
    wanted = request()
    charge(provider.url, wanted)
    other = request(key=wanted.key, reference=wanted.reference, amount=2000)
    assert charge(provider.url, other) == Unresolvable(reason="refused: idempotency_key_mismatch", cause=Cause.KEY_MISMATCH)
    assert charges_of(provider, wanted) == ["succeeded"]


@pytest.mark.parametrize("changes", [{"amount": 0}, {"currency": "usd"}, {"payment_method": ""}, {"key": "k" * 256}])
def test_a_request_that_the_provider_finds_fault_with_is_for_a_person(provider: FakeGateway, changes: dict[str, Any]) -> None:
    wanted = request(**changes)
    assert charge(provider.url, wanted) == Unresolvable(reason="refused: parameter_invalid")
    assert charges_of(provider, wanted) == []


def test_too_many_requests_are_not_sent_and_the_next_waits_as_it_was_told(provider: FakeGateway) -> None:
    wanted = request("pm_rate_limited")

    async def body(gateway: PaymentGateway) -> tuple[Outcome, float, Outcome]:
        first = await gateway.charge(wanted)
        refused_at = time.monotonic()
        return first, refused_at, await gateway.charge(wanted)

    first, refused_at, second = using(provider.url, body)
    assert first == NotSent(reason="rate limited", retry_after_seconds=1.0, cause=Cause.RATE_LIMITED)
    assert time.monotonic() - refused_at >= 1
    assert isinstance(second, Succeeded)
    assert charges_of(provider, wanted) == ["succeeded"]


@pytest.fixture
def guarded(provider: FakeGateway) -> Iterator[FakeGateway]:
    """The provider while it asks for an API key."""
    provider.configure(api_key=f"key-{SENTINEL}")
    yield provider
    provider.configure(api_key=None)


def test_the_api_key_opens_the_door(guarded: FakeGateway) -> None:
    wanted = request()
    outcome = charge(guarded.url, wanted, api_key=lambda: f"key-{SENTINEL}")
    assert isinstance(outcome, Succeeded)
    assert find(guarded.url, wanted.reference, api_key=lambda: f"key-{SENTINEL}") == outcome


@pytest.mark.parametrize("api_key", [None, f"wrong-{SENTINEL}", f"two\nlines-{SENTINEL}", f"umläut-{SENTINEL}"])
def test_a_wrong_api_key_is_not_sent_and_shown_to_nobody(guarded: FakeGateway, api_key: str | None) -> None:
    wanted = request()
    with capture_logs() as logs:
        outcome = charge(guarded.url, wanted, api_key=lambda: api_key)
        looked = find(guarded.url, wanted.reference, api_key=lambda: api_key)
    assert isinstance(outcome, NotSent)
    assert isinstance(looked, NotSent)
    assert [entry["event"] for entry in logs] == ["gateway_key_unusable"] * 2
    assert SENTINEL not in f"{logs}{outcome}{looked}"


def test_a_secret_that_is_missing_is_not_sent_and_named(provider: FakeGateway) -> None:
    def missing() -> str:
        raise InvalidInput("secret gateway", "key apiKey cannot be read (FileNotFoundError)")

    wanted = request()
    reason = "secret gateway: key apiKey cannot be read (FileNotFoundError)"
    expected = NotSent(reason=reason, cause=Cause.CONFIG)
    assert charge(provider.url, wanted, api_key=missing) == expected
    assert find(provider.url, wanted.reference, api_key=missing) == expected
    assert charges_of(provider, wanted) == []


def test_the_api_key_is_asked_for_anew_each_time(guarded: FakeGateway) -> None:
    keys = iter([f"key-{SENTINEL}", "rotated"])

    async def body(gateway: PaymentGateway) -> tuple[Outcome, Outcome]:
        before = await gateway.charge(request())
        await asyncio.to_thread(guarded.configure, api_key="rotated")
        return before, await gateway.charge(request())

    before, after = using(guarded.url, body, api_key=lambda: next(keys))
    assert isinstance(before, Succeeded)
    assert isinstance(after, Succeeded)


def test_no_more_requests_a_second_than_agreed(provider: FakeGateway) -> None:
    """A lower bound on the time they take; the first tenth of a second's worth may go at once."""

    async def body(gateway: PaymentGateway) -> float:
        started = time.monotonic()
        await asyncio.gather(*(gateway.find(f"7/{n}/1") for n in range(25)))
        return time.monotonic() - started

    assert using(provider.url, body, requests_per_second_max=40) >= (25 - 4) / 40


def test_a_service_has_its_own_faults(provider: FakeGateway) -> None:
    """It is told as metadata, and only where there is one."""
    provider.configure(services={"video": {"decline_rate": 1}})
    try:
        assert isinstance(charge(provider.url, request(service="video")), Declined)
        assert isinstance(charge(provider.url, request(service="music")), Succeeded)
        wanted = request()
        assert isinstance(charge(provider.url, wanted), Succeeded)
    finally:
        provider.configure(services={})
    assert next(made for made in provider.charges() if made["reference"] == wanted.reference)["metadata"] == {}


def test_what_was_reversed_before_we_knew_of_it_is_declined(provider: FakeGateway) -> None:
    wanted = request()
    outcome = charge(provider.url, wanted)
    assert isinstance(outcome, Succeeded)
    provider.reverse(outcome.provider_ref, "account_closed")
    assert find(provider.url, wanted.reference) == Declined(
        decline_class=DeclineClass.NEW_METHOD, code="account_closed", provider_ref=outcome.provider_ref
    )


# Refunds


def refund(url: str, wanted: RefundRequest, **options: Any) -> RefundOutcome:
    return using(url, lambda gateway: gateway.refund(wanted), **options)


def find_refund(url: str, wanted: RefundRequest, **options: Any) -> RefundFound:
    return using(url, lambda gateway: gateway.find_refund(wanted.reference, wanted.provider_ref), **options)


def refund_of(charged: Outcome | Found, amount: int, **changes: Any) -> RefundRequest:
    number = next(_numbers)
    assert isinstance(charged, Succeeded)
    known: dict[str, Any] = {"key": f"refund-{number}", "currency": "USD", "reference": f"refund/{number}"}
    return RefundRequest(**{"provider_ref": charged.provider_ref, "amount": amount, **known, **changes})


def test_refunds_are_keyed_found_and_bounded(provider: FakeGateway) -> None:
    charged = charge(provider.url, request())
    part, rest, more = (refund_of(charged, amount) for amount in (999, 1000, 1))
    assert find_refund(provider.url, part) == NotFound()
    outcome = refund(provider.url, part)
    assert isinstance(outcome, Succeeded)
    assert refund(provider.url, part) == outcome
    assert find_refund(provider.url, part) == outcome
    assert isinstance(refund(provider.url, rest), Succeeded)
    assert refund(provider.url, more) == Failed(code="refund_too_large")


@pytest.mark.parametrize(
    ("payment_method", "first", "last"),
    [
        ("pm_refund_pending", Pending, Succeeded),
        ("pm_refund_late_failure", Pending, Failed),
        ("pm_refund_fails", Failed, Failed),
        ("pm_lost_answer", Unknown, Succeeded),
        ("pm_500_after", Unknown, Succeeded),
        ("pm_500_before", Unknown, NotFound),
        ("pm_conflict", Unknown, Succeeded),
    ],
)
def test_what_becomes_of_a_refund_is_found(provider: FakeGateway, payment_method: str, first: type, last: type) -> None:
    """The charge's payment method chooses its refund's fate."""
    paid = request(payment_method)
    charge(provider.url, paid)
    if payment_method == "pm_500_before":  # no charge was made by it: let another one stand for it
        paid = request("pm_card")
        charge(provider.url, paid)
        provider.configure(payment_methods={"pm_card": {"error_500_before_rate": 1}})
    wanted = refund_of(find_settled(provider, paid), 5)
    try:
        assert type(refund(provider.url, wanted)) is first
    finally:
        provider.configure(payment_methods={})
    provider.advance(61)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while type(found := find_refund(provider.url, wanted)) is not last and time.monotonic() < deadline:
        time.sleep(0.05)  # what is made in the background is on its way
    assert type(found) is last


def test_a_refunds_key_with_other_parameters_is_unknown_until_it_is_found(provider: FakeGateway) -> None:
    charged = charge(provider.url, request())
    first = refund_of(charged, 5)
    outcome = refund(provider.url, first)
    other = refund(provider.url, refund_of(charged, 6, key=first.key, reference=first.reference))
    assert other == Unknown(reason="refused: idempotency_key_mismatch", cause=Cause.KEY_MISMATCH)
    assert find_refund(provider.url, first) == outcome


def test_a_refund_of_nothing_fails_by_name(provider: FakeGateway) -> None:
    assert refund(provider.url, refund_of(Succeeded(provider_ref="ch_none"), 5)) == Failed(code="resource_missing")


# Against anything else


@dataclass(kw_only=True)
class Stranger:
    """A listener that answers every request with the same bytes."""

    answer: bytes | None
    """None: it keeps the connection and says nothing."""
    reset: bool
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        if self.answer is None:
            return
        writer.write(self.answer)
        await writer.drain()
        if self.reset:
            linger = struct.pack("ii", 1, 0)  # close as a crash does, by RST
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        writer.close()

    def leave(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def stranger(answer: bytes | None, *, reset: bool = False) -> AsyncIterator[Stranger]:
    made = Stranger(answer=answer, reset=reset)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        made.leave()
        await server.wait_closed()


def http(status: int, body: object, *headers: str, kind: str = "application/json") -> bytes:
    """An answer; `body` is a document, or bytes as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def asked(
    answer: bytes | None, wanted: ChargeRequest | None = None, *, reset: bool = False, **spec: Any
) -> tuple[Outcome, Found, list[bytes]]:
    """What a charge and a look-up make of an answer, and what was sent."""
    sent = wanted or request(reference="7/1/1")

    async def main() -> tuple[Outcome, Found, list[bytes]]:
        async with stranger(answer, reset=reset) as other:
            gateway = HttpGateway(GatewaySpec(url=other.url, **spec), lambda: SENTINEL, connections_max=5)
            try:
                return await gateway.charge(sent), await gateway.find(sent.reference), other.requests
            finally:
                await gateway.close()

    return asyncio.run(main())


CHARGE = {"id": "ch_1", "status": "succeeded", "reference": "7/1/1"}
FAILED = {**CHARGE, "status": "failed"}
PAGE = b"<html><title>Bad gateway</title></html>"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(http(200, PAGE, kind="text/html"), id="a page"),
        pytest.param(http(404, PAGE, kind="text/html"), id="a page 404, as of a proxy that lost its target"),
        pytest.param(http(400, PAGE, kind="text/html"), id="a page 400"),
        pytest.param(http(502, PAGE, kind="text/html"), id="a page 502"),
        pytest.param(http(500, {"error": {"type": "api_error", "code": "internal"}}), id="500"),
        pytest.param(http(504, b""), id="504"),
        pytest.param(http(200, b""), id="nothing"),
        pytest.param(http(200, b'{"id": "ch_1", "sta'), id="half a document"),
        pytest.param(http(200, b"\xff\xfe\x00"), id="no text"),
        pytest.param(http(200, b"{}", kind="application/json; charset=nonsense"), id="an unknown charset"),
        pytest.param(http(200, b"[" * 100_000), id="nested without end"),
        pytest.param(http(200, []), id="a list"),
        pytest.param(http(200, None), id="null"),
        pytest.param(http(200, {"data": {"id": "ch_1"}}), id="no list of charges"),
        pytest.param(http(200, {}), id="an empty document"),
        pytest.param(http(402, {"error": {"code": "card_declined"}}), id="402 without a charge"),
        pytest.param(http(402, {"charge": "ch_1"}), id="402 with a charge that is none"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{", id="cut off"),
        pytest.param(b"SSH-2.0-OpenSSH_9.9\r\n\r\n", id="no HTTP"),
        pytest.param(b"", id="hangs up"),
    ],
)
def test_what_does_not_sound_like_the_provider_says_nothing(answer: bytes) -> None:
    outcome, found, _ = asked(answer)
    assert isinstance(outcome, Unknown)
    assert isinstance(found, Unknown)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{"])
def test_a_connection_that_breaks_is_unknown(answer: bytes) -> None:
    outcome, found, _ = asked(answer, reset=True)
    assert isinstance(outcome, Unknown)
    assert isinstance(found, Unknown)


@pytest.mark.parametrize("time_out", ["timeout_seconds", "read_timeout_seconds"])
def test_silence_is_unknown_by_each_of_the_time_outs(time_out: str) -> None:
    outcome, found, _ = asked(None, None, reset=False, **{time_out: 0.2})
    assert isinstance(outcome, Unknown)
    assert isinstance(found, Unknown)


def test_an_answer_that_never_ends_is_cut_off_by_the_total_time() -> None:
    """Bytes that keep coming satisfy the time-out on reading for ever."""

    async def main() -> Outcome:
        gone = asyncio.Event()

        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            with suppress(ConnectionError):
                while not writer.is_closing():
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            writer.transport.abort()
            gone.set()

        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        gateway = HttpGateway(
            GatewaySpec(url=url, timeout_seconds=0.5, read_timeout_seconds=0.3), lambda: None, connections_max=5
        )
        try:
            return await gateway.charge(request())
        finally:
            await gateway.close()
            await asyncio.wait_for(gone.wait(), PATIENCE_SECONDS)
            server.close()
            await server.wait_closed()

    assert asyncio.run(main()) == Unknown(reason="no answer: TimeoutError")


def test_a_connection_that_is_not_taken_is_not_sent() -> None:
    """A listener whose queue is full takes no connection: nothing was sent, and the time-out on connecting says so."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        try:
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(full.getsockname())
            time.sleep(0.1)
            outcome = charge(f"http://127.0.0.1:{full.getsockname()[1]}", request(), connect_timeout_seconds=0.3)
        finally:
            for client in waiting:
                client.close()
    assert outcome == NotSent(reason="not reached: ConnectionTimeoutError")


def test_a_post_is_sent_once_and_never_again_by_itself() -> None:
    """The HTTP client repeats what is idempotent by HTTP's own rules; a charge is for us to repeat."""
    _, _, requests = asked(b"")
    assert sum(head.startswith(b"POST /v1/charges ") for head in requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    """Another host would be told our key and the customer's payment method."""

    async def main() -> tuple[Outcome, Found, list[bytes]]:
        async with stranger(http(200, CHARGE)) as elsewhere, stranger(http(status, b"", f"Location: {elsewhere.url}")) as other:
            gateway = HttpGateway(GatewaySpec(url=other.url), lambda: SENTINEL, connections_max=5)
            try:
                return await gateway.charge(request(reference="7/1/1")), await gateway.find("7/1/1"), elsewhere.requests
            finally:
                await gateway.close()

    outcome, found, requests = asyncio.run(main())
    assert isinstance(outcome, Unknown)
    assert isinstance(found, Unknown)
    assert requests == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:99999", "http://[::"])
def test_an_address_where_nobody_is_was_not_sent(url: str) -> None:
    wanted = request()
    assert isinstance(charge(url, wanted), NotSent)
    assert isinstance(find(url, wanted.reference), NotSent)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (http(429, {}, "Retry-After: 0"), NotSent(reason="rate limited", retry_after_seconds=0, cause=Cause.RATE_LIMITED)),
        (http(429, PAGE), NotSent(reason="rate limited", cause=Cause.RATE_LIMITED)),
        (http(429, {}, "Retry-After: soon"), NotSent(reason="rate limited", cause=Cause.RATE_LIMITED)),
        (http(429, {}, "Retry-After: -5"), NotSent(reason="rate limited", retry_after_seconds=0, cause=Cause.RATE_LIMITED)),
        (http(429, {}, "Retry-After: nan"), NotSent(reason="rate limited", retry_after_seconds=0, cause=Cause.RATE_LIMITED)),
        (http(409, {}), Unknown(reason="in flight", retry_after_seconds=1, cause=Cause.IN_FLIGHT)),
        (http(409, {}, "Retry-After: 7"), Unknown(reason="in flight", retry_after_seconds=7, cause=Cause.IN_FLIGHT)),
        (http(422, {"error": {"code": "invalid"}}), Unresolvable(reason="refused: invalid")),
        (http(400, {"error": {}}), Unresolvable(reason="refused: invalid_request")),
        (http(400, {"error": {"code": "ü\n" + "x" * 99}}), Unresolvable(reason="refused: " + "x" * 64)),
        (
            http(404, {"error": {"type": "invalid_request_error", "code": "resource_missing"}}),
            Declined(decline_class=DeclineClass.NEW_METHOD, code="resource_missing"),
        ),
        (http(200, CHARGE), Succeeded(provider_ref="ch_1")),
        (http(200, CHARGE, kind="text/plain"), Succeeded(provider_ref="ch_1")),
        (http(200, {**CHARGE, "status": "requires_action"}), ActionRequired(provider_ref="ch_1")),
        (http(200, FAILED), Declined(decline_class=DeclineClass.RETRYABLE, code="generic_decline", provider_ref="ch_1")),
        (
            http(402, {"error": {"decline_code": "stolen_card"}, "charge": FAILED}),
            Declined(decline_class=DeclineClass.HARD, code="stolen_card", provider_ref="ch_1"),
        ),
        (
            http(402, {"error": {"decline_code": ["list"], "advice_code": {"no": "text"}}, "charge": FAILED}),
            Declined(decline_class=DeclineClass.RETRYABLE, code="['list']", provider_ref="ch_1"),
        ),
        (
            http(200, {**FAILED, "failure": "a text"}),
            Declined(decline_class=DeclineClass.RETRYABLE, code="generic_decline", provider_ref="ch_1"),
        ),
    ],
)
def test_an_answer_is_taken_by_its_meaning(answer: bytes, outcome: Outcome) -> None:
    assert asked(answer)[0] == outcome


@pytest.mark.parametrize(
    "change",
    [
        {"id": 7},
        {"id": ""},
        {"id": None},
        {"id": "ch_ü"},
        {"id": "x" * 129},
        {"status": "refunded"},
        {"status": None},
        {"status": []},
        {"reference": "7/1/2"},
        {"reference": None},
    ],
    ids=str,
)
def test_a_charge_that_cannot_be_recorded_or_is_not_ours_is_unknown(change: dict[str, Any]) -> None:
    """Above all, a provider that overlooks the reference and lists everybody's charges must not pay anybody's invoice."""
    document = {**CHARGE, **change}
    assert isinstance(asked(http(200, document))[0], Unknown)
    assert isinstance(asked(http(200, {"data": [document]}))[1], Unknown)


@pytest.mark.parametrize(
    ("next_check", "seconds"),
    [
        (30, 30.0),
        (0.5, 0.5),
        (0, 0.0),
        (None, None),
        ("30", None),
        (True, None),
        (-1, None),
        (float("nan"), None),
        (10**400, None),
    ],
)
def test_when_to_look_again_is_a_length_of_time_or_nothing(next_check: object, seconds: float | None) -> None:
    document = {**CHARGE, "status": "pending", "next_check_seconds": next_check}
    assert asked(http(200, document))[0] == Pending(provider_ref="ch_1", next_check_seconds=seconds)


REFUND = {"id": "re_1", "status": "succeeded", "reference": "refund/1"}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (http(200, REFUND), Succeeded(provider_ref="re_1")),
        (http(200, {**REFUND, "status": "failed"}), Failed(code="refund_failed", provider_ref="re_1")),
        (http(200, {**REFUND, "reference": "refund/2"}), Unknown(reason="answer 200 was not understood", cause=Cause.FAILED)),
        (http(200, {**REFUND, "status": "gone"}), Unknown(reason="answer 200 was not understood", cause=Cause.FAILED)),
        (http(200, PAGE), Unknown(reason="answer 200 was not understood", cause=Cause.FAILED)),
        (http(400, PAGE), Unknown(reason="answered 400", cause=Cause.FAILED)),
        (http(500, {"error": {}}), Unknown(reason="answered 500", cause=Cause.FAILED)),
        (http(409, {}), Unknown(reason="in flight", retry_after_seconds=1, cause=Cause.IN_FLIGHT)),
        (http(429, {}), NotSent(reason="rate limited", cause=Cause.RATE_LIMITED)),
        (http(422, {"error": {"code": "too_old"}}), Failed(code="too_old")),
        (b"", Unknown(reason="no answer: ServerDisconnectedError")),
    ],
)
def test_an_answer_to_a_refund_is_taken_by_its_meaning(answer: bytes, outcome: RefundOutcome) -> None:
    async def main() -> RefundOutcome:
        async with stranger(answer) as other:
            gateway = HttpGateway(GatewaySpec(url=other.url), lambda: None, connections_max=5)
            try:
                return await gateway.refund(refund_of(Succeeded(provider_ref="ch_1"), 5, reference="refund/1"))
            finally:
                await gateway.close()

    assert asyncio.run(main()) == outcome


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"data": []}, NotFound()),
        ({"data": [{**REFUND, "status": "failed"}, REFUND]}, Succeeded(provider_ref="re_1")),
        ({"data": [{**REFUND, "status": "gone"}]}, Unknown(reason="look-up was not understood", cause=Cause.FAILED)),
        ({"data": [{**REFUND, "reference": "refund/2"}]}, Unknown(reason="look-up was not understood", cause=Cause.FAILED)),
        ({}, Unknown(reason="look-up was not understood", cause=Cause.FAILED)),
    ],
)
def test_only_an_empty_list_is_a_refund_that_is_not_there(body: object, found: RefundFound) -> None:
    async def main() -> RefundFound:
        async with stranger(http(200, body)) as other:
            gateway = HttpGateway(GatewaySpec(url=other.url), lambda: None, connections_max=5)
            try:
                return await gateway.find_refund("refund/1", "ch_1")
            finally:
                await gateway.close()

    assert asyncio.run(main()) == found


CANCELED = Declined(decline_class=DeclineClass.RETRYABLE, code="canceled", provider_ref="ch_1")


def cancel(url: str, reference: str, provider_ref: str) -> Found:
    return using(url, lambda gateway: gateway.cancel(reference, provider_ref))


def asked_to_cancel(answer: bytes, provider_ref: str = "ch_1") -> tuple[Found, bytes]:
    """What a cancel makes of an answer, and what was sent."""

    async def main() -> tuple[Found, bytes]:
        async with stranger(answer) as other:
            gateway = HttpGateway(GatewaySpec(url=other.url), lambda: None, connections_max=5)
            try:
                return await gateway.cancel("7/1/1", provider_ref), other.requests[0]
            finally:
                await gateway.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (http(200, {**CHARGE, "status": "canceled"}), CANCELED),
        (http(200, CHARGE), Succeeded(provider_ref="ch_1")),
        (http(200, {**CHARGE, "status": "pending"}), Pending(provider_ref="ch_1")),
        (http(200, {**CHARGE, "status": "requires_action"}), ActionRequired(provider_ref="ch_1")),
        (http(200, FAILED), Declined(decline_class=DeclineClass.RETRYABLE, code="generic_decline", provider_ref="ch_1")),
        (http(200, {**CHARGE, "reference": "7/1/2"}), Unknown(reason="answer 200 was not understood", cause=Cause.FAILED)),
        (http(404, {"error": {"code": "resource_missing"}}), NotFound()),
        (http(404, {"error": {"code": "no_such_route"}}), Unknown(reason="cancel answered 404", cause=Cause.FAILED)),
        (http(404, PAGE), Unknown(reason="cancel answered 404", cause=Cause.FAILED)),
        (http(409, {}), Unknown(reason="in flight", retry_after_seconds=1, cause=Cause.IN_FLIGHT)),
        (http(402, {"charge": FAILED}), Unknown(reason="cancel answered 402", cause=Cause.FAILED)),
        (http(500, CHARGE), Unknown(reason="cancel answered 500", cause=Cause.FAILED)),
        (http(429, {}), NotSent(reason="rate limited", cause=Cause.RATE_LIMITED)),
        (http(401, {}), NotSent(reason="our key was refused (401)", cause=Cause.CONFIG)),
        (b"", Unknown(reason="no answer: ServerDisconnectedError")),
    ],
)
def test_only_the_charge_itself_says_what_a_cancel_came_to(answer: bytes, wanted: Found) -> None:
    """Whatever else comes back frees no new attempt."""
    found, asked_for = asked_to_cancel(answer)
    assert found == wanted
    assert asked_for.startswith(b"POST /v1/charges/ch_1/cancel HTTP/1.1")
    assert b"idempotency-key" not in asked_for.lower()


@pytest.mark.parametrize("name", ["ch/../1", "ch?1", "ch 1%"])
def test_a_charges_name_cannot_lead_to_another_path(name: str) -> None:
    sent = asked_to_cancel(http(200, CHARGE), name)[1]
    assert sent.split(b" ")[1] == f"/v1/charges/{quote(name, safe='')}/cancel".encode()


def test_what_waits_is_canceled_for_good_and_what_took_money_is_left(provider: FakeGateway) -> None:
    waits, made = request("pm_requires_action"), request("pm_card")
    waiting, paid = charge(provider.url, waits), charge(provider.url, made)
    assert isinstance(waiting, ActionRequired)
    assert waiting.provider_ref is not None
    assert isinstance(paid, Succeeded)
    canceled = cancel(provider.url, waits.reference, waiting.provider_ref)
    assert canceled == Declined(decline_class=DeclineClass.RETRYABLE, code="canceled", provider_ref=waiting.provider_ref)
    assert cancel(provider.url, waits.reference, waiting.provider_ref) == canceled
    assert find(provider.url, waits.reference) == canceled
    assert cancel(provider.url, made.reference, paid.provider_ref) == paid
    assert cancel(provider.url, waits.reference, "ch_nobody") == NotFound()
    assert charges_of(provider, waits) == ["canceled"]


def listed(*statuses: str) -> bytes:
    return http(200, {"data": [{**CHARGE, "id": f"ch_{n}", "status": status} for n, status in enumerate(statuses)]})


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (listed("failed", "succeeded"), Succeeded(provider_ref="ch_1")),
        (listed("failed", "pending"), Pending(provider_ref="ch_1")),
        (listed("failed", "requires_action"), ActionRequired(provider_ref="ch_1")),
        (listed("refunded", "succeeded"), Succeeded(provider_ref="ch_1")),
        (listed("failed", "refunded"), Unknown(reason="look-up was not understood", cause=Cause.FAILED)),
        (listed(), NotFound()),
        (http(404, {"error": {"code": "resource_missing"}}), Unknown(reason="look-up answered 404", cause=Cause.FAILED)),
        (http(500, {"data": [CHARGE]}), Unknown(reason="look-up answered 500", cause=Cause.FAILED)),
        (http(429, {}, "Retry-After: 0"), NotSent(reason="rate limited", retry_after_seconds=0, cause=Cause.RATE_LIMITED)),
    ],
)
def test_of_several_charges_the_one_that_took_money_counts(answer: bytes, found: Found) -> None:
    """`NotFound` lets the same key be sent again, so only an empty list is one."""
    assert asked(answer)[1] == found


def test_a_reference_is_quoted_in_the_look_up() -> None:
    _, _, requests = asked(listed(), request(reference="7/1&limit=1/ü"))
    assert requests[1].startswith(b"GET /v1/charges?reference=7/1%26limit%3D1/%C3%BC HTTP/1.1")


def test_a_url_with_a_path_keeps_it() -> None:
    async def main() -> list[bytes]:
        async with stranger(listed()) as other:
            gateway = HttpGateway(GatewaySpec(url=f"{other.url}/billing/"), lambda: None, connections_max=5)
            try:
                await gateway.find("7/1/1")
                return other.requests
            finally:
                await gateway.close()

    assert asyncio.run(main())[0].startswith(b"GET /billing/v1/charges?")
