"""Export of a range of topics to files or a table, verified by row counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import settings
from rocketmq_aio.spark.arrow.columns import COLUMNS
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.formats import check_columns
from rocketmq_aio.spark.pipelines.progress import StoppedError, Watch, watch_jobs
from rocketmq_aio.spark.pipelines.row_counts import count_problems, count_rows, explain_gaps
from rocketmq_aio.spark.pipelines.selection import (
    Selection,
    batch_read_options,
    plan_ranges,
    read_ranges,
)
from rocketmq_aio.spark.pipelines.summary import QueueCount, Report, Summary, no_report
from rocketmq_aio.spark.pipelines.target import (
    COORDINATES,
    Target,
    prepare_rows,
    read_back,
    write_rows,
)


@settings
class ExportSettings:
    """Settings of `export`.

    :param columns: columns of messages to write; topic, brokerName, queueId and queueOffset are
        always written, because the row counts need them; empty: all
    """

    connection: Connection
    selection: Selection
    target: Target
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        batch_read_options(self.connection, self.selection)
        check_columns(self.columns, COLUMNS)
        self.target.check_partitions(_written(self.columns) if self.columns else COLUMNS)


@dataclass(frozen=True, kw_only=True)
class ExportSummary(Summary):
    """Result of `export`; the queues count the rows that the target holds.

    :ivar filtered: the selection has a filter, so gaps do not mean losses
    """

    pipeline: str = "export"
    target: str = ""
    filtered: bool = False

    @property
    def rows(self) -> int:
        """Number of messages of the range that the target holds."""
        return sum(each.rows or 0 for each in self.queues)


def export(
    spark: SparkSession,
    settings: ExportSettings,
    *,
    dry_run: bool = False,
    stop: Callable[[], bool] = bool,
    report: Report = no_report,
) -> ExportSummary:
    """Write the selected messages to the target, then count the rows in the target.

    The range is fixed before anything is read: messages sent later do not belong to it.

    :param stop: polled; True cancels the running jobs, and the summary says what was done.
        Spark removes the files of a cancelled write
    :raises ConfigError: a setting is invalid
    :raises RocketMQError: a request to a broker failed
    :raises PySparkException: Spark could not read or write
    """
    began = time.monotonic()
    filtered = settings.selection.filtered
    ranges = plan_ranges(settings.connection, settings.selection)
    counts, stopped = [*map(QueueCount.of, ranges)], []
    if not dry_run:
        watch = partial(watch_jobs, spark, report=report, stop=stop)
        try:
            counts = _write_and_count(spark, settings, ranges, watch)
        except StoppedError as error:
            stopped = [f"{error}: {_STOPPED_IN[error.step]}"]
    return ExportSummary(
        dry_run=dry_run,
        interrupted=bool(stopped),
        target=settings.target.name,
        filtered=filtered,
        queues=tuple(counts),
        seconds=time.monotonic() - began,
        problems=(*stopped, *count_problems(counts, filtered=filtered)),
    )


_STOPPED_IN: Final = {
    "writing": "the target is not complete",
    "counting": "all rows are written, but they are not counted",
}


def _written(columns: Iterable[str]) -> list[str]:
    """Return the columns that are written if *columns* are wanted."""
    return [*dict.fromkeys([*COORDINATES, "storeTimestamp", *columns])]


def _write_and_count(
    spark: SparkSession, settings: ExportSettings, ranges: list[Range], watch: Watch
) -> list[QueueCount]:
    messages = read_ranges(spark, settings.connection, settings.selection, ranges)
    if settings.columns:
        messages = messages.select(*_written(settings.columns))
    rows = prepare_rows(messages, settings.target)
    with watch("writing"):
        write_rows(rows, settings.target)
    if not any(each.size for each in ranges):  # without files some formats have no schema
        return [*map(QueueCount.of, ranges)]
    with watch("counting"):
        counts = count_rows(read_back(spark, settings.target, rows.schema), ranges)
    if settings.selection.filtered:
        return [replace(each, gaps=()) for each in counts]
    return explain_gaps(settings.connection, counts)
