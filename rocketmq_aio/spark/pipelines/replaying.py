"""Replay of a range of topics: copies of its messages are sent to a topic."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import SparkSession, functions as F

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError, RocketMQError
from rocketmq_aio.spark.offsets import LATEST, Queue, Range, nested, shares
from rocketmq_aio.spark.options import values as values
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.progress import JOB_ERRORS, logged
from rocketmq_aio.spark.pipelines.row_counts import count_problems, count_rows, explain_gaps
from rocketmq_aio.spark.pipelines.selection import (
    Selection,
    batch_read_options,
    merge_options,
    plan_ranges,
    position_options,
    read_ranges,
)
from rocketmq_aio.spark.pipelines.sending import (
    ANY_TAGS,
    CopyCounts,
    TopicGrowth,
    check_sink_options,
    copy_messages,
    send_copies,
)
from rocketmq_aio.spark.pipelines.summary import QueueCount, Report, Summary, no_report
from rocketmq_aio.spark.read.data_loss import warn

STEP_OFFSETS: Final = 1_000_000  # per Spark job; a failed job is repeated as a whole
STOP_SECONDS: Final = 0.2  # interval of calls of `stop` while waiting for the rate


@settings
class ReplaySettings:
    """Settings of `replay`.

    :param to: the topic that the copies go to; None: the topic of each message
    :param rate: maximum of messages per second, sent in steps of a second
    :param options: further options of the sink
    """

    connection: Connection
    selection: Selection
    to: str | None = None
    rate: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        batch_read_options(self.connection, self.selection)
        if self.rate is not None and (type(self.rate) is not int or self.rate < 1):
            raise ConfigError("rate", self.rate, "expected messages a second, 1 or more")
        check_sink_options(self.connection, self.options)
        if self.to is not None:
            values.topic("to", self.to)
        elif self.selection.pattern is not None:
            raise ConfigError("to", None, "not given: a pattern needs one topic to send to")


@dataclass(frozen=True, kw_only=True)
class ReplaySummary(Summary):
    """Result of `replay`.

    :ivar sent: number of copies sent
    :ivar done_up_to: where to continue after an interruption, as offsets for ``start``
    """

    pipeline: str = "replay"
    to: str | None = None
    sent: int = 0
    filtered: bool = False
    done_up_to: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)


def replay(
    spark: SparkSession,
    settings: ReplaySettings,
    *,
    dry_run: bool = False,
    stop: Callable[[], bool] = bool,
    report: Report = no_report,
) -> ReplaySummary:
    """Send copies of the messages of a range, each with the property ``COPIED_FROM``.

    :param stop: called before each step; True ends the replay there
    :raises ConfigError: a setting is invalid, or the range would never end
    :raises RocketMQError: a request to a broker failed
    :raises PySparkException: Spark could not read or send; earlier steps are done, and the
        warning ``replay_stopped`` has the offsets
    """
    began, now = time.monotonic(), time.time()
    ranges = plan_ranges(settings.connection, settings.selection)
    check_end(settings, ranges, now)
    job = _Replay(spark, settings, ranges, report)
    if not dry_run:
        job.send_all(stop)
    return job.summary(dry_run=dry_run, seconds=time.monotonic() - began)


def check_end(settings: ReplaySettings, ranges: Iterable[Range], now: float) -> None:
    """Reject a replay into a topic that it reads, unless the end there is fixed.

    Otherwise the copies would belong to the range, or to the range of the next such replay.

    :param ranges: the current ranges of the selection
    :param now: seconds since 1970
    :raises ConfigError: the end is not fixed
    """
    own = {each.queue for each in ranges if settings.to in (None, each.topic)}
    end = settings.selection.end
    if (own or _may_read(settings.selection, settings.to)) and _is_open(end, own, now):
        reason = "copies would go to a topic they come from: give a time in the past, or offsets"
        raise ConfigError("end", end, f"{reason} of all its queues")


def _may_read(selection: Selection, topic: str | None) -> bool:
    """Return whether *topic* is selected; a pattern may match a topic that is created later."""
    if topic is None or topic in selection.topics:
        return True
    return selection.pattern is not None and bool(re.fullmatch(selection.pattern, topic))


def _is_open(end: str, queues: Set[Queue], now: float) -> bool:
    """Return whether *end* moves with time in any of *queues*."""
    ending = position_options("ending", end)
    if "endingTimestamp" in ending:
        return values.instant("end", ending["endingTimestamp"]) > now * 1000
    offsets = values.offsets("latest")("end", ending["endingOffsets"])
    if isinstance(offsets, str) or not queues:
        return True
    return any(offsets.get(queue, LATEST) == LATEST for queue in queues)


class _Replay:
    """Run of a replay, in steps."""

    def __init__(
        self, spark: SparkSession, settings: ReplaySettings, ranges: list[Range], report: Report
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._ranges = ranges
        self._report = logged(report)
        self._copied = CopyCounts()
        self._done = {each.queue: each.start for each in ranges}
        self._interrupted = False
        self._problems: list[str] = []

    def send_all(self, stop: Callable[[], bool]) -> None:
        """Send in steps, at most at the rate, until all is sent or *stop* returns True."""
        settings = self._settings
        topics = settings.selection.topics if settings.to is None else (settings.to,)
        growth = TopicGrowth(settings.connection, topics)
        total = sum(each.size for each in self._ranges)
        with self._progress_logged():
            self._send_steps(stop, total)
            if self._interrupted:
                done = sum(each.size for each in self._done_ranges())
                rest = "start at done_up_to for the rest"
                self._problems.append(f"stopped after {done} of {total} offsets: {rest}")
            self._problems += [*self._copied.problems, *growth.problems(self._copied.sent)]

    @contextmanager
    def _progress_logged(self) -> Iterator[None]:
        """Log the offsets to continue from, which errors do not contain, if the block raises."""
        try:
            yield
        except BaseException:  # also what `stop` raises
            offsets = json.dumps(nested(self._done))
            warn("replay_stopped", sent=self._copied.sent, done_up_to=offsets)
            raise

    def _send_steps(self, stop: Callable[[], bool], total: int) -> None:
        rate, began = self._settings.rate, time.monotonic()
        for step in split_ranges(self._ranges, rate or STEP_OFFSETS):
            if stop():
                self._interrupted = True
                return
            self._copied += self._send(step)
            self._done.update({each.queue: each.end for each in step})
            self._report("replaying", sum(each.size for each in self._done_ranges()), total)
            if rate is not None:
                _wait_until(began + self._copied.sent / rate, stop)

    def _send(self, step: list[Range]) -> CopyCounts:
        settings = self._settings
        messages = read_ranges(self._spark, settings.connection, settings.selection, step)
        topic = F.col("topic") if settings.to is None else F.lit(settings.to)
        options = merge_options(ANY_TAGS, settings.options)
        return send_copies(copy_messages(messages, topic), settings.connection, options)

    def _done_ranges(self) -> list[Range]:
        """Return the ranges of the finished steps."""
        return [each._replace(end=self._done[each.queue]) for each in self._ranges]

    def summary(self, *, dry_run: bool, seconds: float) -> ReplaySummary:
        """Return the result; if there are fewer copies than offsets, count by queue first."""
        with self._progress_logged():
            counts = [*map(QueueCount.of, self._ranges)] if dry_run else self._count()
        filtered = self._settings.selection.filtered
        return ReplaySummary(
            dry_run=dry_run,
            to=self._settings.to,
            sent=self._copied.sent,
            filtered=filtered,
            interrupted=self._interrupted,
            done_up_to=nested(self._done),
            queues=tuple(counts),
            seconds=seconds,
            problems=(*self._problems, *count_problems(counts, filtered=filtered)),
        )

    def _count(self) -> list[QueueCount]:
        read, settings = self._done_ranges(), self._settings
        if settings.selection.filtered:
            return [QueueCount.of(each) for each in read]
        if self._copied.sent + self._copied.skipped == sum(each.size for each in read):
            return [replace(QueueCount.of(each), rows=each.size) for each in read]
        try:
            messages = read_ranges(self._spark, settings.connection, settings.selection, read)
            return explain_gaps(settings.connection, count_rows(messages, read))
        except (*JOB_ERRORS, RocketMQError) as error:  # everything is sent
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            copies = f"{self._copied.sent} copies of {sum(each.size for each in read)} offsets"
            self._problems.append(f"{copies} were sent, the rest was not found: {reason}")
            return [QueueCount.of(each) for each in read]


def _wait_until(until: float, stop: Callable[[], bool]) -> None:
    """Wait until the monotonic clock is at *until*, or *stop* returns True."""
    while (left := until - time.monotonic()) > 0 and not stop():
        time.sleep(min(left, STOP_SECONDS))


def split_ranges(ranges: Iterable[Range], limit: int) -> Iterator[list[Range]]:
    """Split *ranges* into consecutive lists of at most *limit* offsets.

    All queues advance together, each by its share of the remaining offsets, so that messages
    stored at the same time stay close; each offset is in one list.
    """
    left = [each for each in ranges if each.size > 0]
    while left:
        sizes = shares([each.size for each in left], limit)
        yield [each._replace(end=each.start + n) for each, n in zip(left, sizes, strict=True) if n]
        moved = [each._replace(start=each.start + n) for each, n in zip(left, sizes, strict=True)]
        left = [each for each in moved if each.size > 0]
