"""Dead letters of a group -> a table, and back to where they came from."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it

from rocketmq_aio.config.validation import settings
from rocketmq_aio.model.names import DLQ_PREFIX, RETRY_PREFIX
from rocketmq_aio.model.properties import RETRY_TOPIC
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options import values as values
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.broker_queries import explained, has_route
from rocketmq_aio.spark.pipelines.copies import (
    AS_THEY_ARE,
    COPIED_FROM,
    SEPARATOR,
    copies,
    position,
)
from rocketmq_aio.spark.pipelines.exporting import problems
from rocketmq_aio.spark.pipelines.progress import StoppedError, watched
from rocketmq_aio.spark.pipelines.read_range import connection_options, merged
from rocketmq_aio.spark.pipelines.reading import FORMAT, Selection, planned, read_exactly
from rocketmq_aio.spark.pipelines.reports import Report, quiet
from rocketmq_aio.spark.pipelines.row_counts import count
from rocketmq_aio.spark.pipelines.summary import QueueCount, Summary
from rocketmq_aio.spark.pipelines.target import Target, laid_out, write
from rocketmq_aio.spark.pipelines.writing import Copied, Growth, send_copies
from rocketmq_aio.spark.read.data_loss import TopicGoneError

CLOCK_SECONDS: Final = 600  # brokers may differ by so much in what time it is
AT_ONCE: Final = {"fetchOffset.numRetries": "0"}
ORIGIN: Final = "originTopic"
ORIGIN_ID: Final = "originMsgId"


@settings
class DeadLetterSettings:
    """What `dead_letters` does.

    :param group: whose dead letters
    :param start: ``earliest``, a time, or offsets as JSON; *end* likewise
    :param target: where they are written to; None: nowhere, they are counted
    :param resend: send each to the topic it came from, unless that was done before
    :param fail_on_data_loss: False goes on where letters are gone already, or messages of the
        topics they came from, so that a copy may not be found
    """

    connection: Connection
    group: str
    start: str = "earliest"
    end: str = "latest"
    target: Target | None = None
    resend: bool = False
    fail_on_data_loss: bool = True

    def __post_init__(self) -> None:
        values.group("of_group", self.group)

    @property
    def topic(self) -> str:
        """Where the dead letters of the group are."""
        return DLQ_PREFIX + self.group

    @property
    def selection(self) -> Selection:
        """What is read."""
        return Selection(
            topics=(self.topic,),
            start=self.start,
            end=self.end,
            fail_on_data_loss=self.fail_on_data_loss,
        )

    def origin_options(self, topics: list[str], first: int) -> dict[str, str]:
        """Return the options that read the copies in *topics* of letters from *first* on.

        :param first: milliseconds since 1970
        """
        options = {
            "subscribe": ",".join(topics),
            "startingTimestamp": str(first - CLOCK_SECONDS * 1000),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
        }
        return merged(connection_options(self.connection), options)


@dataclass(frozen=True, kw_only=True)
class TagCount:
    """How many dead letters came from a topic with a tag; None where that is not known."""

    topic: str | None
    tag: str | None
    letters: int


@dataclass(frozen=True, kw_only=True)
class DeadLetterSummary(Summary):
    """What `dead_letters` found and did.

    :ivar resent: how many were sent back; with ``dry_run``, how many would be
    :ivar resent_before: how many were not, for their copies are in their topics already
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
    report: Report = quiet,
) -> DeadLetterSummary:
    """Count dead letters by topic and tag, write them to a table, send them back.

    A copy that is sent back says in its property ``COPIED_FROM`` which dead letter it is. What
    is in the topic of origin with that property is not sent again, so this may be repeated.

    :param stop: asked all the time; True cancels the jobs under way, and the summary says what
        was done
    :raises ConfigError: a setting cannot be
    :raises RocketMQError: brokers cannot be asked
    :raises PySparkException: Spark could not read, write or send
    """
    began = time.monotonic()
    ranges = _planned(settings)
    if not any(each.size for each in ranges):
        queues = tuple(map(QueueCount.of, ranges))
        return DeadLetterSummary(group=settings.group, dry_run=dry_run, queues=queues)
    letters = told(read_exactly(spark, settings.connection, settings.selection, ranges), settings)
    letters.persist()  # they are read once: what is counted is what is sent
    try:
        watch = partial(watched, spark, report=report, stop=stop)
        found = _worked(_Letters(letters, settings, ranges, watch), dry_run=dry_run)
    finally:
        letters.unpersist()
    return replace(found, seconds=time.monotonic() - began)


def _planned(settings: DeadLetterSettings) -> list[Range]:
    """Return what is read: nothing where no letter ever died, for brokers make the topic then."""
    selection = settings.selection
    if has_route(settings.connection, settings.topic):
        return planned(settings.connection, selection)
    try:  # patience would not bring it
        return planned(settings.connection, replace(selection, options=AT_ONCE))
    except TopicGoneError:
        return []


