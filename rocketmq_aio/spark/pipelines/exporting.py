"""A range of topics -> files or a table, and the proof that all of it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.arrow.columns import COLUMNS
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.broker_queries import explained
from rocketmq_aio.spark.pipelines.progress import StoppedError, watched
from rocketmq_aio.spark.pipelines.reading import Selection, planned, read_exactly
from rocketmq_aio.spark.pipelines.reports import Report, quiet
from rocketmq_aio.spark.pipelines.row_counts import count
from rocketmq_aio.spark.pipelines.summary import QueueCount, Summary
from rocketmq_aio.spark.pipelines.target import COORDINATES, Target, laid_out, stored, write


@settings
class ExportSettings:
    """What `export` does.

    :param columns: columns of messages to keep; topic, brokerName, queueId and queueOffset are
        kept always, for they prove that nothing is missing; empty: all
    """

    connection: Connection
    selection: Selection
    target: Target
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in COLUMNS:
                reason = f"messages have no such column; they have {', '.join(COLUMNS)}"
                raise ConfigError("columns", name, reason)


@dataclass(frozen=True, kw_only=True)
class ExportSummary(Summary):
    """What `export` did; the queues count the rows that are in the target now.

    :ivar filtered: only some messages were wanted, so gaps prove nothing
    """

    pipeline: str = "export"
    target: str = ""
    filtered: bool = False

    @property
    def rows(self) -> int:
        """How many messages of the range the target holds."""
        return sum(each.rows or 0 for each in self.queues)


def export(
    spark: SparkSession,
    settings: ExportSettings,
    *,
    dry_run: bool = False,
    stop: Callable[[], bool] = bool,
    report: Report = quiet,
) -> ExportSummary:
    """Write what the selection names to the target, then count there what has arrived.

    The range is fixed before anything is read: what is sent meanwhile is not part of it.

    :param stop: asked all the time; True cancels the jobs under way, and the summary says what
        was done. Spark removes what a cancelled write has written to files
    :raises ConfigError: a setting cannot be
    :raises RocketMQError: brokers cannot be asked
    :raises PySparkException: Spark could not read or write
    """
    began = time.monotonic()
    ranges = planned(settings.connection, settings.selection)
    counts, stopped = [QueueCount.of(each) for each in ranges], []
    if not dry_run and any(each.size for each in ranges):
        try:
            counts = _exported(spark, settings, ranges, report, stop)
        except StoppedError as error:
            stopped = [f"{error}: {_DONE[error.step]}"]
    return ExportSummary(
        dry_run=dry_run,
        interrupted=bool(stopped),
        target=settings.target.name,
        filtered=settings.selection.filtered,
        queues=tuple(counts),
        seconds=time.monotonic() - began,
        problems=(*stopped, *problems(counts, filtered=settings.selection.filtered)),
    )


_DONE: Final = {
    "writing": "the target is not complete",
    "counting": "all rows are written, but they are not counted",
}


def _exported(
    spark: SparkSession,
    settings: ExportSettings,
    ranges: list[Range],
    report: Report,
    stop: Callable[[], bool],
) -> list[QueueCount]:
    messages = read_exactly(spark, settings.connection, settings.selection, ranges)
    rows = laid_out(_chosen(messages, settings), settings.target)
    with watched(spark, "writing", report, stop):
        write(rows, settings.target)
    with watched(spark, "counting", report, stop):
        counts = count(stored(spark, settings.target, rows.schema), ranges)
    if settings.selection.filtered:
        return [replace(each, gaps=()) for each in counts]
    return explained(settings.connection, counts)


def _chosen(messages: DataFrame, settings: ExportSettings) -> DataFrame:
    if not settings.columns:
        return messages
    kept = [*COORDINATES, "storeTimestamp", *settings.columns]
    return messages.select(*dict.fromkeys(kept))


def problems(counts: Iterable[QueueCount], *, filtered: bool) -> list[str]:
    """Return why *counts* do not add up."""
    found = []
    for each in counts:
        queue = f"{each.topic}/{each.broker}/{each.queue_id}"
        if each.repeated:
            found.append(f"{queue}: {each.repeated} rows are there more than once")
        if each.unexplained and not filtered:
            found.append(f"{queue}: {each.unexplained} of {each.offsets} messages are missing")
    return found
