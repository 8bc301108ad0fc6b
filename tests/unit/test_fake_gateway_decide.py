"""The fake gateway's pure rules: draws, faults, outcomes, configuration, limits."""

import json
from typing import Any

import pytest

from hack.fake_gateway import decide, page, parse
from hack.fake_gateway.keyed import Limiter
from hack.fake_gateway.model import (
    CLOSING_FAULTS,
    OPENING_FAULTS,
    Behaviour,
    ChargeRequest,
    ChargeStatus,
    Config,
    Decline,
    Fault,
    Outcome,
    Span,
)

FAULTS_OF_KEYS = frozenset({*OPENING_FAULTS, *CLOSING_FAULTS})
KEYS = [f"key-{number}" for number in range(5000)]


def rates(rate: float, **fields: Any) -> Behaviour:
    """Every fault at this rate."""
    return parse.config(fields | {f"{fault}_rate": rate for fault in Fault}).behaviour


def request(payment_method: str = "pm_card", reference: str = "3/17/1", service: str | None = None) -> ChargeRequest:
    metadata = {} if service is None else {"service": service}
    return ChargeRequest(amount=1999, currency="USD", payment_method=payment_method, reference=reference, metadata=metadata)


def test_draws_depend_on_seed_purpose_and_key_alone() -> None:
    assert decide.draw(7, "decline", "a") == decide.draw(7, "decline", "a")
    draws = {decide.draw(seed, purpose, key) for seed in (7, 8) for purpose in ("decline", "hang") for key in ("a", "b")}
    assert len(draws) == 8
    assert all(0 <= draw < 1 for draw in draws)


def test_known_draw_stays_the_same_over_versions() -> None:
    # A failing seed of a simulation must mean the same tomorrow.
    assert decide.draw(1, "lost_answer", "key-1") == pytest.approx(0.7674021131, abs=1e-9)


@pytest.mark.parametrize("fault", sorted(FAULTS_OF_KEYS))
def test_rate_is_a_rate_of_keys_and_independent_of_the_others(fault: Fault) -> None:
    alone = parse.config({f"{fault}_rate": 0.05}).behaviour
    all_rates = rates(0.05)
    hit_alone = {key for key in KEYS if fault in decide.faults(alone, 1, key, "pm_card")}
    hit_among_all = {key for key in KEYS if fault in decide.faults(all_rates, 1, key, "pm_card")}
    assert hit_alone == hit_among_all
    assert 180 <= len(hit_alone) <= 320  # 250 expected, 15 the standard deviation


def test_the_answers_of_cancels_are_lost_at_a_rate_of_charges_and_none_of_keys() -> None:
    rare, always = Behaviour(cancel_lost_answer_rate=0.05), Behaviour(cancel_lost_answer_rate=1.0)
    lost = [decide.loses_cancel(rare, 1, charge_id) for charge_id in KEYS]
    assert 180 <= sum(lost) <= 320  # 250 expected, 15 the standard deviation
    assert lost == [decide.loses_cancel(rare, 1, charge_id) for charge_id in KEYS]
    assert all(decide.loses_cancel(always, 1, charge_id) for charge_id in KEYS[:200])
    assert not any(decide.loses_cancel(Behaviour(), 1, charge_id) for charge_id in KEYS[:200])
    assert decide.faults(always, 1, "k", "pm_card") == frozenset()


