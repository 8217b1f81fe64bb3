"""A range of topics -> a topic, once more."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it

from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError, RocketMQError
from rocketmq_aio.spark.offsets import LATEST, Queue, Range, nested
from rocketmq_aio.spark.options import values as values
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.broker_queries import explained
from rocketmq_aio.spark.pipelines.copies import AS_THEY_ARE, copies
from rocketmq_aio.spark.pipelines.exporting import problems
from rocketmq_aio.spark.pipelines.progress import JOB_ERRORS
from rocketmq_aio.spark.pipelines.read_range import end_options, merged, slices
from rocketmq_aio.spark.pipelines.reading import Selection, planned, read_exactly
from rocketmq_aio.spark.pipelines.reports import Report, quiet
from rocketmq_aio.spark.pipelines.row_counts import count
from rocketmq_aio.spark.pipelines.summary import QueueCount, Summary
from rocketmq_aio.spark.pipelines.writing import Copied, Growth, send_copies
from rocketmq_aio.spark.read.data_loss import warn

STEP_OFFSETS: Final = 1_000_000  # one job of Spark; what fails is told to the job
STOP_SECONDS: Final = 0.2  # how soon a wait for the rate ends when it is to stop


@settings
class ReplaySettings:
    """What `replay` does.

    :param to: the topic that the copies go to; None: each message to its own topic
    :param rate: at most so many messages a second, sent in steps of a second
    :param options: further options of the sink
    """

    connection: Connection
    selection: Selection
    to: str | None = None
    rate: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.rate is not None and (type(self.rate) is not int or self.rate < 1):
            raise ConfigError("rate", self.rate, "expected messages a second, 1 or more")
        if self.to is not None:
            values.topic("to", self.to)
        elif self.selection.pattern is not None:
            raise ConfigError("to", None, "not given: a pattern needs one topic to send to")


@dataclass(frozen=True, kw_only=True)
class ReplaySummary(Summary):
    """What `replay` did.

    :ivar sent: how many copies were sent
    :ivar done_up_to: where to go on after an interruption, as offsets for ``start``
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
    report: Report = quiet,
) -> ReplaySummary:
    """Send the messages of a range again, with the mark `copies.COPIED_FROM` on each.

    :param stop: asked between two steps; True ends the replay there
    :raises ConfigError: a setting cannot be, or the range would never end
    :raises RocketMQError: brokers cannot be asked
    :raises PySparkException: Spark could not read or send; steps before are done, and the
        warning ``replay_stopped`` tells how far
    """
    began, now = time.monotonic(), time.time()
    ranges = planned(settings.connection, settings.selection)
    check_end(settings, ranges, now)
    run = _Run(spark, settings, ranges, report)
    if not dry_run:
        run.send_all(stop)
    return run.summary(dry_run=dry_run, seconds=time.monotonic() - began)


def check_end(settings: ReplaySettings, ranges: Iterable[Range], now: float) -> None:
    """Refuse a replay into a topic it reads unless the end there is fixed.

    Its copies would belong to the range, or to the next replay like it, without an end.

    :param ranges: what the selection comes to now
    :param now: seconds since 1970
    :raises ConfigError: it is one
    """
    own = {each.queue for each in ranges if settings.to in (None, each.topic)}
    if (own or _reads(settings.selection, settings.to)) and _open(settings.selection.end, own, now):
        reason = (
            "copies would go to a topic they come from: give a time in the past, or offsets of all "
            "its queues"
        )
        raise ConfigError("end", settings.selection.end, reason)


def _reads(selection: Selection, topic: str | None) -> bool:
    """Return whether *topic* belongs to the selection; a pattern may match a topic yet to come."""
    if topic is None or topic in selection.topics:
        return True
    return selection.pattern is not None and bool(re.fullmatch(selection.pattern, topic))


def _open(end: str, queues: Set[Queue], now: float) -> bool:
    """Return whether *end* is later for a later replay, in any of *queues*."""
    ending = end_options(end)
    if "endingTimestamp" in ending:
        return int(ending["endingTimestamp"]) > now * 1000
    offsets = values.offsets("latest")("end", ending["endingOffsets"])
    if isinstance(offsets, str) or not queues:
        return True
    return any(offsets.get(queue, LATEST) == LATEST for queue in queues)


class _Run:
    """One replay, step by step."""

    def __init__(
        self, spark: SparkSession, settings: ReplaySettings, ranges: list[Range], report: Report
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._ranges = ranges
        self._report = report
        self._copied = Copied()
        self._done = {each.queue: each.start for each in ranges}
        self._interrupted = False
        self._problems: list[str] = []

    def send_all(self, stop: Callable[[], bool]) -> None:
        """Send step by step, not faster than the rate, until all is sent or *stop* says so."""
        growth = Growth(self._settings.connection, self._targets())
        rate = self._settings.rate
        total = sum(each.size for each in self._ranges)
        began = time.monotonic()
        for step in slices(self._ranges, rate or STEP_OFFSETS):
            if self._interrupted:
                break
            try:
                self._copied += self._send(step)
            except (*JOB_ERRORS, RocketMQError, KeyboardInterrupt):
                # The error says what went wrong; only this place knows where to go on.
                place = json.dumps(nested(self._done))
                warn("replay_stopped", sent=self._copied.sent, done_up_to=place)
                raise
            self._done.update({each.queue: each.end for each in step})
            self._report("replaying", sum(each.size for each in self._read()), total)
            if rate is not None:
                _wait(began + self._copied.sent / rate, stop)
            self._interrupted = stop()
        self._problems += [*self._copied.problems, *growth.problems(self._copied.sent)]

    def _targets(self) -> tuple[str, ...]:
        to = self._settings.to
        return (to,) if to is not None else self._settings.selection.topics

    def _send(self, step: list[Range]) -> Copied:
        settings = self._settings
        messages = read_exactly(self._spark, settings.connection, settings.selection, step)
        topic = F.col("topic") if settings.to is None else F.lit(settings.to)
        return send_copies(
            copies(messages, topic), settings.connection, merged(AS_THEY_ARE, settings.options)
        )

    def _read(self) -> list[Range]:
        """Return what has been read so far."""
        return [each._replace(end=self._done[each.queue]) for each in self._ranges]

    def summary(self, *, dry_run: bool, seconds: float) -> ReplaySummary:
        """Return what was done; fewer rows than offsets are looked into first."""
        counts = [QueueCount.of(each) for each in self._ranges]
        if not dry_run:
            counts = self._counted()
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
            problems=(*self._problems, *problems(counts, filtered=filtered)),
        )

    def _counted(self) -> list[QueueCount]:
        read = self._read()
        settings = self._settings
        if settings.selection.filtered:
            return [QueueCount.of(each) for each in read]
        if self._copied.sent + self._copied.set_aside == sum(each.size for each in read):
            return [replace(QueueCount.of(each), rows=each.size) for each in read]
        messages = read_exactly(self._spark, settings.connection, settings.selection, read)
        return explained(settings.connection, count(messages, read))


def _wait(until: float, stop: Callable[[], bool]) -> None:
    """Wait for a moment of the monotonic clock, or until *stop* says so."""
    while (left := until - time.monotonic()) > 0 and not stop():
        time.sleep(min(left, STOP_SECONDS))
