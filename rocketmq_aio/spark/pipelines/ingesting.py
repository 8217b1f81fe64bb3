"""A stream of messages -> files or a table, bodies read by a schema, bad ones set aside."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.offsets import LATEST, nested
from rocketmq_aio.spark.options import values as values
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.bodies import BAD, VALUE, BodySchema, parsed
from rocketmq_aio.spark.pipelines.folders import (
    OWNERS,
    below,
    claim,
    has_files,
    has_sink_log,
    read_text,
    write_text,
)
from rocketmq_aio.spark.pipelines.micro_batch_counts import Batches
from rocketmq_aio.spark.pipelines.reading import FORMAT, Selection, planned, stream_options
from rocketmq_aio.spark.pipelines.reports import Report, quiet
from rocketmq_aio.spark.pipelines.summary import QueueCount, Summary
from rocketmq_aio.spark.pipelines.target import Target, format_options, laid_out, stored

LOOK_SECONDS: Final = 0.2
STOP_SECONDS: Final = 60.0  # for a batch that is under way when the stream is to stop
GOOD_NAME: Final = "messages"
BAD_NAME: Final = "bad"
START_NAME: Final = "start"  # beside the checkpoints of two queries: where both begin
OBSERVED: Final = "ingest"
OWNER_DIGITS: Final = 16
# Sinks that skip the ids of batches in their log, though another checkpoint wrote these.
FILE_FORMATS: Final = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
USED: Final = (
    "is not empty, and the checkpoint is new: Spark would skip batches, and lose their messages. "
    "Use an empty one, or the checkpoint that belongs to it"
)

SHARED: Final = (
    "another checkpoint began to write to this folder: Spark would skip batches of one of them, "
    "and lose their messages. Use another folder, or delete {} if no such ingest ran"
)


@settings
class IngestSettings:
    """What `ingest` does.

    :param checkpoint: folder that Spark keeps the progress in; the same one goes on from there
    :param body: how bodies are read; None: they are written as they are
    :param bad_rows: path for messages whose bodies cannot be read, as parquet
    :param once: read what is there, then end; else go on until stopped
    :param trigger_seconds: between two batches; 0: one after the other
    """

    connection: Connection
    selection: Selection
    target: Target
    checkpoint: str
    body: BodySchema | None = None
    bad_rows: str | None = None
    once: bool = False
    trigger_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.target.mode == "overwrite":
            raise ConfigError(
                "mode", self.target.mode, "a stream appends: use append, or leave out"
            )
        if self.body is not None and self.bad_rows is None:
            raise ConfigError("bad_rows", None, "not given: say where bodies go that do not fit")
        if self.body is None and self.bad_rows is not None:
            raise ConfigError("bad_rows", self.bad_rows, "needs a schema of bodies")
        if self.bad_rows is not None and _overlap(self.bad_rows, self.target.path):
            reason = "overlaps the target: two streams would skip each other's batches"
            raise ConfigError("bad_rows", self.bad_rows, reason)
        if self.selection.end != "latest":
            raise ConfigError(
                "end", self.selection.end, "a stream has none: export a range instead"
            )


def _overlap(path: str, other: str | None) -> bool:
    """Return whether one folder is the other, or is in it."""
    if other is None:
        return False
    first, second = f"{path.rstrip('/')}/", f"{other.rstrip('/')}/"
    return first.startswith(second) or second.startswith(first)


@dataclass(frozen=True, kw_only=True)
class IngestSummary(Summary):
    """What one run of `ingest` did; the next one goes on behind the queues' ends.

    :ivar rows: how many messages were read; *bad*: how many of them have bodies that do not fit
    :ivar interrupted: it was stopped; what was under way was finished, or is done anew next time
    """

    pipeline: str = "ingest"
    target: str = ""
    rows: int = 0
    bad: int = 0
    filtered: bool = False


def ingest(
    spark: SparkSession,
    settings: IngestSettings,
    *,
    dry_run: bool = False,
    stop: Callable[[], bool] = bool,
    report: Report = quiet,
) -> IngestSummary:
    """Append messages to the target, each once where the format can: files, Delta, Iceberg.

    With a schema of bodies two queries run, for good and for bad rows, each with a checkpoint of
    its own: that is how both sides get each message once, whatever is killed.

    :param stop: asked all the time; True ends the stream after the batch under way
    :raises ConfigError: a setting cannot be, Spark lacks a jar, or the checkpoint is new and a
        target is not empty
    :raises RocketMQError: brokers cannot be asked
    :raises PySparkException: a query failed; the next run goes on where it was
    """
    began = time.monotonic()
    if dry_run:
        return _dry(settings, began)
    check_targets(spark, settings)
    queries = _started(spark, settings)
    batches = {query.id: Batches() for query in queries}
    interrupted = _followed(queries, batches, stop, report)
    return _summary(settings, batches[queries[0].id], began, interrupted=interrupted)


def _dry(settings: IngestSettings, began: float) -> IngestSummary:
    """Return what a first run would read now: a checkpoint is not looked at."""
    first = replace(settings.selection, start=_start(settings))
    return IngestSummary(
        dry_run=True,
        target=settings.target.name,
        filtered=settings.selection.filtered,
        queues=tuple(map(QueueCount.of, planned(settings.connection, first))),
        seconds=time.monotonic() - began,
    )


def _start(settings: IngestSettings) -> str:
    """Return the start as offsets, so that two queries begin at one place."""
    selection = settings.selection
    if _is_place(selection.start):
        return selection.start  # it may be gone by now: a checkpoint knows where to go on
    if selection.start != "latest":
        ranges = planned(settings.connection, selection)
        return json.dumps(nested({each.queue: each.start for each in ranges}))
    ranges = planned(settings.connection, replace(selection, start="earliest"))
    return json.dumps(nested({each.queue: each.end for each in ranges}))


def _is_place(start: str) -> bool:
    if not start.lstrip().startswith("{"):
        return False
    offsets = values.offsets()("start", start)
    return isinstance(offsets, dict) and LATEST not in offsets.values()


def check_targets(spark: SparkSession, settings: IngestSettings) -> None:
    """Refuse targets that are not empty where the checkpoint of their query is new.

    A folder of files keeps a log of the batches written to it. Batches of a new checkpoint have
    the same ids, so that Spark takes them for written.

    :raises ConfigError: it names the target
    """
    if _is_new(spark, settings, GOOD_NAME):
        _check_target(spark, settings)
    bad_rows = settings.bad_rows
    if bad_rows is not None and _is_new(spark, settings, BAD_NAME):
        _check_folder(spark, settings, "bad_rows", bad_rows, bad_rows)


def _is_new(spark: SparkSession, settings: IngestSettings, name: str) -> bool:
    """Return whether the query *name* has not planned a batch yet: it has written nothing."""
    return not has_files(spark, below(below(settings.checkpoint, name), "offsets"))


def _is_used(spark: SparkSession, path: str) -> bool:
    return has_files(spark, path) or has_sink_log(spark, path)


def _check_folder(
    spark: SparkSession, settings: IngestSettings, setting: str, name: str, path: str
) -> None:
    """Refuse a folder of files that is not empty, or that is not this checkpoint's alone."""
    if _is_used(spark, path):
        raise ConfigError(setting, name, USED)
    owner = sha256(settings.checkpoint.rstrip("/").encode()).hexdigest()[:OWNER_DIGITS]
    if not claim(spark, path, owner):
        raise ConfigError(setting, name, SHARED.format(below(path, OWNERS)))


