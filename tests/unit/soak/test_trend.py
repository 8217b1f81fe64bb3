"""Trends: real growth is found, noise and spikes are not."""

from __future__ import annotations

from random import Random

import pytest

from tests.soak.trend import BLOCKS, Point, grows, slope

HOUR = 3600.0


def samples(per_hour: float, noise: float = 0.0, seed: int = 1) -> list[Point]:
    """Return 15 minutes of samples, one a second."""
    random = Random(seed)
    return [
        (float(n), 60 + per_hour * n / HOUR + noise * random.expovariate(1)) for n in range(900)
    ]


def test_the_slope_of_a_line_is_exact() -> None:
    found = slope(samples(8))

    assert found is not None
    assert found == pytest.approx((8, 8, 8))


@pytest.mark.parametrize("seed", range(20))
def test_noise_without_growth_has_an_interval_around_zero(seed: int) -> None:
    found = slope(samples(0, noise=2, seed=seed))

    assert found is not None
    assert found.lower < 1


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_is_found_in_noise(seed: int) -> None:
    found = slope(samples(30, noise=2, seed=seed))

    assert found is not None
    assert found.lower > 1


@pytest.mark.parametrize("points", [[], samples(8)[: BLOCKS - 1]])
def test_too_few_samples_have_no_slope_and_do_not_grow(points: list[Point]) -> None:
    assert slope(points) is None
    assert not grows(points)


def test_a_table_that_grows_is_found() -> None:
    assert grows([(float(n), float(n)) for n in range(900)])


def test_a_table_that_is_emptied_between_spikes_does_not_grow() -> None:
    assert not grows([(float(n), n if n % 50 else 3.0) for n in range(900)])


def test_a_full_bounded_table_does_not_grow() -> None:
    assert not grows([(float(n), min(20_000.0, 100.0 * n)) for n in range(900)])
