"""Streaming ingest of messages into files or a table; bodies can be parsed by a schema."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.arrow.columns import COLUMNS
from rocketmq_aio.spark.offsets import LATEST, Queue, Range, StreamOffset
from rocketmq_aio.spark.options import values as values
from rocketmq_aio.spark.options.source_options import Connection, ReadOptions, read_options
from rocketmq_aio.spark.pipelines.bodies import BAD, VALUE, BodySchema, parse_bodies
from rocketmq_aio.spark.pipelines.folders import (
    OWNERS,
    below,
    claim,
    has_files,
    has_sink_log,
    last_batch,
    read_text,
    write_text,
)
from rocketmq_aio.spark.pipelines.formats import FILE_FORMATS
from rocketmq_aio.spark.pipelines.progress import logged
from rocketmq_aio.spark.pipelines.row_counts import mark_sparse
from rocketmq_aio.spark.pipelines.selection import FORMAT, Selection, stream_options
from rocketmq_aio.spark.pipelines.summary import QueueCount, Report, Summary, no_report
from rocketmq_aio.spark.pipelines.target import Target, format_options, prepare_rows, read_back
from rocketmq_aio.spark.read.stream_reader import stream_start

POLL_SECONDS: Final = 0.2
STOP_SECONDS: Final = 60.0  # for the running batch when the stream is stopped
GOOD_NAME: Final = "messages"
BAD_NAME: Final = "bad"
START_NAME: Final = "start"  # file next to the checkpoints: where both queries start
OBSERVED: Final = "ingest"
OWNER_DIGITS: Final = 16
# A duration that only batches have; progress of an idle query has the id of the next batch.
RAN: Final = "addBatch"
NOT_EMPTY: Final = (
    "is not empty, and the checkpoint is new: Spark would skip batches, and lose their messages. "
    "Use an empty one, or the checkpoint that belongs to it"
)

SHARED: Final = (
    "another checkpoint began to write to this folder: Spark would skip batches of one of them, "
    "and lose their messages. Use another folder, or delete {} if no such ingest ran"
)


@settings
class IngestSettings:
    """Settings of `ingest`.

    :param checkpoint: folder of Spark's progress; with the same folder, a later run continues
    :param body: schema of bodies; None: bodies are written unchanged
    :param bad_rows: folder for messages whose bodies do not match the schema, as parquet
    :param once: read the stored messages, then end; otherwise run until stopped
    :param trigger_seconds: interval of batches; 0: without pauses
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
        check_fields(self)
        for name in ("checkpoint", "bad_rows"):
            if (folder := getattr(self, name)) is not None and not folder.strip():
                raise ConfigError(name, folder, "is empty: give a folder")
        self.target.check_partitions(COLUMNS)
        _read_options(self)
        if self.target.mode == "overwrite":
            reason = "a stream appends: use append, or leave it out"
            raise ConfigError("mode", self.target.mode, reason)
        if self.body is not None and self.bad_rows is None:
            reason = "not given: give a folder for bodies that do not match"
            raise ConfigError("bad_rows", None, reason)
        if self.body is None and self.bad_rows is not None:
            raise ConfigError("bad_rows", self.bad_rows, "needs a schema of bodies")
        if self.bad_rows is not None and _overlap(self.bad_rows, self.target.path):
            reason = "overlaps the target: two streams would skip each other's batches"
            raise ConfigError("bad_rows", self.bad_rows, reason)
        if self.selection.end != "latest":
            reason = "a stream has no end: export a range instead"
            raise ConfigError("end", self.selection.end, reason)


def _overlap(path: str, other: str | None) -> bool:
    """Return whether one folder contains the other or is the same."""
    if other is None:
        return False
    first, second = f"{path.rstrip('/')}/", f"{other.rstrip('/')}/"
    return first.startswith(second) or second.startswith(first)