def test_rates_of_zero_and_one_are_never_and_always() -> None:
    assert not any(decide.faults(Behaviour(), 1, key, "pm_card") for key in KEYS[:200])
    always = rates(1.0)
    assert all(decide.faults(always, 1, key, "pm_card") == FAULTS_OF_KEYS for key in KEYS[:200])


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("pm_rate_limited", Fault.RATE_LIMITED),
        ("pm_hang", Fault.HANG),
        ("pm_conflict", Fault.IN_FLIGHT_CONFLICT),
        ("pm_500_before", Fault.ERROR_500_BEFORE),
        ("pm_500_after", Fault.ERROR_500_AFTER),
        ("pm_lost_answer", Fault.LOST_ANSWER),
    ],
)
def test_method_named_after_a_fault_meets_that_one_and_is_never_declined(method: str, fault: Fault) -> None:
    everything = rates(1.0, decline_rate=1.0)
    assert decide.faults(everything, 1, "k", method) == {fault}
    assert decide.outcome(everything, 1, "k", method, 0).status is ChargeStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({}, Fault.RATE_LIMITED),
        ({Fault.RATE_LIMITED: 1}, Fault.HANG),
        ({Fault.RATE_LIMITED: 1, Fault.HANG: 1}, Fault.IN_FLIGHT_CONFLICT),
        ({Fault.HANG: 1}, Fault.RATE_LIMITED),
        ({Fault.RATE_LIMITED: 1, Fault.HANG: 1, Fault.IN_FLIGHT_CONFLICT: 1}, None),
    ],
)
def test_opening_faults_come_in_order_and_once_each(seen: Any, expected: Any) -> None:
    assert decide.opening_fault(frozenset(Fault), seen, Behaviour(rate_limited_times=9), "pm_card") is expected


@pytest.mark.parametrize(("seen", "refused"), [(0, True), (2, True), (3, False)])
def test_method_named_after_the_limit_is_refused_the_configured_number_of_times(seen: Any, refused: bool) -> None:
    behaviour = Behaviour(rate_limited_times=3)
    fault = decide.opening_fault(frozenset({Fault.RATE_LIMITED}), {Fault.RATE_LIMITED: seen}, behaviour, "pm_rate_limited")
    assert (fault is Fault.RATE_LIMITED) is refused


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (set(), None),
        ({Fault.HANG}, None),
        ({Fault.LOST_ANSWER, Fault.ERROR_500_AFTER}, Fault.ERROR_500_AFTER),
        (set(Fault), Fault.ERROR_500_BEFORE),
    ],
)
def test_at_most_one_closing_fault(chosen: set[Fault], expected: Any) -> None:
    assert decide.closing_fault(frozenset(chosen)) is expected


@pytest.mark.parametrize(
    ("method", "declined_before", "status", "decline"),
    [
        ("pm_card", 0, ChargeStatus.SUCCEEDED, None),
        ("anything", 9, ChargeStatus.SUCCEEDED, None),
        ("pm_decline_stolen_card", 0, ChargeStatus.FAILED, Decline(decline_code="stolen_card", advice_code="do_not_try_again")),
        (
            "pm_decline_expired_card",
            3,
            ChargeStatus.FAILED,
            Decline(decline_code="expired_card", advice_code="confirm_card_data"),
        ),
        ("pm_decline_do_not_honor", 0, ChargeStatus.FAILED, Decline(decline_code="do_not_honor", advice_code=None)),
        (
            "pm_declines_2_insufficient_funds",
            1,
            ChargeStatus.FAILED,
            Decline(decline_code="insufficient_funds", advice_code="try_again_later"),
        ),
        ("pm_declines_2_insufficient_funds", 2, ChargeStatus.SUCCEEDED, None),
        ("pm_declines_0_insufficient_funds", 0, ChargeStatus.SUCCEEDED, None),
        ("pm_requires_action", 0, ChargeStatus.REQUIRES_ACTION, None),
        ("pm_pending", 0, ChargeStatus.PENDING, None),
    ],
)
def test_payment_method_chooses_the_outcome(
    method: str, declined_before: int, status: ChargeStatus, decline: Decline | None
) -> None:
    outcome = decide.outcome(Behaviour(), 1, "k", method, declined_before)
    assert (outcome.status, outcome.decline) == (status, decline)


def test_configured_advice_replaces_the_usual_one_even_by_none() -> None:
    behaviour = Behaviour(advice_codes={"do_not_honor": "do_not_try_again", "stolen_card": None})
    assert decide.decline(behaviour, "do_not_honor").advice_code == "do_not_try_again"
    assert decide.decline(behaviour, "stolen_card").advice_code is None
    assert decide.decline(behaviour, "lost_card").advice_code == "do_not_try_again"


