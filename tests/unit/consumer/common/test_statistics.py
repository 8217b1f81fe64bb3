"""Consume statistics: rates and averages over sliding windows."""

from __future__ import annotations

import pytest

from rocketmq_aio.consumer.common.statistics import ConsumeStatistics, TopicStatistics


class Clock:
    """Seconds, as a test says."""

    def __init__(self, now: float = 12_345.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Counting:
    """Statistics beside their clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.statistics = ConsumeStatistics(self.clock)

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def orders(self) -> TopicStatistics:
        return self.statistics.snapshot("orders")


@pytest.fixture
def counting() -> Counting:
    return Counting()


def test_unknown_topic_has_zeros(counting: Counting) -> None:
    assert counting.orders() == TopicStatistics()
    assert counting.statistics.topics() == []


def test_rates_and_averages_of_the_last_minute(counting: Counting) -> None:
    for _ in range(120):  # two minutes of one batch per second
        counting.statistics.note_pull("orders", 32, 0.5)
        counting.statistics.note_consumed("orders", 30, 2, 0.25)
        counting.wait(1)

    seen = counting.orders()

    assert seen.pull_seconds == pytest.approx(0.5)
    assert seen.pulled_per_second == pytest.approx(32, rel=0.05)
    assert seen.consume_seconds == pytest.approx(0.25)
    assert seen.consumed_per_second == pytest.approx(30, rel=0.05)
    assert seen.failed_per_second == pytest.approx(2, rel=0.05)
    assert seen.failed_last_hour == 240


def test_minute_values_expire_before_hour_values(counting: Counting) -> None:
    counting.statistics.note_pull("orders", 32, 0.5)
    counting.statistics.note_consumed("orders", 30, 2, 0.25)
    counting.wait(61)

    assert counting.orders() == TopicStatistics(consume_seconds=0.25, failed_last_hour=2)


def test_hour_values_expire(counting: Counting) -> None:
    counting.statistics.note_consumed("orders", 30, 2, 0.25)
    counting.wait(3601)

    assert counting.orders() == TopicStatistics()


def test_counts_before_the_window_are_ignored(counting: Counting) -> None:
    counting.statistics.note_consumed("orders", 0, 1000, 9.0)
    counting.wait(120)
    for _ in range(6):
        counting.statistics.note_consumed("orders", 60, 0, 0.5)
        counting.wait(10)

    seen = counting.orders()

    assert seen.consume_seconds == pytest.approx(0.5)
    assert seen.consumed_per_second == pytest.approx(6, rel=0.1)
    assert seen.failed_per_second == 0
    assert seen.failed_last_hour == 1000


def test_rates_of_a_new_consumer_use_its_age(counting: Counting) -> None:
    counting.statistics.note_pull("orders", 32, 0.1)
    assert counting.orders().pulled_per_second == 32  # not in no time at all

    counting.wait(4)
    assert counting.orders().pulled_per_second == 8


def test_topics_are_counted_apart_and_can_be_forgotten(counting: Counting) -> None:
    counting.statistics.note_consumed("orders", 1, 0, 0.1)
    counting.statistics.note_consumed("payments", 0, 5, 0.1)

    assert counting.statistics.topics() == ["orders", "payments"]
    assert counting.orders().failed_last_hour == 0
    assert counting.statistics.snapshots()["payments"].failed_last_hour == 5

    counting.statistics.forget("payments")
    assert counting.statistics.topics() == ["orders"]


def test_a_long_life_leaves_a_bounded_memory(counting: Counting) -> None:
    for _ in range(10_000):
        counting.statistics.note_consumed("orders", 1, 1, 0.1)
        counting.wait(7)
    held = counting.statistics._topics["orders"]

    assert len(held._minute._samples) <= 6
    assert len(held._hour._samples) <= 6
    assert counting.orders().failed_last_hour == pytest.approx(3600 / 7, rel=0.17)


def test_administrators_see_milliseconds(counting: Counting) -> None:
    seen = TopicStatistics(
        pull_seconds=0.5,
        pulled_per_second=1.0,
        consume_seconds=0.25,
        consumed_per_second=2.0,
        failed_per_second=3.0,
        failed_last_hour=4,
    ).to_body()

    assert (seen.pull_rt, seen.pull_tps, seen.consume_rt) == (500, 1, 250)
    assert (seen.consume_ok_tps, seen.consume_failed_tps) == (2, 3)
    assert seen.consume_failed_msgs == 4