@dataclass(frozen=True, kw_only=True)
class IngestSummary(Summary):
    """Result of one run of `ingest`; the next run continues at the ends of the queues.

    :ivar rows: number of messages read; *bad*: number of bodies that do not match the schema
    :ivar interrupted: the stream was stopped; an unfinished batch is repeated by the next run
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
    report: Report = no_report,
) -> IngestSummary:
    """Append messages to the target, exactly once in files, Delta and Iceberg.

    With a schema of bodies two queries run, for good and for bad rows, each with its own
    checkpoint, so that both targets get each message once even if processes are killed.

    :param stop: polled; True ends the stream after the running batch
    :raises ConfigError: a setting is invalid, Spark lacks a jar, or the checkpoint is new and a
        target is not empty
    :raises RocketMQError: a request to a broker failed
    :raises PySparkException: a query failed; the next run continues where it was
    """
    began = time.monotonic()
    if dry_run:
        return _dry_run(settings, began)
    check_targets(spark, settings)
    # Of the query of good rows: both read all messages.
    read = BatchSums(last_batch(spark, _offset_log(settings, GOOD_NAME)))
    interrupted = _wait_for_end(_start_queries(spark, settings), read, stop, report)
    return _summarize(settings, read, began, interrupted=interrupted)


def _dry_run(settings: IngestSettings, began: float) -> IngestSummary:
    """Return what a first run would read now; ignores the checkpoint."""
    start, ends = stream_start(_read_options(settings))
    ranges = [Range(*each, at, max(at, ends[each])) for each, at in sorted(start.end.items())]
    return IngestSummary(
        dry_run=True,
        target=settings.target.name,
        filtered=settings.selection.filtered,
        queues=tuple(map(QueueCount.of, ranges)),
        seconds=time.monotonic() - began,
    )


def _start_offsets(settings: IngestSettings) -> str:
    """Return the start as offsets, so that two queries start at the same offsets."""
    selection = settings.selection
    if _is_offsets(selection.start):
        return selection.start  # not looked up: these may be deleted when a checkpoint continues
    start, _ = stream_start(_read_options(settings))
    return json.dumps(start.to_json())


def _read_options(settings: IngestSettings) -> ReadOptions:
    options = stream_options(settings.connection, settings.selection)
    return read_options(options, streaming=True)


def _is_offsets(start: str) -> bool:
    if not start.lstrip().startswith("{"):
        return False
    offsets = values.offsets()("start", start)
    return isinstance(offsets, dict) and LATEST not in offsets.values()


def check_targets(spark: SparkSession, settings: IngestSettings) -> None:
    """Raise `ConfigError` if the checkpoint of a query is new and its target is used or not empty.

    A folder of files has a log of the batches written to it.  Batches of a new checkpoint have
    the same ids, so that Spark would skip them.

    Also if only one of two queries would continue: bad rows between both would be in no target.
    """
    if _is_new(spark, settings, GOOD_NAME):
        _check_target(spark, settings)
    elif (_read_start(spark, settings) is None) != (settings.body is None):
        began = "with" if settings.body is None else "without"
        reason = f"began {began} a schema of bodies: continue so, or give a new one and new targets"
        raise ConfigError("checkpoint", settings.checkpoint, reason)
    folder = settings.bad_rows
    if folder is not None and _is_new(spark, settings, BAD_NAME):
        _check_folder(spark, settings, "bad_rows", folder, folder)


def _is_new(spark: SparkSession, settings: IngestSettings, name: str) -> bool:
    """Return whether the query *name* has planned no batch, and so has written nothing."""
    return last_batch(spark, _offset_log(settings, name)) < 0


def _offset_log(settings: IngestSettings, name: str) -> str:
    return below(below(settings.checkpoint, name), "offsets")


def _check_folder(
    spark: SparkSession, settings: IngestSettings, setting: str, name: str, path: str
) -> None:
    """Reject a folder that is not empty or that another checkpoint has claimed."""
    if has_files(spark, path) or has_sink_log(spark, path):
        raise ConfigError(setting, name, NOT_EMPTY)
    owner = sha256(settings.checkpoint.rstrip("/").encode()).hexdigest()[:OWNER_DIGITS]
    if not claim(spark, path, owner):
        raise ConfigError(setting, name, SHARED.format(below(path, OWNERS)))


def _check_target(spark: SparkSession, settings: IngestSettings) -> None:
    target = settings.target
    kind, place = (target.format, target.path)
    if target.table is not None:
        about = _describe_table(spark, target.table)
        kind, place = about.get("Provider", kind), about.get("Location")
    # Sinks of files skip batches whose ids are in their log, even if another checkpoint wrote them.
    if kind.lower() not in FILE_FORMATS:
        # Tables such as Delta's distinguish the batches of different checkpoints.
        if target.mode != "append" and _has_rows(spark, target):
            reason = "is not empty: give mode append, or another target"
            raise ConfigError("target", target.name, reason)
    elif place is not None:
        _check_folder(spark, settings, "target", target.name, place)


def _describe_table(spark: SparkSession, table: str) -> dict[str, str]:
    """Return Spark's description of a table; empty if the table does not exist."""
    try:
        return {row[0]: row[1] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()}
    except AnalysisException:
        return {}


