"""Trends: real growth is found, noise and spikes are not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.soak.trend import BLOCKS, Trend

HOUR = 3600.0
SECONDS = 900


def trend_of(value: Callable[[int], float], seconds: int = SECONDS) -> Trend:
    """Return the trend of 15 minutes, of which the first *seconds* have samples, one a second."""
    trend = Trend(0, SECONDS)
    for at in range(seconds):
        trend.add(at, value(at))
    return trend


def line(per_hour: float, noise: float = 0.0, seed: int = 1) -> Callable[[int], float]:
    random = Random(seed)
    return lambda at: 60 + per_hour * at / HOUR + noise * random.expovariate(1)


def test_the_slope_of_a_line_is_exact() -> None:
    assert trend_of(line(8)).slope() == pytest.approx((8, 8, 8))


@pytest.mark.parametrize("seed", range(20))
def test_noise_without_growth_has_an_interval_around_zero(seed: int) -> None:
    found = trend_of(line(0, noise=2, seed=seed)).slope()

    assert found is not None
    assert found.lower < 1


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_is_found_in_noise(seed: int) -> None:
    found = trend_of(line(30, noise=2, seed=seed)).slope()

    assert found is not None
    assert found.lower > 1


@pytest.mark.parametrize("seconds", [0, SECONDS // BLOCKS * (BLOCKS - 1)])
def test_a_block_without_samples_leaves_no_slope_and_no_growth(seconds: int) -> None:
    trend = trend_of(float, seconds)

    assert trend.slope() is None
    assert not trend.grows()


def test_samples_of_the_warm_up_do_not_count() -> None:
    trend = Trend(100, 200)
    trend.add(99, 1000)
    trend.add(100, 3)
    trend.add(199, 5)

    assert (trend.first, trend.most, trend.last) == (3, 5, 5)


def test_a_table_that_grows_is_found() -> None:
    assert trend_of(float).grows()


def test_a_table_that_is_emptied_between_spikes_does_not_grow() -> None:
    assert not trend_of(lambda at: at if at % 50 else 3.0).grows()


def test_a_full_bounded_table_does_not_grow() -> None:
    assert not trend_of(lambda at: min(20_000.0, 100.0 * at)).grows()
