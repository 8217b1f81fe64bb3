"""Replay: skipped copies and failures."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines import replaying
from rocketmq_aio.spark.pipelines.replaying import ReplaySettings
from rocketmq_aio.spark.pipelines.selection import Selection
from rocketmq_aio.spark.pipelines.sending import CopyCounts
from rocketmq_aio.spark.pipelines.summary import no_report

SETTINGS = ReplaySettings(
    connection=Connection(name_server="127.0.0.1:1"),
    selection=Selection(topics=("orders",)),
    to="again",
    rate=10**9,
)


class NoGrowth:
    def __init__(self, *_: object) -> None:
        pass


class Growth(NoGrowth):
    def problems(self, _sent: int) -> list[str]:
        return []


def test_skipped_copies_are_a_problem() -> None:
    copied = CopyCounts(sent=5) + CopyCounts(sent=1, skipped=2, example="orders/broker-a/0/7")

    assert (copied.sent, len(copied.problems)) == (6, 1)
    assert copied.problems[0].startswith("2 messages were not copied, such as orders/broker-a/0/7")
    assert CopyCounts(sent=5).problems == []


@pytest.mark.parametrize(
    "error", [PySparkException("lost"), RocketMQError("no"), OSError("stop"), KeyboardInterrupt()]
)
def test_a_failed_replay_logs_the_offsets_to_continue_from(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    ranges = [Range("orders", "broker-a", 0, 5, 25)]
    steps = [ranges[0]._replace(end=15), ranges[0]._replace(start=15)]
    monkeypatch.setattr(replaying, "TopicGrowth", NoGrowth)
    monkeypatch.setattr(replaying, "split_ranges", lambda *_: [[step] for step in steps])

    def send(_self: object, step: list[Range]) -> CopyCounts:
        if step[0].start == 15:
            raise error
        return CopyCounts(sent=step[0].size)

    monkeypatch.setattr(replaying._Replay, "_send", send)
    no_spark: Any = None
    with caplog.at_level(logging.WARNING), pytest.raises(type(error)):
        replaying._Replay(no_spark, SETTINGS, ranges, no_report).send_all(bool)

    (warning,) = [each for each in caplog.messages if "replay_stopped" in each]
    assert '{"orders": {"broker-a": {"0": 15}}}' in warning.replace("\\", "")
    assert "sent=10" in warning


def test_a_replay_interrupted_between_two_steps_logs_the_offsets_to_continue_from(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    ranges = [Range("orders", "broker-a", 0, 5, 25)]
    monkeypatch.setattr(replaying, "TopicGrowth", NoGrowth)
    monkeypatch.setattr(replaying, "split_ranges", lambda *_: [[ranges[0]._replace(end=15)]])
    monkeypatch.setattr(replaying._Replay, "_send", lambda *_: CopyCounts(sent=10))
    monkeypatch.setattr(replaying, "_wait_until", interrupted)
    no_spark: Any = None
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        replaying._Replay(no_spark, SETTINGS, ranges, no_report).send_all(bool)

    (warning,) = [each for each in caplog.messages if "replay_stopped" in each]
    assert '{"orders": {"broker-a": {"0": 15}}}' in warning.replace("\\", "")


def test_a_report_that_raises_does_not_end_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def report(_step: str, done: int, _total: int) -> None:
        calls.append(done)
        raise BrokenPipeError

    monkeypatch.setattr(replaying, "TopicGrowth", Growth)
    monkeypatch.setattr(replaying, "STEP_OFFSETS", 10)
    monkeypatch.setattr(replaying._Replay, "_send", lambda *_: CopyCounts(sent=10))
    no_spark: Any = None
    ranges = [Range("orders", "broker-a", 0, 5, 25)]
    job = replaying._Replay(no_spark, replace(SETTINGS, rate=None), ranges, report)
    job.send_all(bool)

    assert job.summary(dry_run=False, seconds=0.0).sent == 20
    assert calls == [10]


@pytest.mark.parametrize(
    ("steps", "interrupted", "problems"),
    [
        (0, True, ("stopped after 0 of 20 offsets: start at done_up_to for the rest",)),
        (1, True, ("stopped after 10 of 20 offsets: start at done_up_to for the rest",)),
        (2, False, ()),
    ],
)
def test_a_replay_that_is_stopped_before_its_end_is_not_complete(
    monkeypatch: pytest.MonkeyPatch, steps: int, interrupted: bool, problems: tuple[str, ...]
) -> None:
    ranges, sent = [Range("orders", "broker-a", 0, 5, 25)], list[int]()
    monkeypatch.setattr(replaying, "TopicGrowth", Growth)
    monkeypatch.setattr(replaying, "STEP_OFFSETS", 10)

    def send(_self: object, step: list[Range]) -> CopyCounts:
        sent.append(step[0].size)
        return CopyCounts(sent=step[0].size)

    monkeypatch.setattr(replaying._Replay, "_send", send)
    no_spark: Any = None
    job = replaying._Replay(no_spark, replace(SETTINGS, rate=None), ranges, no_report)
    job.send_all(lambda: len(sent) == steps)
    summary = job.summary(dry_run=False, seconds=0.0)

    assert (summary.interrupted, summary.sent) == (interrupted, 10 * steps)
    assert (summary.complete, summary.problems) == (not interrupted, problems)


@pytest.mark.parametrize("error", [PySparkException("lost\ntrace"), RocketMQError("lost")])
def test_a_replay_whose_copies_cannot_be_compared_says_what_was_sent(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    job = sent_short(monkeypatch)
    monkeypatch.setattr(replaying, "read_ranges", fail)

    summary = job.summary(dry_run=False, seconds=0.0)

    assert (summary.sent, summary.interrupted, summary.complete) == (9, False, False)
    assert summary.done_up_to == {"orders": {"broker-a": {"0": 15}}}
    assert summary.problems == ("9 copies of 10 offsets were sent, the rest was not found: lost",)


def test_a_replay_interrupted_while_it_compares_logs_the_offsets_to_continue_from(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    job = sent_short(monkeypatch)
    monkeypatch.setattr(replaying, "read_ranges", interrupted)

    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        job.summary(dry_run=False, seconds=0.0)

    (warning,) = [each for each in caplog.messages if "replay_stopped" in each]
    assert '{"orders": {"broker-a": {"0": 15}}}' in warning.replace("\\", "")


def sent_short(monkeypatch: pytest.MonkeyPatch) -> replaying._Replay:
    """Return a replay that has sent nine copies of ten offsets."""
    monkeypatch.setattr(replaying, "TopicGrowth", Growth)
    monkeypatch.setattr(replaying._Replay, "_send", lambda *_: CopyCounts(sent=9))
    no_spark: Any = None
    ranges = [Range("orders", "broker-a", 0, 5, 15)]
    job = replaying._Replay(no_spark, replace(SETTINGS, rate=None), ranges, no_report)
    job.send_all(bool)
    return job