def _has_rows(spark: SparkSession, target: Target) -> bool:
    try:
        return bool(read_back(spark, target, StructType()).take(1))
    except AnalysisException:  # no such table, or a folder without one
        return False


def _start_queries(spark: SparkSession, settings: IngestSettings) -> list[StreamingQuery]:
    if settings.body is None:
        return [_start_query(_read_stream(spark, settings), settings, settings.target, GOOD_NAME)]
    selection = replace(settings.selection, start=_stored_start(spark, settings))
    one_start = replace(settings, selection=selection)
    good, bad = (_parse(_read_stream(spark, one_start), settings.body) for _ in range(2))
    good, bad = good.where(~F.col(BAD)).drop(BAD, "body"), bad.where(BAD).drop(BAD, VALUE)
    bad_target = Target(path=settings.bad_rows, partition_by=())
    first = _start_query(good, settings, settings.target, GOOD_NAME)
    try:
        return [first, _start_query(bad, settings, bad_target, BAD_NAME)]
    except BaseException:
        first.stop()
        raise


def _stored_start(spark: SparkSession, settings: IngestSettings) -> str:
    """Return the start of the first run, which is stored next to the checkpoints.

    If a run is killed when only one query has its checkpoint, the next run starts the other
    query: a start such as ``latest`` would have moved by then.
    """
    kept = _read_start(spark, settings)
    if kept is None:
        kept = _start_offsets(settings)
        write_text(spark, below(settings.checkpoint, START_NAME), kept)
    return kept


def _read_start(spark: SparkSession, settings: IngestSettings) -> str | None:
    """Return the start that a run with a schema of bodies stored."""
    return read_text(spark, below(settings.checkpoint, START_NAME))


def _read_stream(spark: SparkSession, settings: IngestSettings) -> DataFrame:
    """Return a stream of messages; each query needs its own."""
    options = stream_options(settings.connection, settings.selection)
    return spark.readStream.format(FORMAT).options(**options).load()


def _parse(messages: DataFrame, body: BodySchema) -> DataFrame:
    rows = parse_bodies(messages, body)
    return rows.observe(OBSERVED, F.count(F.lit(1)).alias("rows"), F.count_if(BAD).alias(BAD))


def _start_query(
    rows: DataFrame, settings: IngestSettings, target: Target, name: str
) -> StreamingQuery:
    writer = prepare_rows(rows, target).writeStream.format(target.format).outputMode("append")
    writer = writer.options(**format_options(target))
    writer = writer.option("checkpointLocation", below(settings.checkpoint, name))
    if settings.once:
        writer = writer.trigger(availableNow=True)
    else:
        interval = f"{round(settings.trigger_seconds * 1000)} milliseconds"
        writer = writer.trigger(processingTime=interval)
    if target.partition_by:
        writer = writer.partitionBy(*target.partition_by)
    return writer.start(target.path) if target.table is None else writer.toTable(target.table)


def _wait_for_end(
    queries: list[StreamingQuery], read: BatchSums, stop: Callable[[], bool], report: Report
) -> bool:
    """Wait until the queries end; return whether *stop* ended them."""
    stopped, report = False, logged(report)
    with ExitStack() as stopping:  # stops every query, even if one raises or is interrupted
        for query in queries:
            stopping.callback(_stop_query, query)
        try:
            while not stopped and any(q.isActive for q in queries) and not _any_failed(queries):
                _update(queries[0], read, report)
                time.sleep(POLL_SECONDS)
                stopped = stop() and any(each.isActive for each in queries)
        finally:
            _stop_between_batches(queries)
    _update(queries[0], read, report)
    for query in queries:
        query.awaitTermination()  # raises the error of the query
    return stopped


