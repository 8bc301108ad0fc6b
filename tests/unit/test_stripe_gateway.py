"""The Stripe adapter: the official SDK over real HTTP, against the fake provider's Stripe API and whatever else may answer.

Nothing of the SDK is replaced.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.accounts.money import exponents
from billing_shards.errors import InvalidInput
from billing_shards.payments.gateway import PaymentGateway
from billing_shards.payments.guarded import GuardedGateway
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
    WebhookEvent,
)
from billing_shards.payments.stripe import StripeGateway
from billing_shards.payments.stripe_units import from_stripes, to_stripes
from billing_shards.settings import GatewaySpec
from hack.fake_gateway import FakeGateway

KEY = "sk_test_sentinel_7f3a"
PATIENCE_SECONDS = 60.0

T = TypeVar("T")

_numbers = count(1)


def request(payment_method: str = "pm_card", **changes: Any) -> ChargeRequest:
    """A charge that no other test knows of."""
    number = next(_numbers)
    known = {"amount": 1999, "currency": "USD", "payment_method": payment_method}
    return ChargeRequest(**{"key": f"{number:064x}", "reference": f"9/{number}/1", **known, **changes})


def using(
    url: str, body: Callable[[PaymentGateway], Awaitable[T]], api_key: Callable[[], str | None] = lambda: KEY, **spec: Any
) -> T:
    """What `body` returns with an adapter for `url`; `spec` are fields of the gateway's spec."""

    async def main() -> T:
        settings = GatewaySpec(type="stripe", name="stripe", url=url, **spec)
        gateway = GuardedGateway(StripeGateway(settings, api_key, connections_max=50), settings)
        try:
            return await body(gateway)
        finally:
            await gateway.close()

    return asyncio.run(main())


def charge(url: str, wanted: ChargeRequest, **options: Any) -> Outcome:
    return using(url, lambda gateway: gateway.charge(wanted), **options)


def find(url: str, reference: str, **options: Any) -> Found:
    return using(url, lambda gateway: gateway.find(reference), **options)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGateway]:
    advice = {"do_not_honor": "do_not_try_again", "lost_card": "try_again_later"}
    with FakeGateway.start(tmp_path_factory.mktemp("stripe"), hang_seconds=1, advice_codes=advice, api_key=KEY) as started:
        yield started


def charges_of(provider: FakeGateway, wanted: ChargeRequest) -> list[dict[str, Any]]:
    """The charges that the provider made for this attempt; its list asks for no key while it is read."""
    provider.configure(api_key=None)
    try:
        return [made for made in provider.charges() if made["reference"] == wanted.reference]
    finally:
        provider.configure(api_key=KEY)


# Against the fake provider


def test_a_success_is_a_success_and_found_by_our_reference(provider: FakeGateway) -> None:
    wanted = request(payment_method="cus_7/pm_card", service="video")
    outcome = charge(provider.url, wanted)
    assert isinstance(outcome, Succeeded)
    (made,) = charges_of(provider, wanted)
    assert (made["id"], made["amount"], made["currency"], made["payment_method"], made["customer"], made["metadata"]) == (
        outcome.provider_ref, 1999, "USD", "pm_card", "cus_7", {"reference": wanted.reference, "service": "video"},
    )  # fmt: skip
    assert find(provider.url, wanted.reference) == outcome


def test_our_key_is_kept_and_makes_one_charge(provider: FakeGateway) -> None:
    wanted = request()
    first = charge(provider.url, wanted)
    assert charge(provider.url, wanted) == first
    assert len(charges_of(provider, wanted)) == 1


