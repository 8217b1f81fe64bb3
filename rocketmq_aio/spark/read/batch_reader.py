"""Reading ranges of queues: in the task of an executor, and planned by the batch reader."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rocketmq_aio.spark.arrow.columns import (
    MAX_ROWS,
    Batch,
    ColumnBuilder,
    arrow_schema,
    check_schema,
)
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import ReadOptions
from rocketmq_aio.spark.read.planning import QueuePartition, plan
from rocketmq_aio.spark.read.start_end import batch_ranges
from rocketmq_aio.spark.read.task import ReadTask

# Less stays in the pipe of the worker, and a limit would wait for the whole range.
FIRST_BYTES: Final = 64 * 1024
BATCH_BYTES: Final = 1024 * 1024


class RocketMQBatchReader(DataSourceReader):
    """Reads what is in the topics when the load is planned; once, whatever is done with it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return what the tasks read."""
        return [*plan(batch_ranges(self._options), self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a partition; none when there was nothing to plan."""
        ranges = partition.ranges if isinstance(partition, QueuePartition) else ()
        return read(ranges, self._options, self._schema)


def read(
    ranges: Sequence[Range], options: ReadOptions, schema: StructType
) -> Generator[Batch, None, None]:
    """Yield the messages of *ranges*, one after the other, each in the order of its offsets.

    :raises DataLossError: messages are gone, and ``failOnDataLoss`` is set
    :raises ReadError: a queue cannot be read
    """
    if not ranges:
        return
    builder = ColumnBuilder(arrow_schema(schema))
    enough = FIRST_BYTES
    with closing(ReadTask(ranges, options).messages()) as found:
        for messages in found:
            builder.add(messages)
            if builder.size >= enough or len(builder) >= MAX_ROWS:
                yield from builder.take()
                enough = BATCH_BYTES
    yield from builder.take()
