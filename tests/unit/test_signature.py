"""Who signed a webhook: the whole of the signature's rules, without a clock or a server."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.errors import WebhookRefused
from billing_shards.payments.signature import secrets_of, verify
from hack.fake_gateway.webhooks import signature

BODY = b'{"id": "ev_1", "type": "charge.succeeded"}'
NOW = 1_800_000_000
OLD, NEW = "whsec_old", "whsec_new"


def mark(secret: str, body: bytes = BODY, at: int | str = NOW) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()


def header(*secrets: str, body: bytes = BODY, at: int = NOW) -> str:
    return ",".join([f"t={at}", *(f"v1={mark(secret, body, at)}" for secret in secrets)])


def check(value: str | None, *secrets: str, body: bytes = BODY, now: float = NOW, tolerance: float = 300) -> None:
    verify(value, body, [secret.encode() for secret in secrets], now=now, tolerance_seconds=tolerance)


@pytest.mark.parametrize(
    ("signed_by", "accepted"),
    [((NEW,), (NEW,)), ((OLD,), (OLD, NEW)), ((NEW,), (OLD, NEW)), ((OLD, NEW), (NEW,)), ((OLD, NEW), (OLD,))],
    ids=["one", "sender_is_behind", "sender_is_ahead", "sender_signs_with_both", "we_are_behind"],
)
def test_any_secret_may_match_any_signature(signed_by: tuple[str, ...], accepted: tuple[str, ...]) -> None:
    check(header(*signed_by), *accepted)


def test_what_the_fake_provider_signs_is_accepted() -> None:
    check(signature((OLD, NEW), BODY, NOW + 0.7), NEW)


REFUSED: list[tuple[str, str | None, str]] = [
    ("none", None, "no signature"),
    ("empty", "", "no time"),
    ("another secret", header("whsec_other"), "not ours"),
    ("another body", header(NEW, body=BODY + b" "), "not ours"),
    ("another time", header(NEW, at=NOW - 1).replace(str(NOW - 1), str(NOW)), "not ours"),
    ("two times", f"t={NOW},t={NOW},v1={mark(NEW)}", "no time"),
    ("no signature", f"t={NOW}", "no signature"),
    ("an older scheme", f"t={NOW},v0={mark(NEW)}", "no signature"),
    ("no hexadecimal", f"t={NOW},v1=zz", "not ours"),
    ("an empty signature", f"t={NOW},v1=", "not ours"),
    ("half of it", f"t={NOW},v1={mark(NEW)[:32]}", "not ours"),
    ("digits of another script", f"t=१२३,v1={mark(NEW)}", "no time"),
    ("a time with a sign", f"t=-5,v1={mark(NEW, at=-5)}", "no time"),
    ("a time without end", f"t={'9' * 13},v1={mark(NEW)}", "no time"),
    ("too many", f"t={NOW}" + f",v1={mark(NEW)}" * 17, "too many"),
    ("too long", header(NEW) + "," + "x" * 5000, "too long"),
]


@pytest.mark.parametrize(
    ("value", "reason"), [(value, reason) for _, value, reason in REFUSED], ids=[what for what, *_ in REFUSED]
)
def test_what_is_not_proved_is_refused(value: str | None, reason: str) -> None:
    with pytest.raises(WebhookRefused, match=reason):
        check(value, NEW)


def test_without_a_secret_nothing_is_accepted() -> None:
    with pytest.raises(WebhookRefused, match="no secret"):
        check(header(""))


@pytest.mark.parametrize("seconds", [-301, 301], ids=["from_the_past", "from_the_future"])
def test_the_age_is_bounded_in_both_directions(seconds: int) -> None:
    with pytest.raises(WebhookRefused, match="301 s"):
        check(header(NEW, at=NOW + seconds), NEW)


@given(age=st.integers(-1000, 1000), tolerance=st.integers(1, 900))
def test_the_tolerance_is_exact(age: int, tolerance: int) -> None:
    value = header(NEW, at=NOW - age)
    if abs(age) <= tolerance:
        check(value, NEW, tolerance=tolerance)
    else:
        with pytest.raises(WebhookRefused):
            check(value, NEW, tolerance=tolerance)


@given(st.text(max_size=300))
def test_whatever_the_header_says_it_is_refused_or_proved(value: str) -> None:
    with pytest.raises(WebhookRefused):
        check(value, NEW)


@given(st.binary(max_size=200), st.binary(min_size=1, max_size=200))
def test_a_changed_body_is_never_accepted(body: bytes, other: bytes) -> None:
    value = header(NEW, body=body)
    check(value, NEW, body=body)
    if body != other:
        with pytest.raises(WebhookRefused):
            check(value, NEW, body=other)


def test_secrets_stand_one_a_line() -> None:
    assert secrets_of(f"{OLD}\n\n  {NEW} \r\n") == [OLD.encode(), NEW.encode()]
    assert secrets_of(" \n") == []
