"""The statistics that benchmarks tell."""

from __future__ import annotations

import random

import pytest

from hack.bench.drain import claim_facts
from hack.bench.figures import Round, cpu_per_job, median_rate
from hack.bench.peak import per_minute, spread


@pytest.mark.parametrize(
    ("counts", "chi_squared", "p_value"),
    [
        ([10] * 60, 0.0, 1.0),
        # 59 degrees of freedom: the table's value for 5 % is 77.93, for 1 % 87.17.
        ([10 + d for d in [1, -1] * 25] + [10 + d for d in [8, -8] * 5], 69.0, 0.175),
        ([20, 0] * 30, 600.0, 0.0),
    ],
)
def test_spread(counts: list[int], chi_squared: float, p_value: float) -> None:
    found = spread(counts)
    assert found.cells == 60
    assert found.chi_squared == pytest.approx(chi_squared)
    assert found.p_value == pytest.approx(p_value, abs=0.002)


def test_what_is_drawn_evenly_passes_and_what_is_not_fails() -> None:
    draw = random.Random(4)  # noqa: S311
    even, uneven = [0] * 3600, [0] * 3600
    for _ in range(500_000):
        even[draw.randrange(3600)] += 1
        uneven[draw.randrange(3600) & ~1 if draw.random() < 0.05 else draw.randrange(3600)] += 1
    assert spread(even).p_value > 0.01
    assert spread(uneven).p_value < 0.001


def test_minutes_are_sums_of_sixty_seconds() -> None:
    assert per_minute([1] * 60 + [2] * 60) == [60, 120]


def test_medians_of_rounds() -> None:
    rounds = [
        Round(jobs=100, rate=rate, clients=clients, server=3.0) for rate, clients in ((10.0, 9.0), (30.0, 2.0), (20.0, 1.0))
    ]
    assert median_rate(rounds) == 20.0
    assert cpu_per_job(rounds) == 0.05


def test_percentiles_are_of_whole_claims_alone() -> None:
    claims = [(100, milliseconds / 1000) for milliseconds in range(1, 202)] + [(7, 9.0)]
    facts = claim_facts(claims)
    assert facts == {"claims_of_100": 201, "claims": 202, "claim_p50_ms": 101.0, "claim_p99_ms": 199.0, "claim_max_ms": 201.0}
    assert claim_facts([(7, 9.0)]) == {}
