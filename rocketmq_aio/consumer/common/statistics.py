"""Consume statistics: rates and averages by topic over sliding windows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import astuple

from rocketmq_aio.protocol.bodies import ConsumeStatus

MINUTE: Final = 60.0
HOUR: Final = 3600.0
SAMPLES: Final = 6  # per window: a window is up to 1/6 longer than its name
LEAST_SECONDS: Final = 1.0  # least window, of a consumer that has just started


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatistics:
    """Rates and times of a consumer for one topic during the last minute.

    :param pull_seconds: average time of a pull, including the wait for messages
    :param consume_seconds: average time of a handler call; of the last hour if the minute had none
    """

    pull_seconds: float = 0.0
    pulled_per_second: float = 0.0
    consume_seconds: float = 0.0
    consumed_per_second: float = 0.0
    failed_per_second: float = 0.0
    failed_last_hour: int = 0

    def to_body(self) -> ConsumeStatus:
        """Return the values for administration tools, times in milliseconds."""
        return ConsumeStatus(
            pull_rt=self.pull_seconds * 1000,
            pull_tps=self.pulled_per_second,
            consume_rt=self.consume_seconds * 1000,
            consume_ok_tps=self.consumed_per_second,
            consume_failed_tps=self.failed_per_second,
            consume_failed_msgs=self.failed_last_hour,
        )


class ConsumeStatistics:
    """Counts pulls and handler calls by topic; a batch costs a few additions, a message nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._topics: dict[str, _Counts] = {}

    def note_pull(self, topic: str, messages: int, seconds: float) -> None:
        sums = self._sums(topic)
        sums.pulls += 1
        sums.pulled += messages
        sums.pull_seconds += seconds

    def note_consumed(
        self, topic: str, ok: int, failed: int, seconds: float, *, calls: int = 1
    ) -> None:
        """Count handler calls: *ok* messages are done, *failed* are retried.

        :param seconds: of all *calls* together
        """
        sums = self._sums(topic)
        sums.calls += calls
        sums.ok += ok
        sums.failed += failed
        sums.call_seconds += seconds

    def snapshot(self, topic: str) -> TopicStatistics:
        """Return the statistics of *topic*; zeros if nothing was counted."""
        counts = self._topics.get(topic)
        return counts.read(self._clock()) if counts is not None else TopicStatistics()

    def snapshots(self) -> dict[str, TopicStatistics]:
        return {topic: self.snapshot(topic) for topic in self._topics}

    def topics(self) -> list[str]:
        return list(self._topics)

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def _sums(self, topic: str) -> _Sums:
        counts = self._topics.get(topic)
        now = self._clock()
        if counts is None:
            counts = self._topics[topic] = _Counts(now)
        elif now >= counts.sample_due:
            counts.sample(now)
        return counts.sums


class _Sums(msgspec.Struct):
    """Counts of one topic."""

    pulls: int = 0
    pulled: int = 0
    pull_seconds: float = 0.0
    calls: int = 0
    ok: int = 0
    failed: int = 0
    call_seconds: float = 0.0


class _Window:
    """A sliding window: the sums at the start of each slice with counts."""

    def __init__(self, seconds: float, start: float) -> None:
        self._slice = seconds / SAMPLES
        self._samples: deque[tuple[int, _Sums]] = deque()  # with the number of the slice
        self._start = start

    def note(self, now: float, sums: _Sums) -> None:
        """Store *sums* before the first count of a slice."""
        number = int(now // self._slice)
        samples = self._samples
        if not samples or samples[-1][0] != number:
            samples.append((number, copy(sums)))
        while samples[0][0] <= number - SAMPLES:
            samples.popleft()

    def read(self, now: float, sums: _Sums) -> tuple[_Sums, float]:
        """Return the counts of the window and its length in seconds."""
        first = int(now // self._slice) - SAMPLES + 1
        before = next((sample for number, sample in self._samples if number >= first), sums)
        since = max(first * self._slice, self._start)
        pairs = zip(astuple(sums), astuple(before), strict=True)
        return _Sums(*[last - early for last, early in pairs]), max(now - since, LEAST_SECONDS)


class _Counts:
    """The sums of one topic since *start*, with both windows."""

    def __init__(self, start: float) -> None:
        self.sums = _Sums()
        self._minute = _Window(MINUTE, start)
        self._hour = _Window(HOUR, start)
        self.sample(start)

    def sample(self, now: float) -> None:
        """Start a slice of the shorter window, and of the longer one if due."""
        self._minute.note(now, self.sums)
        self._hour.note(now, self.sums)
        slice_seconds = MINUTE / SAMPLES
        self.sample_due = (now // slice_seconds + 1) * slice_seconds

    def read(self, now: float) -> TopicStatistics:
        """Return rates and averages at *now*."""
        minute, seconds = self._minute.read(now, self.sums)
        hour, _ = self._hour.read(now, self.sums)
        calls = minute if minute.calls else hour
        return TopicStatistics(
            pull_seconds=minute.pull_seconds / max(1, minute.pulls),
            pulled_per_second=minute.pulled / seconds,
            consume_seconds=calls.call_seconds / max(1, calls.calls),
            consumed_per_second=minute.ok / seconds,
            failed_per_second=minute.failed / seconds,
            failed_last_hour=hour.failed,
        )
