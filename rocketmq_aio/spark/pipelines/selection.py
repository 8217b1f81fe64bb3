"""Selection of messages: topics, range and filter, as options of the source."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, fields
from itertools import chain
from typing import Final, get_args

from pyspark.sql import DataFrame, SparkSession

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.arrow.columns import SCHEMA
from rocketmq_aio.spark.offsets import Range, nested
from rocketmq_aio.spark.options import values as values
from rocketmq_aio.spark.options.source_options import (
    OPTIONS,
    Connection,
    EndingWord,
    ReadOptions,
    StartingWord,
    read_options,
)
from rocketmq_aio.spark.read.start_end import batch_ranges

FORMAT: Final = "rocketmq"
ALL: Final = "*"
WORDS: Final = {"starting": get_args(StartingWord), "ending": get_args(EndingWord)}


@settings
class Selection:
    """Messages that a pipeline reads.

    :param topics: names of topics; *pattern*, a regular expression, replaces them
    :param start: ``earliest``, ``group``, a time, or offsets as JSON; in streams ``latest`` too
    :param end: likewise, exclusive; ``latest`` is where the queues end when the pipeline starts
    :param expression: tags such as ``"new || paid"``; *sql*, a condition, replaces it
    :param fail_on_data_loss: False continues where messages have been deleted
    :param options: further options of the source
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    start: str = "earliest"
    end: str = "latest"
    expression: str = ALL
    sql: str | None = None
    fail_on_data_loss: bool = True
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if bool(self.topics) == (self.pattern is not None):
            raise ConfigError("topics", self.topics, "give topics or a pattern, one of them")
        if self.sql is not None and self.expression != ALL:
            raise ConfigError("sql", self.sql, "give an expression or sql, one of them")
        position_options("starting", self.start)  # raises on an invalid position
        position_options("ending", self.end)

    @property
    def filtered(self) -> bool:
        """Whether the filter may exclude messages of the topics."""
        return self.sql is not None or self.expression.strip() != ALL


def batch_options(connection: Connection, selection: Selection) -> dict[str, str]:
    """Return the options of a batch read."""
    end = position_options("ending", selection.end)
    return merge_options(stream_options(connection, selection), end)


def batch_read_options(connection: Connection, selection: Selection) -> ReadOptions:
    """Return the parsed `batch_options`; raise `ConfigError` if one is invalid."""
    return read_options(batch_options(connection, selection), streaming=False)


def stream_options(connection: Connection, selection: Selection) -> dict[str, str]:
    """Return the options of a streaming read, which has no end."""
    pattern = selection.pattern
    topics = {"subscribe": ",".join(selection.topics)}
    return merge_options(
        connection_options(connection),
        topics if pattern is None else {"subscribePattern": pattern},
        position_options("starting", selection.start),
        _filter_options(selection),
    )


def _filter_options(selection: Selection) -> dict[str, str]:
    options = {} if selection.fail_on_data_loss else {"failOnDataLoss": "false"}
    if selection.sql is not None:
        options |= {"subExpression": selection.sql, "expressionType": "SQL92"}
    elif selection.filtered:
        options["subExpression"] = selection.expression
    return merge_options(options, selection.options)


def connection_options(connection: Connection) -> dict[str, str]:
    """Return *connection* as options, without those that have their default."""
    given = {f.name: (getattr(connection, f.name), f.default) for f in fields(connection)}
    return {
        OPTIONS[name].name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, (value, default) in given.items()
        if value != default
    }


def position_options(kind: str, text: str) -> dict[str, str]:
    """Return the option for a start or an exclusive end; *kind* is ``starting`` or ``ending``.

    :raises ConfigError: *text* is not a word, a time or offsets as JSON
    """
    plain, option, words = text.strip(), f"{kind}Timestamp", WORDS[kind]
    if plain.lower() in words or plain.startswith("{"):
        return {f"{kind}Offsets": plain}
    with suppress(ConfigError):
        values.instant(option, plain)
        return {option: plain}
    reason = f"expected {', '.join(words)}, a time with zone as 2026-01-31T08:00:00Z, "
    raise ConfigError(option, text, reason + "milliseconds (13 digits), or offsets as JSON")


def range_options(ranges: Collection[Range]) -> dict[str, str]:
    """Return the options that read exactly *ranges*, even if the topics change meanwhile."""
    assigned: dict[str, dict[str, list[int]]] = {}
    for topic, broker, queue_id in sorted(each.queue for each in ranges):
        assigned.setdefault(topic, {}).setdefault(broker, []).append(queue_id)
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(nested({each.queue: each.start for each in ranges})),
        "endingOffsets": json.dumps(nested({each.queue: each.end for each in ranges})),
    }


def merge_options(*options: Mapping[str, str]) -> dict[str, str]:
    """Return all *options* in one dict; raise `ConfigError` if one is given twice."""
    merged: dict[str, str] = {}
    for name, text in chain.from_iterable(each.items() for each in options):
        if name.lower() in map(str.lower, merged):
            reason = "is set by the pipeline: leave it out of the further options"
            raise ConfigError(name, "...", reason)
        merged[name] = text
    return merged


def plan_ranges(connection: Connection, selection: Selection) -> list[Range]:
    """Return the current ranges of the selection, one per queue, sorted; see `batch_ranges`."""
    ranges = batch_ranges(batch_read_options(connection, selection))
    return [each._replace(end=max(each.start, each.end)) for each in ranges]


def read_ranges(
    spark: SparkSession, connection: Connection, selection: Selection, ranges: Iterable[Range]
) -> DataFrame:
    """Return the messages of *ranges* that pass the filter of *selection*."""
    if not (chosen := [each for each in ranges if each.size > 0]):
        return spark.createDataFrame([], SCHEMA)
    options = merge_options(
        connection_options(connection), range_options(chosen), _filter_options(selection)
    )
    return spark.read.format(FORMAT).options(**options).load()
