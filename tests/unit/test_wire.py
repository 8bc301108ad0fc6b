"""What the adapters over HTTP read in the same way."""

from __future__ import annotations

import pytest

from billing_shards.payments import wire

SENT = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    ("header", "date", "seconds"),
    [
        ("7", SENT, 7.0),
        ("0.5", "", 0.5),
        ("-3", SENT, 0.0),
        ("nan", SENT, 0.0),
        ("86400", SENT, wire.RETRY_AFTER_SECONDS_MAX),
        ("inf", SENT, wire.RETRY_AFTER_SECONDS_MAX),
        ("Sun, 06 Nov 1994 08:50:07 GMT", SENT, 30.0),
        ("Sun, 06 Nov 1994 08:49:00 GMT", SENT, 0.0),
        ("Mon, 07 Nov 1994 08:49:37 GMT", SENT, wire.RETRY_AFTER_SECONDS_MAX),
        ("Sun, 06 Nov 1994 08:50:07 -0000", SENT, None),
        ("Sun, 06 Nov 1994 08:50:07 GMT", "", None),
        ("soon", SENT, None),
        ("", SENT, None),
    ],
)
def test_retry_after_is_seconds_or_a_date_counted_from_the_answers_own(header: str, date: str, seconds: float | None) -> None:
    assert wire.retry_after({"Retry-After": header, "Date": date}) == seconds


def test_without_the_header_nothing_is_asked_for() -> None:
    assert wire.retry_after({}) is None
