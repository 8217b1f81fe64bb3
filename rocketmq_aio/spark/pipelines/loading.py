"""Load of files into a topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    DataType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.properties import SHARDING_KEY
from rocketmq_aio.spark.arrow import row_schema
from rocketmq_aio.spark.options import values as values
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.folders import has_files
from rocketmq_aio.spark.pipelines.formats import (
    FILE_FORMATS,
    check_choice,
    check_columns,
    check_format,
)
from rocketmq_aio.spark.pipelines.progress import StoppedError, Watch, watch_jobs
from rocketmq_aio.spark.pipelines.sending import (
    ANY_TAGS,
    TopicGrowth,
    check_sink_options,
    kept_priority,
    send_rows,
    split_keys,
    user_properties,
)
from rocketmq_aio.spark.pipelines.summary import Report, Summary, no_report
from rocketmq_aio.spark.pipelines.target import COORDINATES, CSV, with_defaults
from rocketmq_aio.spark.read.data_loss import warn

BODIES: Final = ("plain", "base64")
WHOLE_ROW: Final = "*"
COLUMNS: Final = tuple(name for name in row_schema.COLUMNS if name != "topic")
TYPES: Final = {
    **dict.fromkeys(("flag", "delayLevel", "priority", "queueId"), "int"),
    "deliverTimestamp": "timestamp",
}
# The columns of an export that are sent; properties include the sharding key.
EXPORTED: Final = ("body", "tags", "keys", "properties", "flag", "priority")
# A row that is no row of the format fails the job; Spark would drop fields, or the whole row.
# Unless all columns of csv are read, Spark does not see that a row has too many or too few.
STRICT: Final = {
    "csv": {**CSV, "mode": "FAILFAST", "columnPruning": "false"},
    "json": {"mode": "FAILFAST"},
}
NO_SCHEMA: Final = "UNABLE_TO_INFER_SCHEMA"
INFERENCE: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"
_inference: Final = threading.Lock()  # of the setting: threads share a session
SHOWN_CHARACTERS: Final = 40  # of an invalid value, in the error
WITH_NULLS: Final = {"ignoreNullFields": "false"}
DELAYS: Final = frozenset({"delayLevel", "deliverTimestamp"})  # store messages later


@settings
class LoadSettings:
    """Settings of `load`.

    :param path: files or folders, in the form that Spark accepts
    :param format: parquet, json, csv, orc, text ...; csv is RFC 4180 with a header by default
    :param columns: column of a message -> column of the files, such as
        ``{"body": "payload", "keys": "id"}``; ``{"body": "*"}`` writes whole rows as JSON bodies;
        empty: the columns of the files that have names of message columns; of an export: body,
        tags, keys, flag, priority, sharding key and user properties
    :param body: form of bodies in the files: ``plain``, or ``base64`` as in exports to csv or json
    :param schema: of the files, such as ``"id long, name string"``; None: from the files
    :param read_options: options of the format; *options*: further options of the sink
    """

    connection: Connection
    topic: str
    path: str
    format: str = "parquet"
    columns: Mapping[str, str] = field(default_factory=dict)
    body: str = "plain"
    schema: str | None = None
    read_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        values.topic("topic", self.topic)
        object.__setattr__(self, "format", check_format(self.format))
        check_choice("body", self.body, BODIES)
        check_columns(self.columns, COLUMNS)
        check_sink_options(self.connection, self.options)
        if self.columns and "body" not in self.columns:
            raise ConfigError("columns", dict(self.columns), 'body is not given: add body="*"')


@dataclass(frozen=True, kw_only=True)
class LoadSummary(Summary):
    """Result of `load`.

    :ivar rows: number of rows in the files; *sent*: number of messages sent
    """

    pipeline: str = "load"
    topic: str = ""
    rows: int = 0
    sent: int = 0


def load(
    spark: SparkSession,
    settings: LoadSettings,
    *,
    dry_run: bool = False,
    stop: Callable[[], bool] = bool,
    report: Report = no_report,
) -> LoadSummary:
    """Send each row of the files as a message; a second load sends them again.

    :param stop: polled; True cancels the running jobs, and the summary says how many messages
        are stored
    :raises ConfigError: a setting is invalid, or names a column that the files do not have
    :raises RocketMQError: a request to a broker failed
    :raises PySparkException: Spark could not read or send; the warning ``load_stopped`` says how
        many messages are stored
    """
    began = time.monotonic()
    files = _read_files(spark, settings)
    if files is None:
        return LoadSummary(dry_run=dry_run, topic=settings.topic)
    rows = map_columns(files, settings.columns)
    if settings.body == "base64":
        value = F.try_to_binary(F.col("body").cast("string"), F.lit("base64"))  # unbase64 skips
        rows = rows.withColumn("body", _converted(F.col("body"), value, "a body is no base64"))
    checks = ANY_TAGS if _is_export(files, settings.columns) else {}
    options = {**checks, "topic": settings.topic, **settings.options}
    summary = LoadSummary(dry_run=dry_run, topic=settings.topic)
    watch = partial(watch_jobs, spark, report=report, stop=stop)
    try:
        with watch("counting"):
            summary = replace(summary, rows=files.count())
        if not dry_run:
            summary = _send(summary, settings, rows, options, watch)
    except StoppedError as error:
        summary = replace(summary, interrupted=True, problems=(f"{error}: nothing is sent",))
    return replace(summary, seconds=time.monotonic() - began)


def _send(
    summary: LoadSummary,
    settings: LoadSettings,
    rows: DataFrame,
    options: Mapping[str, str],
    watch: Watch,
) -> LoadSummary:
    delayed = not DELAYS.isdisjoint(rows.columns)
    growth = TopicGrowth(settings.connection, [settings.topic], delayed=delayed)
    try:
        with watch("sending"):
            sent = send_rows(rows, settings.connection, options)
    except StoppedError as error:
        if not error.started:
            raise
        stored, found = growth.count()
        problem = f"{error}: of {summary.rows} messages, {found}"
        return replace(summary, sent=stored or 0, interrupted=True, problems=(problem,))
    except Exception:  # also what `stop` raises
        warn("load_stopped", result=f"of {summary.rows} messages, {growth.count()[1]}")
        raise
    problems = growth.problems(sent)
    if sent != summary.rows:
        problems.append(f"{settings.path}: {summary.rows} rows are there, {sent} were sent")
    return replace(summary, sent=sent, problems=tuple(problems))


def _read_files(spark: SparkSession, settings: LoadSettings) -> DataFrame | None:
    """Return the rows; None if there are no files, or only empty ones: an export of no messages."""
    try:
        files = _read_rows(spark, settings)
        return files if files.columns or not files.isEmpty() else None
    except AnalysisException as error:
        if error.getCondition() != NO_SCHEMA or has_files(spark, settings.path):
            raise
        return None


def _read_rows(spark: SparkSession, settings: LoadSettings) -> DataFrame:
    options = with_defaults(STRICT.get(settings.format, {}), settings.read_options)
    reader = spark.read.format(settings.format).options(**options)
    if settings.schema is not None:
        return reader.schema(settings.schema).load(settings.path)
    if WHOLE_ROW in settings.columns.values() or settings.format not in FILE_FORMATS:
        return reader.load(settings.path)
    # A partition column such as keys=007 is text; as a number it would lose the zeros.
    with _inference:
        before = spark.conf.get(INFERENCE)
        spark.conf.set(INFERENCE, "false")
        try:
            schema = reader.load(settings.path).schema
        finally:
            spark.conf.set(INFERENCE, str(before))
    return reader.schema(schema).load(settings.path)


def map_columns(files: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Return rows for the sink, without the system properties in files of an export.

    :raises ConfigError: the files have no such column, or none for the body
    """
    if _is_export(files, columns):
        return _map_export(files)
    named = {name.lower(): name for name in COLUMNS}  # as in the sink
    own = {named[each.lower()]: each for each in files.columns if each.lower() in named}
    chosen = dict(columns) or own
    if "body" not in chosen:
        names = ", ".join(files.columns)
        reason = f'the files have no column body; they have {names}: give body="*"'
        raise ConfigError("columns", None, reason)
    return files.select(*(_column(files, to, name).alias(to) for to, name in chosen.items()))


