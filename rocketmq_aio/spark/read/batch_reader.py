"""Batch reader, and the function that reads ranges in a task of an executor."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rocketmq_aio.spark.arrow import Column
from rocketmq_aio.spark.arrow.columns import MAX_ROWS, ColumnBuilder, arrow_schema, check_schema
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import ReadOptions
from rocketmq_aio.spark.read.planning import QueuePartition, plan
from rocketmq_aio.spark.read.start_end import batch_ranges
from rocketmq_aio.spark.read.task import ReadTask

# The pipe of the worker buffers less; with a larger first batch LIMIT waits for the whole range.
FIRST_BYTES: Final = 64 * 1024
BATCH_BYTES: Final = 1024 * 1024


class Reader:
    """Common base of batch and stream readers; pickled to the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a partition; none if the plan was empty."""
        ranges = partition.ranges if isinstance(partition, QueuePartition) else ()
        return read(ranges, self._options, self._schema)


class RocketMQBatchReader(Reader, DataSourceReader):
    """Reads the messages that the topics hold when `partitions` is called."""

    def partitions(self) -> list[InputPartition]:
        """Return the partitions that the tasks read."""
        return [*plan(batch_ranges(self._options), self._options)]


def read(
    ranges: Sequence[Range], options: ReadOptions, schema: StructType
) -> Generator[Column, None, None]:
    """Yield the messages of *ranges* in order, by offset; errors as `ReadTask.messages`."""
    if not ranges:
        return
    builder = ColumnBuilder(arrow_schema(schema))
    batch_bytes = FIRST_BYTES
    with closing(ReadTask(ranges, options).messages()) as results:
        for messages in results:
            builder.add(messages)
            if builder.size >= batch_bytes or len(builder) >= MAX_ROWS:
                yield from builder.take()
                batch_bytes = BATCH_BYTES
    yield from builder.take()