@pytest.mark.parametrize(
    ("code", "decline_class"),
    [
        ("insufficient_funds", DeclineClass.RETRYABLE),
        ("processing_error", DeclineClass.RETRYABLE),
        ("stolen_card", DeclineClass.HARD),
        ("expired_card", DeclineClass.NEW_METHOD),  # by Stripe's own code, without a decline code
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


def test_what_is_processing_is_pending_until_it_settles(provider: FakeGateway) -> None:
    wanted = request("pm_pending")
    outcome = charge(provider.url, wanted)
    assert isinstance(outcome, Pending)
    assert find(provider.url, wanted.reference) == outcome
    provider.advance(61)
    assert find(provider.url, wanted.reference) == Succeeded(provider_ref=outcome.provider_ref)


def test_what_the_customer_must_act_on_says_so(provider: FakeGateway) -> None:
    wanted = request("pm_requires_action")
    outcome = charge(provider.url, wanted)
    assert isinstance(outcome, ActionRequired)
    assert find(provider.url, wanted.reference) == outcome


@pytest.mark.parametrize(("payment_method", "again"), [("pm_lost_answer", Succeeded), ("pm_500_after", Unknown)])
def test_a_charge_whose_answer_is_no_use_is_unknown_until_it_is_found(
    provider: FakeGateway, payment_method: str, again: type[Outcome]
) -> None:
    wanted = request(payment_method)
    assert isinstance(charge(provider.url, wanted), Unknown)
    assert isinstance(find(provider.url, wanted.reference), Succeeded)
    assert type(charge(provider.url, wanted)) is again  # a stored 500 stays one
    assert len(charges_of(provider, wanted)) == 1


def test_a_500_before_the_charge_is_unknown_as_well(provider: FakeGateway) -> None:
    wanted = request("pm_500_before")
    assert charge(provider.url, wanted) == Unknown(reason="answered 500", cause=Cause.FAILED)
    assert find(provider.url, wanted.reference) == NotFound()


def test_too_late_is_unknown_and_found_later(provider: FakeGateway) -> None:
    wanted = request("pm_hang")
    assert charge(provider.url, wanted, timeout_seconds=0.3) == Unknown(reason="no answer: TimeoutError")

    async def body(gateway: PaymentGateway) -> Found:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while isinstance(found := await gateway.find(wanted.reference), NotFound):
                await asyncio.sleep(0.05)
        return found

    assert isinstance(using(provider.url, body), Succeeded)
    assert len(charges_of(provider, wanted)) == 1


def test_a_request_in_flight_waits_and_is_not_repeated_by_the_sdk(provider: FakeGateway) -> None:
    """stripe-ruby 431. The SDK would send a 409 again by itself, if it were let."""
    wanted = request("pm_conflict")
    assert charge(provider.url, wanted) == Unknown(reason="in flight", retry_after_seconds=1.0, cause=Cause.IN_FLIGHT)

    async def body(gateway: PaymentGateway) -> Outcome:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while isinstance(outcome := await gateway.charge(wanted), Unknown):
                await asyncio.sleep(0.05)
        return outcome

    assert isinstance(using(provider.url, body), Succeeded)
    assert len(charges_of(provider, wanted)) == 1


def test_a_key_with_other_parameters_is_for_a_person(provider: FakeGateway) -> None:
    wanted = request()
    charge(provider.url, wanted)
    other = request(key=wanted.key, reference=wanted.reference, amount=2000)
    assert charge(provider.url, other) == Unresolvable(reason="refused: idempotency_error", cause=Cause.KEY_MISMATCH)


def test_too_many_requests_are_not_sent_and_say_how_long(provider: FakeGateway) -> None:
    wanted = request("pm_rate_limited")

    async def body(gateway: PaymentGateway) -> tuple[Outcome, float, Outcome]:
        first = await gateway.charge(wanted)
        refused_at = time.monotonic()
        return first, refused_at, await gateway.charge(wanted)

    first, refused_at, second = using(provider.url, body)
    assert first == NotSent(reason="rate limited", retry_after_seconds=1.0, cause=Cause.RATE_LIMITED)
    assert time.monotonic() - refused_at >= 1
    assert isinstance(second, Succeeded)


@pytest.mark.parametrize("api_key", [None, "", "sk_wrong_7f3a", "two\nlines-7f3a", "umläut-7f3a"])
def test_a_key_that_is_refused_is_not_sent_and_shown_to_nobody(provider: FakeGateway, api_key: str | None) -> None:
    wanted = request()
    for answer in (charge(provider.url, wanted, api_key=lambda: api_key), find(provider.url, "x", api_key=lambda: api_key)):
        assert isinstance(answer, NotSent)
        assert answer.cause is Cause.CONFIG
        assert "7f3a" not in repr(answer)
    assert charges_of(provider, wanted) == []


def test_what_search_does_not_see_yet_is_not_found(provider: FakeGateway) -> None:
    wanted = request()
    provider.configure(search_lag_seconds=60)
    try:
        outcome = charge(provider.url, wanted)
        assert find(provider.url, wanted.reference) == NotFound()
        assert charge(provider.url, wanted) == outcome
        provider.advance(61)
        assert find(provider.url, wanted.reference) == outcome
    finally:
        provider.configure(search_lag_seconds=0)
    assert StripeGateway.capabilities.find_lag_seconds >= 60


def test_a_reference_is_quoted_in_the_search(provider: FakeGateway) -> None:
    wanted = request(reference="it's 9/\\1' OR '")
    outcome = charge(provider.url, wanted)
    assert isinstance(outcome, Succeeded)
    assert find(provider.url, wanted.reference) == outcome


def dispute(provider_ref: str | None, **changes: Any) -> WebhookEvent:
    known: dict[str, Any] = {"kind": "charge.reversed", "reference": None, "amount": 1999, "currency": "USD", "code": "late"}
    return WebhookEvent(id="evt_1", provider_ref=provider_ref, **{**known, **changes})


def test_a_dispute_gets_its_reference_from_the_intent(provider: FakeGateway) -> None:
    wanted = request()
    charged = charge(provider.url, wanted)
    assert isinstance(charged, Succeeded)
    ours, nobodys = dispute(charged.provider_ref), dispute("pi_none")
    for event, expected in (
        (ours, dispute(charged.provider_ref, reference=wanted.reference)),
        (nobodys, nobodys),
        (dispute(None), dispute(None)),
        (dispute("pi_none", reference="7/1/1"), dispute("pi_none", reference="7/1/1")),
        (dispute("pi_none", kind="refund.failed"), dispute("pi_none", kind="refund.failed")),
    ):
        assert using(provider.url, lambda gateway, event=event: gateway.referenced(event)) == expected  # type: ignore[misc]
    assert isinstance(using("http://127.0.0.1:1", lambda gateway: gateway.referenced(ours)), NotSent)


# Money


@pytest.mark.parametrize(
    ("currency", "amount", "stripes"),
    [
        ("USD", 1999, 1999),
        ("JPY", 80, 80),  # Paymenter 1258: ¥80 became 8000
        ("BHD", 35_200, 35_200),  # woocommerce 2720: 35.20 became 3.52
        ("ISK", 2000, 200_000),  # stripe-ios 3986
        ("UGX", 5000, 500_000),
        ("MGA", 5000, 50),
        ("KRW", 10_000, 10_000),
        ("HUF", 100_000, 100_000),
        ("TWD", 80_045, 80_045),
    ],
)
def test_amounts_go_in_stripes_units(provider: FakeGateway, currency: str, amount: int, stripes: int) -> None:
    assert (to_stripes(amount, currency), from_stripes(stripes, currency)) == (stripes, amount)
    wanted = request(currency=currency, amount=amount)
    assert isinstance(charge(provider.url, wanted), Succeeded)
    assert [(made["amount"], made["currency"]) for made in charges_of(provider, wanted)] == [(amount, currency)]


@pytest.mark.parametrize(("currency", "amount"), [("MGA", 5001), ("KWD", 35_201), ("XAU", 1), ("usd", 1)])
def test_an_amount_that_stripe_cannot_be_given_exactly_is_never_rounded(
    provider: FakeGateway, currency: str, amount: int
) -> None:
    with pytest.raises(InvalidInput):
        to_stripes(amount, currency)
    wanted = request(currency=currency, amount=amount)
    outcome = charge(provider.url, wanted)
    assert isinstance(outcome, Unresolvable)
    assert outcome.reason.startswith("refused: ")
    assert charges_of(provider, wanted) == []


@given(st.sampled_from(sorted(exponents())), st.integers(1, 2**53))
def test_an_amount_survives_the_way_there_and_back(currency: str, amount: int) -> None:
    try:
        theirs = to_stripes(amount, currency)
    except InvalidInput:
        return
    assert from_stripes(theirs, currency) == amount


# Refunds


def refund(url: str, wanted: RefundRequest) -> RefundOutcome:
    return using(url, lambda gateway: gateway.refund(wanted))


def find_refund(url: str, wanted: RefundRequest) -> RefundFound:
    return using(url, lambda gateway: gateway.find_refund(wanted.reference, wanted.provider_ref))


def refund_of(charged: Outcome, amount: int, **changes: Any) -> RefundRequest:
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
    assert refund(provider.url, more) == Failed(code="charge_already_refunded")
    assert find_refund(provider.url, more) == NotFound()


def test_a_refund_goes_in_stripes_units(provider: FakeGateway) -> None:
    charged = charge(provider.url, request(currency="ISK", amount=2000))
    assert isinstance(refund(provider.url, refund_of(charged, 2000, currency="ISK")), Succeeded)
    assert refund(provider.url, refund_of(charged, 1, currency="ISK")) == Failed(code="charge_already_refunded")


@pytest.mark.parametrize(
    ("payment_method", "first", "last"),
    [("pm_refund_pending", Pending, Succeeded), ("pm_refund_late_failure", Pending, Failed), ("pm_refund_fails", Failed, Failed)],
)
def test_what_becomes_of_a_refund_is_found(provider: FakeGateway, payment_method: str, first: type, last: type) -> None:
    wanted = refund_of(charge(provider.url, request(payment_method)), 5)
    assert type(refund(provider.url, wanted)) is first
    provider.advance(61)
    assert type(find_refund(provider.url, wanted)) is last


def test_a_refunds_key_with_other_parameters_is_unknown_until_it_is_found(provider: FakeGateway) -> None:
    charged = charge(provider.url, request())
    first = refund_of(charged, 5)
    outcome = refund(provider.url, first)
    other = refund(provider.url, refund_of(charged, 6, key=first.key, reference=first.reference))
    assert other == Unknown(reason="refused: idempotency_error", cause=Cause.KEY_MISMATCH)
    assert find_refund(provider.url, first) == outcome


def test_a_refund_that_stripe_cannot_be_given_exactly_fails_and_is_not_sent() -> None:
    wanted = refund_of(Succeeded(provider_ref="pi_1"), 5, currency="KWD")
    assert refund("http://127.0.0.1:1", wanted) == Failed(code="amount_not_representable")


def test_a_refund_that_cannot_be_looked_for_is_not_taken_for_one_that_is_not_there() -> None:
    wanted = refund_of(Succeeded(provider_ref="pi_1"), 5)
    assert isinstance(find_refund("http://127.0.0.1:1", wanted), NotSent)


def test_a_refund_of_nothing_fails_by_name(provider: FakeGateway) -> None:
    assert refund(provider.url, refund_of(Succeeded(provider_ref="pi_none"), 5)) == Failed(code="resource_missing")


def test_one_refund_is_found_among_hundreds(provider: FakeGateway) -> None:
    charged = charge(provider.url, request())

    async def body(gateway: PaymentGateway) -> tuple[RefundFound, RefundOutcome]:
        wanted = refund_of(charged, 1)
        outcome = await gateway.refund(wanted)
        await asyncio.gather(*(gateway.refund(refund_of(charged, 1)) for _ in range(210)))
        return await gateway.find_refund(wanted.reference, wanted.provider_ref), outcome

    found, outcome = using(provider.url, body)
    assert isinstance(outcome, Succeeded)
    assert found == outcome


# Against anything else


@dataclass(kw_only=True)
class Stranger:
    """A listener that answers every request with the same bytes; None: with nothing."""

    answer: bytes | None
    url: str = ""
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        self.heads.append(head)
        self.bodies.append(await reader.readexactly(int(length[0].split(b":")[1])) if length else b"")
        if self.answer is not None:
            writer.write(self.answer)
            await writer.drain()
            writer.close()

    def leave(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def stranger(answer: bytes | None) -> AsyncIterator[Stranger]:
    made = Stranger(answer=answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        made.leave()
        await server.wait_closed()


def http(status: int, body: object, *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def asked(answer: bytes | None, *, reference: str = "7/1/1", **spec: Any) -> tuple[Outcome, Found, Stranger]:
    """What a charge and a look-up make of an answer, and what was sent."""

    async def main() -> tuple[Outcome, Found, Stranger]:
        async with stranger(answer) as other:
            settings = GatewaySpec(type="stripe", url=other.url, **spec)
            gateway = StripeGateway(settings, lambda: KEY, connections_max=5)
            try:
                wanted = request(reference=reference, payment_method="cus_1/pm_1")
                return await gateway.charge(wanted), await gateway.find(reference), other
            finally:
                await gateway.close()

    return asyncio.run(main())


INTENT = {"id": "pi_1", "object": "payment_intent", "status": "succeeded", "metadata": {"reference": "7/1/1"}}
PAGE = b"<html><title>Bad gateway</title></html>"
ERROR_500 = {"error": {"type": "api_error", "message": "x"}}


def test_the_request_is_what_stripe_documents_and_is_sent_once() -> None:
    _, _, other = asked(http(500, ERROR_500, "Stripe-Should-Retry: true"))
    assert [head.split()[0] for head in other.heads] == [b"POST", b"GET"]
    head = other.heads[0].decode().lower()
    assert head.startswith("post /v1/payment_intents http/1.1")
    assert head.count("idempotency-key: ") == 1
    assert f"authorization: bearer {KEY}" in head
    assert "telemetry" not in head
    form = dict(parse_qsl(other.bodies[0].decode()))
    assert form == {
        "amount": "1999", "currency": "usd", "customer": "cus_1", "payment_method": "pm_1", "confirm": "true",
        "off_session": "true", "error_on_requires_action": "true", "automatic_payment_methods[enabled]": "true",
        "automatic_payment_methods[allow_redirects]": "never", "metadata[reference]": "7/1/1",
    }  # fmt: skip


def test_our_key_goes_as_it_is() -> None:
    """stripe-php 637: with the SDK's retries on, another key takes its place."""

    async def main() -> list[bytes]:
        async with stranger(http(200, INTENT)) as other:
            gateway = StripeGateway(GatewaySpec(type="stripe", url=other.url), lambda: KEY, connections_max=5)
            try:
                await gateway.charge(request(key="f" * 64))
                return other.heads
            finally:
                await gateway.close()

    (head,) = asyncio.run(main())
    assert b"Idempotency-Key: " + b"f" * 64 + b"\r\n" in head


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(http(200, PAGE), id="a page"),
        pytest.param(http(404, PAGE), id="a page 404"),
        pytest.param(http(400, PAGE), id="a page 400"),
        pytest.param(http(402, PAGE), id="a page 402"),
        pytest.param(http(502, PAGE), id="a page 502"),
        pytest.param(http(500, ERROR_500), id="500"),
        pytest.param(http(504, b""), id="504"),
        pytest.param(http(200, b""), id="nothing"),
        pytest.param(http(200, b'{"id": "pi_1", "sta'), id="half a document"),
        pytest.param(http(200, b"\xff\xfe\x00"), id="no text"),
        pytest.param(http(200, b"[" * 100_000), id="nested without end"),
        pytest.param(http(200, []), id="a list"),
        pytest.param(http(200, None), id="null"),
        pytest.param(http(200, {}), id="an empty document"),
        pytest.param(http(200, {"data": [{"id": 7}]}), id="ids that are none"),
        pytest.param(http(400, {"error": "x"}), id="an error that is none"),
        pytest.param(http(402, {"error": None}), id="402 without an error"),
        pytest.param(http(301, b"", "Location: http://127.0.0.1:1/"), id="a redirect"),
        pytest.param(http(307, b"", "Location: http://127.0.0.1:1/"), id="a redirect that keeps the method"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{", id="cut off"),
        pytest.param(b"SSH-2.0-OpenSSH_9.9\r\n\r\n", id="no HTTP"),
        pytest.param(b"", id="hangs up"),
    ],
)
def test_what_does_not_sound_like_stripe_says_nothing(answer: bytes) -> None:
    outcome, found, _ = asked(answer)
    assert isinstance(outcome, Unknown)
    assert isinstance(found, Unknown)


def test_silence_is_unknown_by_each_of_the_time_outs() -> None:
    for time_out in ("timeout_seconds", "read_timeout_seconds"):
        outcome, found, _ = asked(None, reference="7/1/1", **{time_out: 0.2})
        assert isinstance(outcome, Unknown)
        assert isinstance(found, Unknown)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:99999"])
def test_an_address_where_nobody_is_was_not_sent(url: str) -> None:
    outcome = charge(url, request())
    assert isinstance(outcome, NotSent)
    assert outcome.cause is Cause.NOT_REACHED


CARD = {"type": "card_error", "code": "card_declined", "decline_code": "generic_decline", "message": "No."}
FAILED_INTENT = {**INTENT, "status": "requires_payment_method"}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (http(200, INTENT), Succeeded(provider_ref="pi_1")),
        (http(200, {**INTENT, "status": "processing"}), Pending(provider_ref="pi_1")),
        (http(200, {**INTENT, "status": "requires_action"}), ActionRequired(provider_ref="pi_1")),
        (
            http(200, {**FAILED_INTENT, "last_payment_error": CARD}),
            Declined(decline_class=DeclineClass.RETRYABLE, code="generic_decline", provider_ref="pi_1"),
        ),
        (
            http(200, {**INTENT, "status": "canceled", "cancellation_reason": "fraudulent"}),
            Declined(decline_class=DeclineClass.HARD, code="fraudulent", provider_ref="pi_1"),
        ),
        (
            http(402, {"error": {**CARD, "advice_code": "do_not_try_again", "payment_intent": FAILED_INTENT}}),
            Declined(decline_class=DeclineClass.HARD, code="generic_decline", provider_ref="pi_1"),
        ),
        (
            http(402, {"error": {"type": "card_error", "code": "expired_card"}}),
            Declined(decline_class=DeclineClass.NEW_METHOD, code="expired_card"),
        ),
        (
            http(400, {"error": {"type": "invalid_request_error", "code": "resource_missing", "param": "payment_method"}}),
            Declined(decline_class=DeclineClass.NEW_METHOD, code="resource_missing"),
        ),
        (
            http(400, {"error": {"type": "invalid_request_error", "code": "amount_too_small"}}),
            Unresolvable(reason="refused: amount_too_small"),
        ),
        (http(400, {"error": {"type": "invalid_request_error"}}), Unresolvable(reason="refused: invalid_request_error")),
        (
            http(400, {"error": {"type": "invalid_request_error", "code": "rate_limit"}}),
            NotSent(reason="rate limited", cause=Cause.RATE_LIMITED),
        ),
        (
            http(429, {"error": {"type": "invalid_request_error", "code": "lock_timeout"}}, "Retry-After: 3"),
            NotSent(reason="rate limited", retry_after_seconds=3, cause=Cause.RATE_LIMITED),
        ),
        (
            http(409, {"error": {"type": "invalid_request_error", "code": "idempotency_key_in_use"}}),
            Unknown(reason="in flight", retry_after_seconds=1, cause=Cause.IN_FLIGHT),
        ),
        (
            http(403, {"error": {"type": "invalid_request_error"}}),
            NotSent(reason="our key was refused (403)", cause=Cause.CONFIG),
        ),
        (
            http(503, PAGE, "Retry-After: 9"),
            Unknown(reason="answered 503", retry_after_seconds=9, cause=Cause.FAILED),
        ),
    ],
)
def test_an_answer_is_taken_by_its_meaning(answer: bytes, outcome: Outcome) -> None:
    assert asked(answer)[0] == outcome


UNEXPECTED = {"type": "invalid_request_error", "code": "payment_intent_unexpected_state", "message": "You cannot cancel it."}
CANCELED_INTENT, PROCESSING = {**INTENT, "status": "canceled", "cancellation_reason": None}, {**INTENT, "status": "processing"}
CANCELED = Declined(decline_class=DeclineClass.RETRYABLE, code="canceled", provider_ref="pi_1")


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (http(200, CANCELED_INTENT), CANCELED),
        (http(200, INTENT), Succeeded(provider_ref="pi_1")),
        (http(400, {"error": {**UNEXPECTED, "payment_intent": INTENT}}), Succeeded(provider_ref="pi_1")),
        (http(400, {"error": {**UNEXPECTED, "payment_intent": CANCELED_INTENT}}), CANCELED),
        (
            http(400, {"error": {**UNEXPECTED, "payment_intent": {**INTENT, "status": "processing"}}}),
            Pending(provider_ref="pi_1"),
        ),
        (
            http(400, {"error": {**UNEXPECTED, "payment_intent": {**INTENT, "metadata": {}}}}),
            Unknown(reason="answer 400 was not understood", cause=Cause.FAILED),
        ),
        (http(400, {"error": UNEXPECTED}), Unknown(reason="cancel answered 400", cause=Cause.FAILED)),
        (http(200, {**INTENT, "id": None}), Unknown(reason="answer 200 was not understood", cause=Cause.FAILED)),
        (http(404, {"error": {"type": "invalid_request_error", "code": "resource_missing"}}), NotFound()),
        (http(404, PAGE), Unknown(reason="cancel answered 404", cause=Cause.FAILED)),
        (
            http(409, {"error": {"type": "idempotency_error"}}),
            Unknown(reason="in flight", retry_after_seconds=1, cause=Cause.IN_FLIGHT),
        ),
        (http(500, {"error": {"type": "api_error"}}), Unknown(reason="cancel answered 500", cause=Cause.FAILED)),
        (http(429, {"error": {}}), NotSent(reason="rate limited", cause=Cause.RATE_LIMITED)),
    ],
)
def test_only_the_intent_itself_says_what_a_cancel_came_to(answer: bytes, wanted: Found) -> None:
    """Whatever else comes back frees no new attempt."""

    async def main() -> tuple[Found, bytes]:
        async with stranger(answer) as other:
            gateway = StripeGateway(GatewaySpec(type="stripe", url=other.url), lambda: KEY, connections_max=5)
            try:
                return await gateway.cancel("7/1/1", "pi_1"), other.heads[0]
            finally:
                await gateway.close()

    found, sent = asyncio.run(main())
    assert found == wanted
    assert sent.startswith(b"POST /v1/payment_intents/pi_1/cancel HTTP/1.1")


def test_an_intent_that_waits_is_canceled_for_good_and_one_that_succeeded_is_left(provider: FakeGateway) -> None:
    waits, made = request("pm_requires_action"), request()
    waiting, paid = charge(provider.url, waits), charge(provider.url, made)
    assert isinstance(waiting, ActionRequired)
    assert isinstance(paid, Succeeded)

    def cancel(wanted: ChargeRequest, provider_ref: str | None) -> Found:
        assert provider_ref is not None
        return using(provider.url, lambda gateway: gateway.cancel(wanted.reference, provider_ref))

    canceled = cancel(waits, waiting.provider_ref)
    assert canceled == Declined(decline_class=DeclineClass.RETRYABLE, code="canceled", provider_ref=waiting.provider_ref)
    assert cancel(waits, waiting.provider_ref) == canceled
    assert find(provider.url, waits.reference) == canceled
    assert cancel(made, paid.provider_ref) == paid
    assert cancel(waits, "pi_nobody") == NotFound()


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"id": "pi_ü"},
        {"status": "requires_confirmation"},
        {"status": "requires_capture"},
        {"status": None},
        {"status": "requires_payment_method"},
        {"metadata": {"reference": "7/1/2"}},
        {"metadata": {}},
        {"metadata": None},
    ],
    ids=str,
)
def test_an_intent_that_is_not_ours_or_not_understood_is_unknown(change: dict[str, Any]) -> None:
    assert isinstance(asked(http(200, {**INTENT, **change}))[0], Unknown)