def _check_target(spark: SparkSession, settings: IngestSettings) -> None:
    target = settings.target
    kind, place = (target.format, target.path)
    if target.table is not None:
        about = _described(spark, target.table)
        kind, place = about.get("Provider", kind), about.get("Location")
    if kind.lower() not in FILE_FORMATS:
        # Tables such as Delta's tell the batches of one checkpoint from those of another.
        if target.mode != "append" and _has_rows(spark, target):
            reason = "is not empty: give mode append, or another target"
            raise ConfigError("target", target.name, reason)
    elif place is not None:
        _check_folder(spark, settings, "target", target.name, place)


def _described(spark: SparkSession, table: str) -> dict[str, str]:
    """Return what Spark says of a table; nothing where there is no such table."""
    try:
        return {row[0]: row[1] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()}
    except AnalysisException:
        return {}


def _has_rows(spark: SparkSession, target: Target) -> bool:
    try:
        return bool(stored(spark, target, StructType()).take(1))
    except AnalysisException:  # no such table, or a folder that is none
        return False


def _started(spark: SparkSession, settings: IngestSettings) -> list[StreamingQuery]:
    if settings.body is None:
        return [_begin(_messages(spark, settings.connection, settings.selection), settings)]
    selection = replace(settings.selection, start=_kept_start(spark, settings))
    one_start = replace(settings, selection=selection)
    good = _parsed(spark, one_start, settings.body)
    bad = _parsed(spark, one_start, settings.body)
    first = _begin(good.where(~F.col(BAD)).drop(BAD, "body"), settings)
    try:
        return [first, _begin_bad(bad.where(BAD).drop(BAD, VALUE), settings)]
    except BaseException:
        first.stop()
        raise