def told(letters: DataFrame, settings: DeadLetterSettings) -> DataFrame:
    """Add where dead letters came from, and under which message id, as far as they say."""
    properties = F.col("properties")
    ids = [properties[name] for name in ("DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID")]
    return letters.withColumns(
        {ORIGIN: _origin(settings.connection.namespace), ORIGIN_ID: F.coalesce(*ids)}
    )


def _origin(namespace: str | None) -> Column:
    """Return the first topic that a letter names and that is no retry topic."""
    names = [F.col("properties")[name] for name in (RETRY_TOPIC, "DLQ_ORIGIN_TOPIC")]
    if namespace is not None:  # the client puts it before the name itself
        names = [F.regexp_replace(name, f"^{namespace}%", "") for name in names]
    return F.coalesce(*(F.when(~name.startswith(RETRY_PREFIX), name) for name in names))


@dataclass(frozen=True)
class _Letters:
    """Dead letters in hand, and what is to be done with them."""

    rows: DataFrame
    settings: DeadLetterSettings
    ranges: list[Range]
    watch: Callable[[str], AbstractContextManager[None]]

    def tags(self) -> list[TagCount]:
        groups = self.rows.groupBy(ORIGIN, "tags").count().orderBy(ORIGIN, "tags")
        with self.watch("reading"):
            found = groups.collect()
        return [TagCount(topic=row[0], tag=row[1], letters=row[2]) for row in found]

    def counts(self) -> list[QueueCount]:
        with self.watch("counting"):
            counted = count(self.rows, self.ranges)
        return explained(self.settings.connection, counted)

    def to_resend(self, topics: list[str]) -> DataFrame:
        """Return those that came from *topics* and are not there yet."""
        known = self.rows.where(F.col(ORIGIN).isin(topics)).withColumn("position", position())
        there = self._resent(topics)
        return known.join(there, "position", "left_anti")

    def _resent(self, topics: list[str]) -> DataFrame:
        """Return the positions of dead letters whose copies are in *topics*."""
        first = self.rows.agg(F.unix_millis(F.min("storeTimestamp"))).collect()[0][0]
        reader = self.rows.sparkSession.read.format(FORMAT)
        reader = reader.schema("properties map<string,string>")
        copied = reader.options(**self.settings.origin_options(topics, first)).load()
        mark = F.col("properties")[COPIED_FROM].alias("position")
        mine = F.col("position").startswith(self.settings.topic + SEPARATOR)
        return copied.select(mark).where(mine).distinct()

    def resend(self, rows: DataFrame) -> Copied:
        with self.watch("resending"):
            return send_copies(copies(rows, F.col(ORIGIN)), self.settings.connection, AS_THEY_ARE)


def _worked(letters: _Letters, *, dry_run: bool) -> DeadLetterSummary:
    settings = letters.settings
    found = DeadLetterSummary(
        dry_run=dry_run,
        group=settings.group,
        target=settings.target.name if settings.target is not None else None,
    )
    try:
        tags = letters.tags()
        found = replace(found, tags=tuple(tags))
        counts = letters.counts()
        wrong = tuple(problems(counts, filtered=False))
        found = replace(found, queues=tuple(counts), problems=wrong)
        if settings.target is not None and not dry_run:
            with letters.watch("writing"):
                write(laid_out(letters.rows, settings.target), settings.target)
        if settings.resend:
            found = _resent(letters, found)
    except StoppedError as error:
        done = "; nothing was resent" if settings.resend else ""
        wrong = (*found.problems, f"{error}{done}")
        return replace(found, interrupted=True, problems=wrong)
    return found


def _resent(letters: _Letters, found: DeadLetterSummary) -> DeadLetterSummary:
    """Return *found* with how many were sent, how many were there before, and what is wrong."""
    origins = Counter[str | None]()
    for each in found.tags:
        origins[each.topic] += each.letters
    connection = letters.settings.connection
    gone = [each for each in origins if each is None or not has_route(connection, each)]
    wrong = [_not_resent(topic, origins.pop(topic)) for topic in gone]
    found = replace(found, problems=(*found.problems, *wrong))
    topics = sorted(filter(None, origins))
    if not topics:
        return found
    rows = letters.to_resend(topics).persist()
    try:
        with letters.watch("looking for copies"):
            wanted = rows.count()
        found = replace(found, resent=wanted, resent_before=origins.total() - wanted)
        if found.dry_run or not wanted:
            return found
        growth = Growth(connection, topics)
        try:
            copied = letters.resend(rows)
        except StoppedError as error:
            if not error.begun:
                raise
            wrong = [f"{error}: run it again for the rest"]
            found = replace(found, resent=growth.stored(), interrupted=True)
        else:
            wrong = [*copied.problems, *growth.problems(copied.sent)]
            found = replace(found, resent=copied.sent)
    finally:
        rows.unpersist()
    return replace(found, problems=(*found.problems, *wrong))


def _not_resent(topic: str | None, letters: int) -> str:
    if topic is None:
        return f"{letters} letters do not say which topic they came from"
    return f"{letters} letters came from topic {topic!r}, which is gone: create it to resend them"
