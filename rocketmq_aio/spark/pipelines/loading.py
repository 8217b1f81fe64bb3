"""Files -> a topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.properties import SHARDING_KEY
from rocketmq_aio.spark.options import values as values
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.copies import AS_THEY_ARE, keys, own_properties
from rocketmq_aio.spark.pipelines.formats import check_format
from rocketmq_aio.spark.pipelines.progress import StoppedError, watched
from rocketmq_aio.spark.pipelines.reports import Report, quiet
from rocketmq_aio.spark.pipelines.summary import Summary
from rocketmq_aio.spark.pipelines.target import COORDINATES, CSV, overridden
from rocketmq_aio.spark.pipelines.writing import Growth, send

BODIES: Final = ("plain", "base64")
WHOLE_ROW: Final = "*"
COLUMNS: Final = (
    *("body", "tags", "keys", "properties", "flag", "shardingKey"),
    *("delayLevel", "deliverTimestamp", "brokerName", "queueId"),
)
TYPES: Final = {
    **dict.fromkeys(("flag", "delayLevel", "queueId"), "int"),
    "deliverTimestamp": "timestamp",
}
EXPORTED: Final = ("body", "tags", "keys", "properties", "flag")  # and the sharding key in there
LATER: Final = frozenset({"delayLevel", "deliverTimestamp"})  # not in the topic at once


@settings
class LoadSettings:
    """What `load` does.

    :param path: files or folders, as Spark takes them
    :param format: parquet, json, csv, orc, text ...; csv is RFC 4180 with a header unless
        *read_options* say otherwise
    :param columns: column of a message -> column of the files, such as
        ``{"body": "payload", "keys": "id"}``; ``{"body": "*"}`` makes bodies of whole rows, as
        JSON; empty: columns of the files that are named as messages name them, of an export
        body, tags, keys, flag, sharding key and the application's properties
    :param body: how the files hold bodies: ``plain``, or in ``base64`` as exports to text do
    :param schema: of the files, such as ``"id long, name string"``; None: what the files say
    :param read_options: of the format; *options*: further options of the sink
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
        values.topic("topic", self.topic)
        check_format(self.format)
        if self.body not in BODIES:
            raise ConfigError("body", self.body, f"expected one of {', '.join(BODIES)}")
        for name in self.columns:
            if name not in COLUMNS:
                reason = f"messages have no such column; they have {', '.join(COLUMNS)}"
                raise ConfigError("columns", name, reason)
        if self.columns and "body" not in self.columns:
            raise ConfigError("columns", dict(self.columns), 'body is not given: add body="*"')


@dataclass(frozen=True, kw_only=True)
class LoadSummary(Summary):
    """What `load` did.

    :ivar rows: how many rows the files have
    :ivar sent: how many messages were sent
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
    report: Report = quiet,
) -> LoadSummary:
    """Send each row of the files as a message.

    The same files loaded again are sent again.

    :param stop: asked all the time; True cancels the jobs under way, and the summary says how
        many messages are stored
    :raises ConfigError: a setting cannot be, or names a column that the files do not have
    :raises RocketMQError: brokers cannot be asked
    :raises PySparkException: Spark could not read or send; others may be stored
    """
    began = time.monotonic()
    files = _files(spark, settings)
    rows = mapped(files, settings.columns)
    if settings.body == "base64":
        rows = rows.withColumn("body", F.unbase64("body"))
    checks = AS_THEY_ARE if _is_export(files, settings.columns) else {}
    options = {**checks, "topic": settings.topic, **settings.options}
    found = LoadSummary(dry_run=dry_run, topic=settings.topic)
    try:
        with watched(spark, "counting", report, stop):
            found = replace(found, rows=files.count())
        if not dry_run:
            found = _sent(
                found, settings, rows, options, partial(watched, report=report, stop=stop)
            )
    except StoppedError as error:
        found = replace(found, interrupted=True, problems=(f"{error}: nothing is sent",))
    return replace(found, seconds=time.monotonic() - began)


def _sent(
    found: LoadSummary,
    settings: LoadSettings,
    rows: DataFrame,
    options: Mapping[str, str],
    watch: Callable[[SparkSession, str], AbstractContextManager[None]],
) -> LoadSummary:
    growth = Growth(settings.connection, [settings.topic])
    try:
        with watch(rows.sparkSession, "sending"):
            sent = send(rows, settings.connection, options)
    except StoppedError as error:
        if not error.begun:
            raise
        stored = growth.stored()
        problem = f"{error}: {stored} of {found.rows} messages are stored"
        return replace(found, sent=stored, interrupted=True, problems=(problem,))
    problems = [] if LATER & set(rows.columns) else growth.problems(sent)
    if sent != found.rows:
        problems.append(f"{settings.path}: {found.rows} rows are there, {sent} were sent")
    return replace(found, sent=sent, problems=tuple(problems))


def _files(spark: SparkSession, settings: LoadSettings) -> DataFrame:
    options = overridden(CSV if settings.format == "csv" else {}, settings.read_options)
    reader = spark.read.format(settings.format).options(**options)
    if settings.schema is not None:
        reader = reader.schema(settings.schema)
    return reader.load(settings.path)


def mapped(files: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Return rows for the sink.

    What an export wrote is sent like a copy: what belongs to the system does not go along.

    :raises ConfigError: the files have no such column, or none for the body
    """
    if _is_export(files, columns):
        return _exported(files)
    chosen = dict(columns) or {name: name for name in files.columns if name in COLUMNS}
    if "body" not in chosen:
        reason = f'the files have no column body, but {", ".join(files.columns)}: say body="*"'
        raise ConfigError("columns", None, reason)
    return files.select(*(_column(files, to, name).alias(to) for to, name in chosen.items()))


def _is_export(files: DataFrame, columns: Mapping[str, str]) -> bool:
    return not columns and {*COORDINATES, "body"} <= set(files.columns)


def _exported(files: DataFrame) -> DataFrame:
    taken = {name: _column(files, name, name) for name in EXPORTED if name in files.columns}
    rows = files.select(*(column.alias(name) for name, column in taken.items()))
    changed = {"keys": keys()} if "keys" in taken else {}
    if "properties" in taken:
        changed["properties"] = own_properties()
        changed["shardingKey"] = F.col("properties")[SHARDING_KEY]
    return rows.withColumns(changed) if changed else rows


def _column(files: DataFrame, to: str, name: str) -> Column:
    if name == WHOLE_ROW and to == "body":
        row = F.struct(*(F.col(f"`{each}`") for each in files.columns))
        return F.to_json(row, {"ignoreNullFields": "false"})
    if name not in files.columns:
        reason = f"the files have no such column; they have {', '.join(files.columns)}"
        raise ConfigError("columns", name, reason)
    return _typed(F.col(f"`{name}`"), to, files.schema[name].dataType)


def _typed(column: Column, to: str, kind: DataType) -> Column:
    """Return *column* with the type that messages have there; text files know text only."""
    if to == "properties":
        if isinstance(kind, StructType):  # what Spark takes JSON objects for
            column = F.to_json(column)
        text = isinstance(kind, StringType | StructType)
        return F.from_json(column, "map<string,string>") if text else column
    if (to == "keys" and isinstance(kind, ArrayType)) or isinstance(kind, BinaryType):
        return column
    if isinstance(kind, StringType) and to in TYPES:
        column = F.nullif(column, F.lit(""))  # a field of quotes only
    return column.cast(TYPES.get(to, "string"))
