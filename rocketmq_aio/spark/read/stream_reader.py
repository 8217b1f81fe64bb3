"""Stream reader: called by Spark on the driver, its `read` on executors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rocketmq_aio.consumer.offsets.remote_store import RemoteOffsetStore
from rocketmq_aio.errors import ConfigError, NameServerUnavailableError
from rocketmq_aio.spark.offsets import Offsets, StreamOffset
from rocketmq_aio.spark.options.source_options import ReadOptions
from rocketmq_aio.spark.read.batch_reader import Reader
from rocketmq_aio.spark.read.metadata import Metadata
from rocketmq_aio.spark.read.micro_batches import MicroBatches
from rocketmq_aio.spark.read.planning import plan_between
from rocketmq_aio.spark.runtime import Runtime


class RocketMQStreamReader(Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics in micro-batches; a repeated batch has the same ranges."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # Only in the process that runs the query; the runtime keeps its clients open.
        self._batches: MicroBatches | None = None
        self._clients: Runtime | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None, "_clients": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return a marker: Spark calls it twice, and maybe again after a crash."""
        return StreamOffset(at_start=True).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options; a trigger that reads everything ignores it."""
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at the current ends of the queues."""
        runtime, batches = self._state()
        runtime.call(batches.fix_target)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; *start* if it is empty."""
        begin = StreamOffset.from_json(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        everything = isinstance(limit, ReadAllAvailable)
        runtime, batches = self._state()
        end = runtime.call(partial(batches.end_after, begin, most, everything=everything))
        return start if end is begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the queues at the last `latestOffset`."""
        latest = None if self._batches is None else self._batches.latest
        return None if latest is None else latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch without any request: a repeated batch is the same."""
        begin, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        return plan_between(begin, until, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit *end* for the group if ``commitOffsets`` is set."""
        runtime, batches = self._state()
        runtime.call(batches.publish, StreamOffset.from_json(end))

    def _state(self) -> tuple[Runtime, MicroBatches]:
        """Return the runtime and the state of the query, which survives a failed client."""
        runtime, last = Runtime.get(self._options.connection), self._clients
        if self._batches is None:
            self._batches = _micro_batches(runtime, self._options)
        elif last is not None and runtime is not last:
            if not last.instance.has_ended:
                try:
                    runtime.call(runtime.instance.routes.check_reachable)
                except NameServerUnavailableError:  # it lacks routes that the last client may have
                    return last, self._batches
            self._batches.reconnect(_micro_batches(runtime, self._options))
        self._clients = runtime
        return runtime, self._batches


def stream_start(options: ReadOptions) -> tuple[StreamOffset, Offsets]:
    """Return where a new stream starts and where its queues end now; blocks.

    :raises ConfigError: offsets are given for topics that are not read
    :raises RocketMQError: the start cannot be determined
    """
    runtime = Runtime.get(options.connection)
    return runtime.call(_micro_batches(runtime, options).start)


def _micro_batches(runtime: Runtime, options: ReadOptions) -> MicroBatches:
    store = RemoteOffsetStore(runtime.instance.broker, options.connection.group)
    metadata = Metadata(runtime.instance, runtime.pull_consumer(), options)
    return MicroBatches(metadata, options, store)


class RefusedStreamReader(DataSourceStreamReader):
    """Raises *error* from every method.

    Spark 4.3 hides an error that ``streamReader`` itself raises behind one of its own.
    """

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    # A restarted query calls `latestOffset` first.
    initialOffset = getDefaultReadLimit = latestOffset = _refuse  # type: ignore[assignment] # noqa: N815
    partitions = read = _refuse  # type: ignore[assignment]
