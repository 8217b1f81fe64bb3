"""BrokerClock: estimates from responses."""

from __future__ import annotations

from typing import Any

import pytest

from rocketmq_aio.consumer.common.broker_clock import STALE_SECONDS, BrokerClock

START_MS = 1_700_000_000_000  # the broker's time when the clock here says 0


def clock_of(*responses: tuple[float, float, float]) -> tuple[BrokerClock, list[Any]]:
    """Return a clock with responses (sent at, stamped at, came at), and the ages it gave."""
    clock = BrokerClock()
    ages = [
        clock.note_response(START_MS + int(at * 1000), requests, now)
        for requests, at, now in responses
    ]
    return clock, [pytest.approx(age, abs=0.002) for age in ages]


def test_time_is_unknown_before_a_response() -> None:
    assert BrokerClock().now_ms(5.0) == 0


def test_first_response_may_be_as_old_as_its_request() -> None:
    clock, ages = clock_of((1.0, 1.2, 1.3))

    assert ages == [0.3]
    assert clock.now_ms(2.0) == START_MS + 1900


def test_age_of_a_held_response_follows_its_stamp() -> None:
    _, ages = clock_of((0.0, 0.05, 0.1), (1.0, 9.95, 10.0), (10.0, 10.1, 10.5))

    assert ages == [0.1, 0.1, 0.45]


def test_age_includes_the_time_of_the_response_that_set_the_clock() -> None:
    _, ages = clock_of((0.0, 0.0, 2.9), (3.0, 3.0, 5.9), (6.0, 6.0, 6.1), (7.0, 7.0, 9.9))

    assert ages == [2.9, 2.9, 0.1, 2.9]


def test_fastest_response_sets_the_clock() -> None:
    clock, _ = clock_of((0.0, 0.0, 1.0), (2.0, 2.001, 2.001), (3.0, 3.0, 3.5))

    assert clock.now_ms(4.0) == pytest.approx(START_MS + 4000, abs=2)


def test_changed_clock_is_detected() -> None:
    clock, ages = clock_of((0.0, 0.0, 0.0), (1.0, -3600.0, 1.1), (2.0, -3598.9, 2.1))

    assert ages == [0.0, 0.1, 0.0]
    assert clock.now_ms(3.0) == pytest.approx(START_MS - 3_598_000, abs=200)


def test_drift_is_followed() -> None:
    late = STALE_SECONDS + 1
    clock, ages = clock_of((0.0, 0.0, 0.0), (late, late - 0.05, late + 0.1))

    assert ages == [0.0, 0.1]
    assert clock.now_ms(late + 0.1) == pytest.approx(START_MS + (late - 0.05) * 1000, abs=2)
