"""The stream reader: what Spark calls on the driver, and `read` on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rocketmq_aio.consumer.offsets.store import RemoteOffsetStore
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.arrow.columns import check_schema
from rocketmq_aio.spark.offsets import StreamOffset
from rocketmq_aio.spark.options.source_options import ReadOptions
from rocketmq_aio.spark.read.batch_reader import read
from rocketmq_aio.spark.read.metadata import Metadata
from rocketmq_aio.spark.read.micro_batches import MicroBatches
from rocketmq_aio.spark.read.planning import QueuePartition, plan_between
from rocketmq_aio.spark.runtime import Runtime


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics in micro-batches; each is the same again when Spark repeats it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        # Of the process that runs the query; the clients live as long as their runtime is held.
        self._batches: MicroBatches | None = None
        self._clients: Runtime | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None, "_clients": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return a marker: Spark asks twice, and may ask again after a crash."""
        return StreamOffset(at_start=True).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options; all that is there means that Spark wants it so."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end where the topics end now."""
        runtime, batches = self._state()
        runtime.call(batches.fix_target)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; *start* when there is none."""
        begin = StreamOffset.from_json(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        everything = isinstance(limit, ReadAllAvailable)
        runtime, batches = self._state()

        async def end() -> StreamOffset:
            return await batches.end_after(begin, most, everything=everything)

        found = runtime.call(end)
        return start if found is begin else found.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the queues ended at the last look."""
        latest = self._batches.latest if self._batches is not None else None
        return None if latest is None else latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what lies between; nobody is asked, so that a repeated batch is the same."""
        return plan_between(
            StreamOffset.from_json(start), StreamOffset.from_json(end), self._options
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a partition."""
        ranges = partition.ranges if isinstance(partition, QueuePartition) else ()
        return read(ranges, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish how far the query has come, if asked to."""
        runtime, batches = self._state()
        runtime.call(batches.publish, StreamOffset.from_json(end))

    def _state(self) -> tuple[Runtime, MicroBatches]:
        """Return what runs the questions, and the state of the query, which outlives clients."""
        runtime = Runtime.get(self._options.connection)
        if self._batches is None or runtime is not self._clients:
            metadata = Metadata.of(runtime, self._options)
            store = RemoteOffsetStore(runtime.instance.broker, self._options.connection.group)
            if self._batches is None:
                self._batches = MicroBatches(metadata, self._options, store)
            else:
                self._batches.reconnect(metadata, store)
            self._clients = runtime
        return runtime, self._batches


class RefusedStreamReader(DataSourceStreamReader):
    """Raises *error* with the first thing that Spark asks.

    Raised by ``streamReader`` itself it would be hidden: Spark 4.3 then fails over a reader that
    was never made, and tells of that.
    """

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Refuse."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Refuse: a query that is restarted asks for this first."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Refuse."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Refuse."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Refuse."""
        raise self._error
