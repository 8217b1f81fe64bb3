"""What a pipeline reads: topics, a range, a filter; fixed once, then read exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import Connection, read_options
from rocketmq_aio.spark.pipelines.read_range import (
    connection_options,
    end_options,
    exact_options,
    merged,
    start_options,
)
from rocketmq_aio.spark.read.start_end import batch_ranges

FORMAT: Final = "rocketmq"
ALL: Final = "*"


@settings
class Selection:
    """Which messages.

    :param topics: names of topics; *pattern*, a regular expression, takes their place
    :param start: ``earliest``, ``group``, a time, or offsets as JSON; in streams ``latest`` too
    :param end: likewise, exclusive; ``latest`` is where the queues end when the pipeline begins
    :param expression: tags such as ``"new || paid"``; *sql*, a condition, takes its place
    :param fail_on_data_loss: False goes on where messages are gone already
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
        if bool(self.topics) == (self.pattern is not None):
            raise ConfigError("topics", self.topics, "give topics or a pattern, one of them")
        if self.sql is not None and self.expression != ALL:
            raise ConfigError("sql", self.sql, "give an expression or sql, one of them")
        start_options(self.start)  # which refuses what is no position
        end_options(self.end)

    @property
    def filtered(self) -> bool:
        """Whether some messages of the topics are not wanted."""
        return self.sql is not None or self.expression.strip() != ALL


def batch_options(connection: Connection, selection: Selection) -> dict[str, str]:
    """Return the options of a batch read."""
    return merged(stream_options(connection, selection), end_options(selection.end))


def stream_options(connection: Connection, selection: Selection) -> dict[str, str]:
    """Return the options of a streaming read, which has no end."""
    return merged(
        connection_options(connection),
        _topics(selection),
        start_options(selection.start),
        _reading(selection),
    )


def _topics(selection: Selection) -> dict[str, str]:
    if selection.pattern is not None:
        return {"subscribePattern": selection.pattern}
    return {"subscribe": ",".join(selection.topics)}


def _reading(selection: Selection) -> dict[str, str]:
    return merged(_filter(selection), _loss(selection), selection.options)


def _loss(selection: Selection) -> dict[str, str]:
    return {} if selection.fail_on_data_loss else {"failOnDataLoss": "false"}


def _filter(selection: Selection) -> dict[str, str]:
    if selection.sql is not None:
        return {"subExpression": selection.sql, "expressionType": "SQL92"}
    return {"subExpression": selection.expression} if selection.filtered else {}


def planned(connection: Connection, selection: Selection) -> list[Range]:
    """Ask brokers what the selection comes to now: one range per queue, sorted.

    :raises ConfigError: an option cannot be
    :raises RocketMQError: brokers cannot be asked
    """
    options = read_options(batch_options(connection, selection), streaming=False)
    ranges = batch_ranges(options)
    return [each._replace(end=max(each.start, each.end)) for each in ranges]


def read_exactly(
    spark: SparkSession, connection: Connection, selection: Selection, ranges: Iterable[Range]
) -> DataFrame:
    """Return the messages of *ranges* that pass the filter of *selection*."""
    options = merged(
        connection_options(connection),
        exact_options(each for each in ranges if each.size > 0),
        _reading(selection),
    )
    return spark.read.format(FORMAT).options(**options).load()