def _any_failed(queries: Iterable[StreamingQuery]) -> bool:
    return any(not each.isActive and each.exception() is not None for each in queries)


def _update(query: StreamingQuery, read: BatchSums, report: Report) -> None:
    read.add(query.recentProgress)
    report("ingesting", read.rows, 0)


def _stop_query(query: StreamingQuery) -> None:
    if query.isActive:
        query.stop()


def _stop_between_batches(queries: Iterable[StreamingQuery]) -> None:
    """Stop each query after its batch; those in a batch after `STOP_SECONDS` keep running."""
    deadline, running = time.monotonic() + STOP_SECONDS, list(queries)
    while running := [each for each in running if not _stopped_if_idle(each)]:
        if time.monotonic() >= deadline:
            return
        time.sleep(POLL_SECONDS)


def _stopped_if_idle(query: StreamingQuery) -> bool:
    if query.isActive and query.status["isTriggerActive"]:
        return False
    _stop_query(query)
    return True


def _summarize(
    settings: IngestSettings, read: BatchSums, began: float, *, interrupted: bool
) -> IngestSummary:
    queues = [*map(QueueCount.of, read.ranges)]
    offsets = sum(each.offsets for each in queues)
    filtered = settings.selection.filtered
    problems = []
    counts = f"{read.rows} messages were read from {offsets} offsets"
    if read.rows > offsets:
        problems.append(f"{counts}: some are repeated")
    elif read.rows < offsets and not filtered:
        queues = mark_sparse(settings.connection, queues)
        if not any(each.sparse for each in queues):
            problems.append(f"{counts}: some are missing")
    if settings.once and interrupted:
        problems.append("stopped before all stored messages were read: the next run continues")
    return IngestSummary(
        target=settings.target.name,
        rows=read.rows,
        bad=read.bad,
        filtered=filtered,
        interrupted=interrupted,
        queues=tuple(queues),
        seconds=time.monotonic() - began,
        problems=tuple(problems),
    )


class BatchSums:
    """Adds up each batch once; call `add` often, because Spark drops the progress of old ones.

    A batch that an earlier run planned and that has no rows now is not added: that run wrote it and
    was killed before Spark noted that, and sinks skip batches that they have.

    :param planned: the last batch that an earlier run planned
    """

    def __init__(self, planned: int = -1) -> None:
        self.rows = 0
        self.bad = 0
        self._last = -1
        self._planned = planned
        self._read: dict[Queue, list[Range]] = {}  # several for a queue that starts over

    def add(self, progress: Iterable[Any]) -> None:
        """Add the new batches in *progress*, Spark's objects in the order of their batches."""
        for each in progress:
            if RAN in each.durationMs and each.batchId > self._last and each.sources:
                self._last = each.batchId
                if each.sources[0].numInputRows == 0 and each.batchId <= self._planned:
                    continue
                self._add_batch(each.sources[0], each.observedMetrics.get(OBSERVED))

    def _add_batch(self, source: Any, counts: Any) -> None:  # noqa: ANN401 - Spark's objects
        self.rows += source.numInputRows
        self.bad += 0 if counts is None else _observed(counts.asDict())[BAD]
        before, after = _stream_offset(source.startOffset), _stream_offset(source.endOffset)
        for queue, end in after.end.items():
            ranges = self._read.setdefault(queue, [])
            if ranges and queue not in after.starts:
                ranges[-1] = ranges[-1]._replace(end=end)
            else:
                start = after.start_of(queue, before)
                ranges.append(Range(*queue, end if start is None else start, end))

    @property
    def ranges(self) -> list[Range]:
        """Ranges sorted by queue; a queue that starts over has one for each log, in order."""
        return [each for queue in sorted(self._read) for each in self._read[queue]]


def _observed(counts: dict[str, Any]) -> dict[str, Any]:
    """Return observed values by name; Spark Connect has one list of values and a schema."""
    if "schema" not in counts:
        return counts
    names = [field["name"] for field in counts["schema"]["fields"]]
    return dict(zip(names, counts["values"], strict=True))


def _stream_offset(text: str | None) -> StreamOffset:
    """Decode an offset of the progress; before the first batch there is none."""
    found = json.loads(text) if text else None
    return StreamOffset.from_json(found) if found else StreamOffset(at_start=True)
