"""Writers: check the columns of a DataFrame; their tasks encode and send its rows."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from hashlib import blake2b
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rocketmq_aio.config.producer import MAX_BATCH_MESSAGES
from rocketmq_aio.errors import ConfigError, InvalidMessageError
from rocketmq_aio.log import get_logger
from rocketmq_aio.spark.arrow.row_encoder import encode, slices
from rocketmq_aio.spark.arrow.row_schema import check_columns
from rocketmq_aio.spark.options.source_options import WriteOptions
from rocketmq_aio.spark.read.data_loss import warn
from rocketmq_aio.spark.runtime import ROW_PRODUCER, Runtime
from rocketmq_aio.spark.write.request_sender import RequestSender, WriteSummary
from rocketmq_aio.spark.write.write_requests import RequestLimits, WriteRequest, write_requests

logger = get_logger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"  # local properties of a stream's tasks
BATCH_ID: Final = "streaming.sql.batchId"
PREFIX_BYTES: Final = 10  # of a message id; the row number takes six
# Nothing that a Python task raises keeps Spark from repeating it.
ADVICE: Final = (
    "; filter such rows out before the write: Spark repeats a failed task (spark.task.maxFailures "
    "times in all), which fails again, and sends the rows before it again"
)
ENCODE_AHEAD: Final = 1  # record batches encoded while another one is sent


class _Writer:
    """Common base of batch and streaming writers; pickled to the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            reason = 'messages are never replaced: use mode("append") or outputMode("append")'
            raise ConfigError("mode", "overwrite or complete", reason)
        check_columns(schema, options.topic)
        self._options = options
        self._own_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> WriteSummary:
        """Send the rows of one task.

        :raises InvalidMessageError: a row is invalid; names the row, the topic and the reason
        :raises WriteError: rows could not be sent
        """
        context = TaskContext.get()
        assert context is not None
        prefix = id_prefix(*self._write_id(context), str(context.partitionId()))
        return WriteTask(self._options, prefix).run(iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int | None = None,  # noqa: N803 - Spark's name
    ) -> None:
        """Log how many rows were sent, in this micro-batch of a stream."""
        about = {} if batchId is None else {"batch": batchId}
        done = WriteSummary.total(messages)
        counts = {"rows": done.rows, "requests": done.requests, "tasks": len(messages)}
        logger.info("rows_written", **counts, **about)
        if done.degraded:
            warn("rows_stored_with_less_than_asked", requests=done.degraded, **about)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int | None = None,  # noqa: N803
    ) -> None:
        """Log that sent rows are not withdrawn."""
        about = {} if batchId is None else {"batch": batchId}
        rows, unfinished = WriteSummary.total(messages).rows, messages.count(None)
        counts = {"rows_of_finished_tasks": rows, "unfinished_tasks": unfinished}
        warn("write_failed_rows_stay_sent", **counts, **about)

    def _write_id(self, context: TaskContext) -> tuple[str, ...]:
        """Return an id of this write that a retry repeats."""
        return (self._own_id,)


class RocketMQWriter(_Writer, DataSourceArrowWriter):
    """Batch writer; retried tasks send the same message ids again."""


class RocketMQStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Stream writer; a repeated micro-batch sends the same message ids again."""

    def _write_id(self, context: TaskContext) -> tuple[str, ...]:
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        return super()._write_id(context) if query is None or batch is None else (query, batch)


def id_prefix(*parts: str) -> str:
    """Return a hash of *parts* as 20 hexadecimal digits."""
    whole = "\x00".join(parts).encode()
    return blake2b(whole, digest_size=PREFIX_BYTES).hexdigest().upper()


class WriteTask:
    """Write task: encodes record batches in its thread while the loop sends the previous one."""

    def __init__(self, options: WriteOptions, prefix: str) -> None:
        self._options = options
        self._prefix = prefix
        most_bytes = min(options.batch_bytes, ROW_PRODUCER.max_message_bytes)
        self._limits = RequestLimits(most_bytes, min(options.batch_records, MAX_BATCH_MESSAGES))
        self._row = 0
        self._pending: deque[Future[None]] = deque()

    def run(self, batches: Iterator[Any]) -> WriteSummary:
        """Send all rows; after a failure no further requests are sent."""
        sender: RequestSender | None = None
        try:
            for some in (some for batch in batches for some in slices(batch) if some.num_rows):
                if sender is None:  # a task without rows does not connect
                    self._runtime = Runtime.get(self._options.connection)
                    sender = RequestSender(self._runtime.producer(), self._options)
                requests = self._encode(sender, some)
                self._wait(ENCODE_AHEAD)
                self._pending.append(self._runtime.submit(sender.send, requests))
                self._row += some.num_rows
            self._wait(0)
        finally:
            # The last one first: the end of an earlier one would let its requests begin.
            for each in reversed(self._pending):
                each.cancel()
        return WriteSummary() if sender is None else sender.summary()

    def _encode(self, sender: RequestSender, batch: Any) -> list[WriteRequest]:  # noqa: ANN401
        try:
            rows = encode(
                batch,
                topic=self._options.topic,
                id_prefix=self._prefix,
                first_row=self._row,
                most_bytes=ROW_PRODUCER.max_message_bytes,
                check_tags=self._options.check_tags,
            )
        except InvalidMessageError as error:
            raise InvalidMessageError(error.topic, error.reason + ADVICE) from None
        call, find_queues = self._runtime.call, sender.queues_of_keys
        requests = write_requests(rows, self._limits, lambda *keys: call(find_queues, *keys))
        return list(requests)

    def _wait(self, most: int) -> None:
        """Wait until at most *most* record batches are in flight."""
        while len(self._pending) > most:
            self._pending.popleft().result()