def test_decline_codes_are_drawn_by_weight() -> None:
    behaviour = Behaviour(decline_rate=1.0, decline_codes={"insufficient_funds": 3, "do_not_honor": 1})
    declines = [decide.outcome(behaviour, 1, key, "pm_card", 0).decline for key in KEYS]
    codes = [decline.decline_code for decline in declines if decline is not None]
    assert len(codes) == len(KEYS)
    assert set(codes) == {"insufficient_funds", "do_not_honor"}
    assert 3600 <= codes.count("insufficient_funds") <= 3900


@pytest.mark.parametrize(("rate", "settles_to"), [(0.0, ChargeStatus.SUCCEEDED), (1.0, ChargeStatus.FAILED)])
def test_pending_charge_knows_what_it_settles_to(rate: float, settles_to: ChargeStatus) -> None:
    behaviour = Behaviour(pending_rate=1.0, pending_decline_rate=rate, settle_after_seconds=90)
    outcome = decide.outcome(behaviour, 1, "k", "pm_card", 0)
    assert (outcome.status, outcome.settles_to, outcome.settle_after_seconds) == (ChargeStatus.PENDING, settles_to, 90)
    assert (outcome.decline is not None) is (settles_to is ChargeStatus.FAILED)


def test_a_charge_that_the_customer_completes_waits_and_then_succeeds_whatever_the_rates() -> None:
    behaviour = Behaviour(settle_after_seconds=90.0, decline_rate=1.0, pending_rate=1.0, late_failure_rate=1.0)
    assert decide.outcome(behaviour, 1, "k", "pm_customer_completes", 0) == Outcome(
        status=ChargeStatus.REQUIRES_ACTION, settle_after_seconds=90.0, settles_to=ChargeStatus.SUCCEEDED
    )


def test_delay_lies_between_its_bounds_and_reproduces() -> None:
    delays = [decide.delay_seconds(Span(min=10, max=30), 1, key) for key in KEYS[:500]]
    assert all(0.010 <= delay < 0.030 for delay in delays)
    assert max(delays) - min(delays) > 0.015
    assert delays[:5] == [decide.delay_seconds(Span(min=10, max=30), 1, key) for key in KEYS[:5]]
    assert decide.delay_seconds(Span(min=200, max=200), 1, "k") == 0.2


def test_charge_ids_differ_by_key_and_by_life_of_the_key() -> None:
    ids = {decide.made_id("ch_", 1, key, generation) for key in ("a", "b") for generation in (0, 1)}
    assert len(ids) == 4


@pytest.mark.parametrize(
    ("reference", "group"),
    [("3/17/1", "3/17"), ("3/17/22", "3/17"), ("alone", "alone"), ("/x", "/x"), ("a/b", "a")],
)
def test_group_is_the_reference_without_its_attempt(reference: str, group: str) -> None:
    assert request(reference=reference).group == group


def test_payment_method_outranks_service_which_outranks_the_general_word() -> None:
    config = parse.config(
        {
            "decline_rate": 0.1,
            "delay_ms": 5,
            "services": {"video": {"decline_rate": 0.2, "hang_rate": 1.0}},
            "payment_methods": {"pm_x": {"decline_rate": 0.3}},
        }
    )
    both = config.behaviour_for(request("pm_x", service="video"))
    assert (both.decline_rate, both.hang_rate, both.delay_ms.min) == (0.3, 1.0, 5)
    assert config.behaviour_for(request(service="video")).decline_rate == 0.2
    assert config.behaviour_for(request(service="audio")) == config.behaviour


def test_only_limits_of_their_own_have_their_own_bucket() -> None:
    config = parse.config({"max_rps": 5, "services": {"video": {"max_rps": 1}, "audio": {"hang_rate": 1}}})
    assert config.limit_scope(request(service="video")) == ("service", "video")
    assert config.limit_scope(request(service="audio")) == config.limit_scope(request()) == ("", "")