def _kept_start(spark: SparkSession, settings: IngestSettings) -> str:
    """Return where both queries begin: the place of the first run, kept beside the checkpoints.

    A run that is killed when only one query has its checkpoint is followed by a run that starts
    the other one for the first time: a start such as ``latest`` is elsewhere by then.
    """
    place = below(settings.checkpoint, START_NAME)
    kept = read_text(spark, place)
    if kept is None:
        kept = _start(settings)
        write_text(spark, place, kept)
    return kept


def _parsed(spark: SparkSession, settings: IngestSettings, body: BodySchema) -> DataFrame:
    """Return a stream of messages with their bodies read; each query has its own."""
    rows = parsed(_messages(spark, settings.connection, settings.selection), body)
    return _observed(rows, F.count_if(BAD).alias(BAD))


def _messages(spark: SparkSession, connection: Connection, selection: Selection) -> DataFrame:
    options = stream_options(connection, selection)
    return spark.readStream.format(FORMAT).options(**options).load()


def _observed(rows: DataFrame, *counts: Column) -> DataFrame:
    return rows.observe(OBSERVED, F.count(F.lit(1)).alias("rows"), *counts)


def _begin(rows: DataFrame, settings: IngestSettings) -> StreamingQuery:
    target = settings.target
    writer = laid_out(rows, target).writeStream.format(target.format)
    writer = writer.options(**format_options(target))
    if target.partition_by:
        writer = writer.partitionBy(*target.partition_by)
    writer = _triggered(writer, settings, GOOD_NAME)
    return writer.start(target.path) if target.table is None else writer.toTable(target.table)


def _begin_bad(rows: DataFrame, settings: IngestSettings) -> StreamingQuery:
    return _triggered(rows.writeStream.format("parquet"), settings, BAD_NAME).start(
        settings.bad_rows
    )


def _triggered(writer: DataStreamWriter, settings: IngestSettings, name: str) -> DataStreamWriter:
    folder = below(settings.checkpoint, name)
    writer = writer.outputMode("append").option("checkpointLocation", folder)
    if settings.once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{round(settings.trigger_seconds * 1000)} milliseconds")


def _followed(
    queries: list[StreamingQuery],
    batches: dict[str, Batches],
    stop: Callable[[], bool],
    report: Report,
) -> bool:
    """Follow the queries to their end; return whether *stop* ended them."""
    stopped = False
    try:
        while not stopped and any(q.isActive for q in queries) and not any(map(_failed, queries)):
            _look(queries, batches, report)
            time.sleep(LOOK_SECONDS)
            stopped = stop()
    finally:
        for query in queries:
            _end(query)
    _look(queries, batches, report)
    for query in queries:
        query.awaitTermination()  # raises what it failed with
    return stopped


def _failed(query: StreamingQuery) -> bool:
    return not query.isActive and query.exception() is not None


def _look(queries: list[StreamingQuery], batches: dict[str, Batches], report: Report) -> None:
    for query in queries:
        batches[query.id].add(query.recentProgress, OBSERVED)
    first = batches[queries[0].id]
    report("ingesting", first.rows, 0)


def _end(query: StreamingQuery) -> None:
    """Stop a query between two batches, if one ends in time."""
    deadline = time.monotonic() + STOP_SECONDS
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    query.stop()


def _summary(
    settings: IngestSettings, read: Batches, began: float, *, interrupted: bool
) -> IngestSummary:
    queues = tuple(map(QueueCount.of, read.ranges))
    offsets = sum(each.offsets for each in queues)
    filtered = settings.selection.filtered
    wrong = [] if filtered or read.rows == offsets else [_short(read.rows, offsets)]
    return IngestSummary(
        target=settings.target.name,
        rows=read.rows,
        bad=read.counted.get(BAD, 0),
        filtered=filtered,
        interrupted=interrupted,
        queues=queues,
        seconds=time.monotonic() - began,
        problems=tuple(wrong),
    )


def _short(rows: int, offsets: int) -> str:
    return f"{rows} messages were read from {offsets} offsets: some are gone or came twice"
