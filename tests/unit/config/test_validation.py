"""Validators of single values: bounds and errors."""

from __future__ import annotations

import math

import pytest

from rocketmq_aio.config.validation import checked_count, checked_seconds
from rocketmq_aio.errors import ConfigError


@pytest.mark.parametrize("value", [0, -1, 10**9, math.inf, math.nan, True, "1", None])
def test_seconds_are_above_0_and_below_1e9_by_default(value: object) -> None:
    assert checked_seconds("wait", 0.5) == 0.5
    with pytest.raises(ConfigError, match="a number of seconds above 0 and below 1e9"):
        checked_seconds("wait", value)


@pytest.mark.parametrize("value", [4.9, 300.1, math.nan])
def test_seconds_have_the_given_bounds(value: float) -> None:
    assert [checked_seconds("wait", each, least=5, most=300) for each in (5, 300)] == [5, 300]
    with pytest.raises(ConfigError, match="a number of seconds at least 5 and at most 300"):
        checked_seconds("wait", value, least=5, most=300)


@pytest.mark.parametrize("value", [0, 2**53, 1.0, True, "1", None])
def test_counts_are_whole_numbers_from_1_by_default(value: object) -> None:
    assert checked_count("size", 2**53 - 1) == 2**53 - 1
    with pytest.raises(ConfigError, match="a whole number, at least 1"):
        checked_count("size", value)


@pytest.mark.parametrize("value", [-1, 33])
def test_counts_have_the_given_bounds(value: int) -> None:
    assert [checked_count("size", each, least=0, most=32) for each in (0, 32)] == [0, 32]
    with pytest.raises(ConfigError, match="a whole number from 0 to 32"):
        checked_count("size", value, least=0, most=32)