def test_limiter_gives_one_second_of_tokens_and_refills_at_the_rate() -> None:
    limiter, scope = Limiter(), ("", "")
    assert [limiter.seconds_to_wait(scope, 3, 100.0) for _ in range(4)] == [0, 0, 0, pytest.approx(1 / 3)]
    assert limiter.seconds_to_wait(scope, 3, 100.0 + 1 / 3 + 1e-6) == 0
    assert limiter.seconds_to_wait(scope, 3, 100.4) > 0
    assert limiter.seconds_to_wait(("service", "x"), 3, 100.4) == 0
    assert limiter.seconds_to_wait(scope, None, 100.4) == 0


def test_configuration_survives_the_round_trip_through_json() -> None:
    config = parse.config(
        {
            "seed": 9,
            "api_key": "sk_test",
            "delay_ms": {"min": 1, "max": 2},
            "services": {"video": {"delay_ms": 7, "max_rps": None}},
            "payment_methods": {"pm_x": {"advice_codes": {"do_not_honor": None}}},
        }
    )
    assert parse.config(json.loads(json.dumps(parse.config_document(config)))) == config
    assert parse.config(parse.config_document(Config())) == Config()


@pytest.mark.parametrize(
    ("document", "field", "reason"),
    [
        ({"sed": 1}, "sed", "unknown field"),
        ({"seed": -1}, "seed", "not negative"),
        ({"seed": True}, "seed", "whole number"),
        ({"seed": 1.5}, "seed", "whole number"),
        ({"decline_rate": 1.01}, "decline_rate", "from 0 to 1"),
        ({"decline_rate": "0.1"}, "decline_rate", "from 0 to 1"),
        ({"decline_rate": float("nan")}, "decline_rate", "from 0 to 1"),
        ({"delay_ms": -1}, "delay_ms", "from 0"),
        ({"delay_ms": float("inf")}, "delay_ms", "from 0"),
        ({"delay_ms": {"min": 5, "max": 4}}, "delay_ms.max", "below min"),
        ({"delay_ms": {"min": 5}}, "delay_ms.max", "None"),
        ({"delay_ms": {"min": 5, "max": 6, "avg": 5}}, "delay_ms.avg", "unknown field"),
        ({"decline_codes": {}}, "decline_codes", "at least one"),
        ({"decline_codes": ["x"]}, "decline_codes", "JSON object"),
        ({"decline_codes": {"No": 1}}, "decline_codes", "small letters"),
        ({"decline_codes": {"do_not_honor": 0}}, "decline_codes.do_not_honor", "greater than 0"),
        ({"advice_codes": {"do_not_honor": "never"}}, "advice_codes.do_not_honor", "one of"),
        ({"key_ttl_seconds": 0}, "key_ttl_seconds", "greater than 0"),
        ({"max_rps": 0}, "max_rps", "greater than 0"),
        ({"api_key": ""}, "api_key", "ASCII"),
        ({"services": {"video": {"decline_rate": 7}}}, "services.video.decline_rate", "from 0 to 1"),
        ({"services": {"video": {"seed": 7}}}, "services.video.seed", "unknown field"),
        ({"payment_methods": {"pm_x": 7}}, "payment_methods.pm_x", "JSON object"),
        ({"settle_after_seconds": 1e12}, "settle_after_seconds", "from 0"),
    ],
)
def test_configuration_error_names_field_and_reason(document: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(parse.FieldError) as raised:
        parse.config(document)
    assert raised.value.field == field
    assert reason in raised.value.reason


def test_refused_api_key_is_not_repeated() -> None:
    with pytest.raises(parse.FieldError) as raised:
        parse.config({"api_key": "sentinel-ü"})
    assert "sentinel" not in str(raised.value)


@pytest.mark.parametrize(
    ("amount", "currency", "shown"),
    [
        (1234, "USD", "12.34 USD"),
        (5, "USD", "0.05 USD"),
        (1234, "JPY", "1,234 JPY"),
        (35200, "KWD", "35.200 KWD"),
        (7, "QQQ", "7 minor units QQQ"),
    ],
)
def test_money_is_shown_with_the_currencys_decimals(amount: int, currency: str, shown: str) -> None:
    assert page.money(amount, currency) == shown