def _is_export(files: DataFrame, columns: Mapping[str, str]) -> bool:
    return not columns and {*COORDINATES, "body"} <= set(files.columns)


def _map_export(files: DataFrame) -> DataFrame:
    taken = [name for name in EXPORTED if name in files.columns]
    rows = files.select(*(_column(files, name, name).alias(name) for name in taken))
    changed = {"keys": split_keys()} if "keys" in taken else {}
    if "properties" in taken:
        changed["properties"] = user_properties()
        changed["shardingKey"] = F.col("properties")[SHARDING_KEY]
        if "priority" in taken:
            changed["priority"] = kept_priority()
    return rows.withColumns(changed) if changed else rows


def _column(files: DataFrame, to: str, name: str) -> Column:
    if name == WHOLE_ROW and to == "body":
        row = F.struct(*(_named(each) for each in files.columns))
        return F.to_json(row, WITH_NULLS)
    if name not in files.columns:
        reason = f"the files have no such column; they have {', '.join(files.columns)}"
        raise ConfigError("columns", name, reason)
    return _cast(_named(name), to, files.schema[name].dataType)


def _named(name: str) -> Column:
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def _cast(column: Column, to: str, kind: DataType) -> Column:
    """Return *column* with the type of the message column *to*; text files hold only text."""
    if to == "properties":
        return _properties(column, kind)
    if to == "keys" and isinstance(kind, ArrayType) and isinstance(kind.elementType, AtomicType):
        return column.cast("array<string>")
    if to == "body" and isinstance(kind, StructType | ArrayType | MapType):
        return F.to_json(column, WITH_NULLS)
    if not isinstance(kind, AtomicType | NullType) or isinstance(kind, BinaryType):
        return column  # as a text it would have Spark's own form: the sink names it
    return _value(column, to, kind) if to in TYPES else column.cast("string")


