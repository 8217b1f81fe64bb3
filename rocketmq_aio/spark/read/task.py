"""Read task: decodes and filters fetched messages and checks for missing ones."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

from rocketmq_aio.consumer.pull.raw_pulls import TopicSettings
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.timestamps import millis_of
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.static_topics import is_logical
from rocketmq_aio.spark.offsets import Queue, Range
from rocketmq_aio.spark.options.source_options import ReadOptions
from rocketmq_aio.spark.read.data_loss import LOG_REPLACED, DataLossError, Extent, loss_values, warn
from rocketmq_aio.spark.read.fetcher import FetchedMessages, Fetcher, FetchResult, MissingOffsets
from rocketmq_aio.spark.read.metadata import Metadata, is_gone
from rocketmq_aio.spark.read.retrying_puller import ReadError, is_filtered
from rocketmq_aio.spark.runtime import Runtime


class ReadTask:
    """Decodes *ranges* in the calling thread while the loop fetches ahead."""

    def __init__(self, ranges: Sequence[Range], options: ReadOptions) -> None:
        self._runtime = Runtime.get(options.connection)
        self._pulls = self._runtime.pulls()
        queue_is_gone = partial(is_gone, self._runtime.instance)
        self._fetcher = Fetcher(self._pulls, ranges, options, queue_is_gone)
        self._losses = LossLog(fail=options.fail_on_data_loss)
        self._options = options
        self._settings: dict[str | MessageQueue, TopicSettings] = {}  # of topics, logical queues

    def messages(self) -> Generator[list[MessageExt], None, None]:
        """Yield the messages of one result at a time; closing it cancels the pulls in flight.

        :raises DataLossError: messages are lost and ``failOnDataLoss`` is true
        :raises ReadError: a queue cannot be read
        """
        running = self._runtime.submit(self._fetcher.run)
        running.add_done_callback(lambda _: self._fetcher.finish())
        try:
            for chunk in self._fetcher.chunks():
                for piece in chunk:
                    yield from self._read_result(piece)
            running.result()
        finally:
            running.cancel()
            self._losses.log()

    def _read_result(self, found: FetchResult) -> Generator[list[MessageExt], None, None]:
        if isinstance(found, MissingOffsets):
            self._record_missing(found)
            return
        cursor = found.cursor
        messages, fault = self._pulls.decode(found.body, cursor.queue)
        if found.offset_delta:  # in a static topic, whose brokers have offsets of their own
            for message in messages:
                message.queue_offset += found.offset_delta
        end = found.end
        if fault is not None:
            end = min(end, messages[-1].queue_offset + 1) if messages else found.start
            if end <= found.start:
                reason = f"it is no message: {fault}"
                raise ReadError(cursor.wanted, found.start, reason) from fault
        messages = within(messages, found.start, end)
        self._check_gap(found, end, messages)
        messages = self._of_planned_log(found, messages)
        tags = cursor.subscription.tags  # brokers compare only hashes
        yield [each for each in messages if each.tags in tags] if tags else messages
        if end < found.end:  # decompression reached its limit: fetch the rest again
            for piece in self._runtime.call(self._fetcher.refetch, cursor, end, found.end):
                yield from self._read_result(piece)

    def _check_gap(self, found: FetchedMessages, end: int, messages: list[MessageExt]) -> None:
        missing = end - found.start - len(messages)
        if missing <= 0:
            return
        if is_filtered(found.cursor.subscription):
            # Filtered messages are no loss; those below the minimum are.
            end = min(end, found.extent.minimum)
            missing = end - found.start - len(within(messages, found.start, end))
        if missing > 0 and not self._is_gap_of_topic(found.cursor.queue):
            reason = "messages are missing"
            self._losses.record(found.cursor.wanted, found.start, found.extent, missing, reason)

    def _of_planned_log(
        self, found: FetchedMessages, messages: list[MessageExt]
    ) -> list[MessageExt]:
        """Return *messages* without those of a log that replaced the planned one.

        The next micro-batch reads them: it resumes after the store time of the mark.
        """
        mark = found.cursor.wanted.mark
        if mark is None or not messages:
            return messages
        last = messages[-1]
        if last.queue_offset == mark.offset:
            stored: int | None = stored_millis(last)
        elif stored_millis(last) > mark.stored:  # or the clock of the broker was set back
            stored = self._stored_at(found.cursor.wanted, mark.offset)
        else:
            return messages
        if stored == mark.stored:
            return messages
        kept = [each for each in messages if stored_millis(each) <= mark.stored]
        first = messages[len(kept)].queue_offset if len(kept) < len(messages) else mark.offset
        lost = len(messages) - len(kept)
        self._losses.record(found.cursor.wanted, first, found.extent, lost, LOG_REPLACED)
        return kept

    def _stored_at(self, wanted: Range, offset: int) -> int | None:
        """Return the store time of the message at *offset*; None without a readable message."""
        consumer = self._runtime.pull_consumer()
        metadata = Metadata(self._runtime.instance, consumer, self._options)
        found = self._runtime.call(metadata.stored_at, {wanted.queue: offset})
        for cause in found.unavailable.values():
            raise ReadError(wanted, offset, f"the log cannot be compared: {cause}") from cause
        return found.values[wanted.queue]

    def _record_missing(self, gone: MissingOffsets) -> None:
        if not gone.was_cut and self._is_gap_of_topic(gone.cursor.queue, gone.resumes_at):
            return
        reason = "messages are not stored any more"
        if gone.was_cut:
            reason = "the queue ends before the messages that are wanted"
        missing = gone.end - gone.start
        self._losses.record(gone.cursor.wanted, gone.start, gone.extent, missing, reason)

    def _is_gap_of_topic(self, queue: MessageQueue, resumes_at: int | None = None) -> bool:
        """Whether missing offsets are no loss.

        The topic is compacted; or the offsets never existed, because the queue is logical, and a
        logical queue continues higher after each move, here at *resumes_at*.
        """
        key = queue if is_logical(queue) else queue.topic
        settings = self._settings.get(key)
        moved = key is queue and resumes_at is not None
        if settings is None or (moved and resumes_at not in settings.part_starts):
            try:
                settings = self._runtime.call(self._pulls.topic_settings, queue)
            except RocketMQError:
                return False  # counts as a loss: Spark retries the failed task
            self._settings[key] = settings
        return settings.is_compacted or resumes_at in settings.part_starts


class LossLog:
    """Losses of a task: an error, or one warning for each queue at the end of the task."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._by_queue: dict[Queue, tuple[int, Extent, int, str]] = {}

    def record(self, part: Range, wanted: int, extent: Extent, count: int, reason: str) -> None:
        """Record *count* missing messages from *wanted*; `DataLossError` if losses are errors."""
        if self._fail:
            raise DataLossError(part.queue, wanted, extent, reason)
        first, _, before, _ = self._by_queue.get(part.queue, (wanted, extent, 0, reason))
        self._by_queue[part.queue] = min(first, wanted), extent, before + count, reason

    def log(self) -> None:
        """Log one warning for each queue with losses."""
        for queue, (wanted, extent, count, reason) in self._by_queue.items():
            warn("data_loss", **loss_values(queue, wanted, count, extent, reason))
        self._by_queue.clear()


def stored_millis(message: MessageExt) -> int:
    """Return the store time in milliseconds since 1970."""
    return millis_of(message.store_time)


def within(messages: list[MessageExt], start: int, end: int) -> list[MessageExt]:
    """Return the messages from *start* to *end* (excluded)."""
    if messages and messages[0].queue_offset >= start and messages[-1].queue_offset < end:
        return messages
    return [each for each in messages if start <= each.queue_offset < end]
