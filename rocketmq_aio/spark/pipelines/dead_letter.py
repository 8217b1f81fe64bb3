"""Dead letters of a group: counted, written to a target, resent to their original topics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession, functions as F

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import RouteNotFoundError
from rocketmq_aio.model.names import DLQ_PREFIX, LMQ_PREFIX, RETRY_PREFIX, popped_topic_pattern
from rocketmq_aio.model.properties import RETRY_TOPIC
from rocketmq_aio.spark.arrow.columns import COLUMNS
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options import values as values
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.progress import StoppedError, Watch, watch_jobs
from rocketmq_aio.spark.pipelines.row_counts import count_problems, count_rows, explain_gaps
from rocketmq_aio.spark.pipelines.selection import (
    FORMAT,
    Selection,
    batch_options,
    batch_read_options,
    plan_ranges,
    read_ranges,
)
from rocketmq_aio.spark.pipelines.sending import (
    ANY_TAGS,
    COPIED_FROM,
    PATH_SEPARATOR,
    CopyCounts,
    TopicGrowth,
    copy_messages,
    origin_path,
    send_copies,
)
from rocketmq_aio.spark.pipelines.summary import QueueCount, Report, Summary, no_report
from rocketmq_aio.spark.pipelines.target import Target, prepare_rows, write_rows
from rocketmq_aio.spark.read.data_loss import TopicGoneError
from rocketmq_aio.spark.runtime import Runtime

TASK_LETTERS: Final = 10_000  # starting a task takes about as long as sending so many
CLOCK_SECONDS: Final = 600  # tolerated difference of the clocks of brokers
NO_RETRIES: Final = {"fetchOffset.numRetries": "0"}
ORIGIN: Final = "originTopic"
ORIGIN_ID: Final = "originMsgId"


@settings
class DeadLetterSettings:
    """Settings of `dead_letters`.

    :param group: the consumer group that the dead letters belong to
    :param start: ``earliest``, a time, or offsets as JSON; *end* likewise
    :param target: None: dead letters are only counted
    :param resend: send each to its original topic, unless its copy is already there
    :param fail_on_data_loss: False continues where dead letters or messages of the original topics
        have been deleted: earlier copies may then be sent again
    """

    connection: Connection
    group: str
    start: str = "earliest"
    end: str = "latest"
    target: Target | None = None
    resend: bool = False
    fail_on_data_loss: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        values.group("of_group", self.group)
        batch_read_options(self.connection, self.selection)
        if self.target is not None:
            self.target.check_partitions((*COLUMNS, ORIGIN, ORIGIN_ID))

    @property
    def topic(self) -> str:
        """The dead-letter topic of the group."""
        return DLQ_PREFIX + self.group

    @property
    def selection(self) -> Selection:
        """Selection of the dead letters."""
        fail = self.fail_on_data_loss
        return Selection(
            topics=(self.topic,), start=self.start, end=self.end, fail_on_data_loss=fail
        )

    def origin_options(self, topics: list[str], since: int) -> dict[str, str]:
        """Return the options that read the copies of dead letters stored since a time in ms."""
        start, fail = str(since - CLOCK_SECONDS * 1000), self.fail_on_data_loss
        selection = Selection(topics=tuple(topics), start=start, fail_on_data_loss=fail)
        return batch_options(self.connection, selection)


@dataclass(frozen=True, kw_only=True)
class TagCount:
    """Number of dead letters by original topic and tag; None: the topic or tag is unknown."""

    topic: str | None
    tag: str | None
    letters: int


@dataclass(frozen=True, kw_only=True)
class DeadLetterSummary(Summary):
    """Result of `dead_letters`.

    :ivar resent: number of dead letters resent; with ``dry_run``, to be resent
    :ivar resent_before: number of dead letters whose copies were already in their topics
    """

    pipeline: str = "dlq"
    group: str = ""
    target: str | None = None
    tags: tuple[TagCount, ...] = ()
    resent: int = 0
    resent_before: int = 0


def dead_letters(
    spark: SparkSession,
    settings: DeadLetterSettings,
    *,
    dry_run: bool = False,
    stop: Callable[[], bool] = bool,
    report: Report = no_report,
) -> DeadLetterSummary:
    """Count dead letters by topic and tag, write them to a target, resend them.

    Each copy names its dead letter in the property ``COPIED_FROM``.  Dead letters whose copies
    are in the original topic are not sent again, so that you can repeat the call.

    :param stop: polled; True cancels the running jobs, and the summary says what was done
    :raises ConfigError: a setting is invalid
    :raises RocketMQError: a request to a broker failed
    :raises PySparkException: Spark could not read, write or send
    """
    began = time.monotonic()
    ranges = plan_dead_letters(settings)
    if not any(each.size for each in ranges) and (dry_run or settings.target is None):
        queues = tuple(map(QueueCount.of, ranges))
        return DeadLetterSummary(group=settings.group, dry_run=dry_run, queues=queues)
    messages = read_ranges(spark, settings.connection, settings.selection, ranges)
    rows = with_origin(messages, settings.group, settings.connection.namespace)
    rows.persist()  # read once, so that the same rows are counted and sent
    try:
        watch = partial(watch_jobs, spark, report=report, stop=stop)
        summary = _Job(rows, settings, ranges, watch).run(dry_run=dry_run)
    finally:
        rows.unpersist()
    return replace(summary, seconds=time.monotonic() - began)


def plan_dead_letters(settings: DeadLetterSettings) -> list[Range]:
    """Return the ranges of dead letters; none if the group never had any, and so has no topic."""
    # Retries would only delay the answer.
    options = {} if has_route(settings.connection, settings.topic) else NO_RETRIES
    try:
        return plan_ranges(settings.connection, replace(settings.selection, options=options))
    except TopicGoneError:
        return []


def has_route(connection: Connection, topic: str) -> bool:
    """Return whether a name server knows *topic*; raise `RocketMQError` if none answered."""
    runtime = Runtime.get(connection)
    try:
        runtime.call(runtime.pull_consumer().message_queues, topic)
    except RouteNotFoundError:
        return False
    return True


def with_origin(messages: DataFrame, group: str, namespace: str | None) -> DataFrame:
    """Add the original topics and message ids of dead letters of *group*.

    They are null where the properties lack them, and the topic is for light message queues, which
    nothing is sent to.
    """
    properties = F.col("properties")
    ids = [properties[name] for name in ("DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID")]
    popped = popped_topic_pattern(group)
    topics = [
        F.regexp_replace(properties[name], popped, "$1")
        for name in (RETRY_TOPIC, "DLQ_ORIGIN_TOPIC")
    ]
    if namespace is not None:  # the client prefixes topics with the namespace
        topics = [F.regexp_replace(name, f"^{namespace}%", "") for name in topics]
    others = f"^({RETRY_PREFIX}|{LMQ_PREFIX})"
    first = F.coalesce(*(F.when(~name.rlike(others), name) for name in topics))
    return messages.withColumns({ORIGIN: first, ORIGIN_ID: F.coalesce(*ids)})


@dataclass(frozen=True)
class _Job:
    """Dead letters that were read, and their processing."""

    rows: DataFrame
    settings: DeadLetterSettings
    ranges: list[Range]
    watch: Watch

    def run(self, *, dry_run: bool) -> DeadLetterSummary:
        settings, target = self.settings, self.settings.target
        name = None if target is None else target.name
        summary = DeadLetterSummary(dry_run=dry_run, group=settings.group, target=name)
        try:
            with self.watch("reading"):
                groups = self.rows.groupBy(ORIGIN, "tags").count().orderBy(ORIGIN, "tags")
                tags = [TagCount(topic=t, tag=tag, letters=n) for t, tag, n in groups.collect()]
            summary = replace(summary, tags=tuple(tags))
            with self.watch("counting"):
                counts = count_rows(self.rows, self.ranges)
            counts = explain_gaps(settings.connection, counts)
            problems = tuple(count_problems(counts, filtered=False))
            summary = replace(summary, queues=tuple(counts), problems=problems)
            if target is not None and not dry_run:
                with self.watch("writing"):
                    write_rows(prepare_rows(self.rows, target), target)
            if settings.resend:
                summary = self.resend(summary)
        except StoppedError as error:
            done = "; nothing was resent" if settings.resend else ""
            problems = (*summary.problems, f"{error}{done}")
            return replace(summary, interrupted=True, problems=problems)
        return summary

    def resend(self, summary: DeadLetterSummary) -> DeadLetterSummary:
        """Return *summary* with the numbers of dead letters resent now and before."""
        origins = Counter[str | None]()
        for each in summary.tags:
            origins[each.topic] += each.letters
        connection = self.settings.connection
        gone = [each for each in origins if each is None or not has_route(connection, each)]
        problems = [_not_resent(topic, origins.pop(topic)) for topic in gone]
        summary = replace(summary, problems=(*summary.problems, *problems))
        topics = sorted(filter(None, origins))
        if not topics:
            return summary
        rows = self.not_resent(topics).persist()
        try:
            with self.watch("looking for copies"):
                pending = rows.count()
            before = origins.total() - pending
            summary = replace(summary, resent=pending, resent_before=before)
            if summary.dry_run or not pending:
                return summary
            # The join leaves spark.sql.shuffle.partitions, 200 by default.
            packed = rows.coalesce(-(-pending // TASK_LETTERS))
            return self._send_and_check(packed, topics, summary)
        finally:
            rows.unpersist()

    def _send_and_check(
        self, rows: DataFrame, topics: list[str], summary: DeadLetterSummary
    ) -> DeadLetterSummary:
        growth = TopicGrowth(self.settings.connection, topics)
        try:
            copied = self.send(rows)
        except StoppedError as error:
            if not error.started:
                raise
            stored, found = growth.count()
            problems = [f"{error}: {found}; run it again for the rest"]
            summary = replace(summary, resent=stored or 0, interrupted=True)
        else:
            problems = [*copied.problems, *growth.problems(copied.sent)]
            summary = replace(summary, resent=copied.sent)
        return replace(summary, problems=(*summary.problems, *problems))

    def not_resent(self, topics: list[str]) -> DataFrame:
        """Return the dead letters of *topics* whose copies are not there."""
        rows = self.rows.where(F.col(ORIGIN).isin(topics)).withColumn("position", origin_path())
        since = self.rows.agg(F.unix_millis(F.min("storeTimestamp"))).collect()[0][0]
        reader = self.rows.sparkSession.read.format(FORMAT)
        reader = reader.schema("properties map<string,string>")
        stored = reader.options(**self.settings.origin_options(topics, since)).load()
        position = F.col("properties")[COPIED_FROM].alias("position")
        own = F.col("position").startswith(self.settings.topic + PATH_SEPARATOR)
        return rows.join(stored.select(position).where(own), "position", "left_anti")

    def send(self, rows: DataFrame) -> CopyCounts:
        with self.watch("resending"):
            copies = copy_messages(rows, F.col(ORIGIN))
            return send_copies(copies, self.settings.connection, ANY_TAGS)


def _not_resent(topic: str | None, letters: int) -> str:
    if topic is None:
        return (
            f"{letters} dead letters name no original topic, or a light message queue, "
            "which gets them by a topic: rmq dlq resend --to-topic TOPIC sends them"
        )
    return (
        f"{letters} dead letters came from topic {topic!r}, which is gone: create it to resend them"
    )