def _properties(column: Column, kind: DataType) -> Column:
    if isinstance(kind, MapType) and isinstance(kind.valueType, AtomicType):
        return column.cast("map<string,string>")
    if not isinstance(kind, StringType | StructType):
        return column
    text = column if isinstance(kind, StringType) else F.to_json(column)  # of a JSON object
    given = F.nullif(F.trim(text), F.lit(""))
    value = F.from_json(given, "map<string,string>")
    return _converted(given, value, "properties are no JSON object of texts")


def _value(column: Column, to: str, kind: DataType) -> Column:
    """Return *column* as the number or time *to*."""
    if to == "deliverTimestamp" and isinstance(kind, IntegralType):
        return column.cast("bigint")  # milliseconds, as in the sink; Spark would cast seconds
    if isinstance(kind, StringType):
        column = F.nullif(column, F.lit(""))  # a field of quotes only
    value = column.try_cast(TYPES[to])
    if isinstance(kind, FractionalType) and TYPES[to] == "int":
        value = F.when(value == column, value)
    return _converted(column, value, f"{to} is no {TYPES[to]}")


def _converted(given: Column, value: Column, reason: str) -> Column:
    """Return *value*; if it is null and *given* is not, the job fails, also without ANSI mode."""
    text = F.concat(F.lit(f"{reason}: "), F.substring(given.cast("string"), 1, SHOWN_CHARACTERS))
    return F.when(given.isNotNull() & value.isNull(), F.raise_error(text)).otherwise(value)
