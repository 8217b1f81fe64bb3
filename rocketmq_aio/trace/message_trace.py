"""MessageTrace: hooks that record sends, handlers and transactions in the trace topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from time import time_ns
from typing import Final, TypeVar

from rocketmq_aio.config.validation import checked_count, checked_seconds
from rocketmq_aio.consumer.push.handlers import RetryLater, SuspendQueue
from rocketmq_aio.errors import CodecError, ConfigError
from rocketmq_aio.hooks import ConsumeContext, EndTransactionContext
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.properties import KEYS
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer.send_request import SendRequest
from rocketmq_aio.trace import records
from rocketmq_aio.trace.trace_dispatcher import TraceDispatcher, TraceEntry

LOCAL_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CLOUD_TOPIC: Final = "rmq_sys_TRACE_DATA_"  # and the region
DEFAULT_REGION: Final = "DefaultRegion"
MOST_RECORDS: Final = 1_000_000
Row = TypeVar("Row")

_DESTINATION: Final = itemgetter(0, 1)  # trace topic, and topic


class MessageTrace:
    """A message trace in the format of the official clients, for ``hooks=[...]`` of clients.

    ::

        async with Producer("orders-producer", hooks=[MessageTrace()]) as producer: ...

    Sends, handlers, polled messages, ends of transactions and recalls are recorded in messages
    to the trace topic, which brokers have with ``traceTopicEnable=true``.  A producer of its own
    sends them over the connections of the client.  Tracing never blocks: records that exceed
    ``max_waiting`` or cannot be sent are dropped, counted and logged.  One object serves any
    number of producers, `PushConsumer`, `LitePullConsumer` and `PopConsumer` objects.

    :param topic: the trace topic; default ``RMQ_SYS_TRACE_TOPIC``
    :param cloud: use ``rmq_sys_TRACE_DATA_<region>``, as cloud brokers require
    :param flush_seconds: the longest time a record is buffered
    :param max_waiting: buffered records of one client; more are dropped
    """

    def __init__(
        self,
        topic: str | None = None,
        *,
        cloud: bool = False,
        flush_seconds: float = 1.0,
        max_waiting: int = 10_000,
    ) -> None:
        if topic is not None:
            check_topic(topic)
        if type(cloud) is not bool or (cloud and topic is not None):
            raise ConfigError("cloud", cloud, "expected True or False, and no topic with True")
        checked_seconds("flush_seconds", flush_seconds, most=3600)
        checked_count("max_waiting", max_waiting, most=MOST_RECORDS)
        self.cloud = cloud
        self.topic = CLOUD_TOPIC if cloud else topic or LOCAL_TOPIC
        self.flush_seconds = flush_seconds
        self.max_waiting = max_waiting
        self.sent = 0  # stored records
        self.dropped = 0

    def count(self, sent: int, dropped: int) -> None:
        self.sent += sent
        self.dropped += dropped

    def made_for(self, instance: MQClientInstance, group: str) -> ClientTrace:
        """Return the hook of one client; called by clients."""
        return ClientTrace(self, instance, group)

    def __repr__(self) -> str:
        return f"<MessageTrace {self.topic!r} sent={self.sent} dropped={self.dropped}>"


class ClientTrace:
    """The trace hooks of one client, which pass records to its dispatcher."""

    def __init__(self, trace: MessageTrace, instance: MQClientInstance, group: str) -> None:
        self._group = group
        self._cloud = trace.cloud
        self._topic = trace.topic
        instance.remoting.share(trace.topic)
        self._dispatcher = TraceDispatcher(
            instance,
            group,
            max_waiting=trace.max_waiting,
            flush_seconds=trace.flush_seconds,
            on_count=trace.count,
            make_batches=self._make_batches,
        )
        self._add = self._dispatcher.add
        self.open = self._dispatcher.open
        self.close = self._dispatcher.close
        self._ids = self._dispatcher.ids
        self._note = f"rocketmq_aio.trace-{id(self)}"  # in a context; a client may have two traces

    # --- producers ------------------------------------------------------------------------------

    def stored(self, sent: SendRequest, result: SendResult, seconds: float, size: int) -> None:
        """Record a stored send, unless the broker disables tracing for it."""
        if not result.trace_on:
            return
        stored = sent, result, seconds, size
        if sent.batch:
            try:
                for each in records.parts_of_batch(stored):
                    self._add(each)
            except CodecError as error:  # entries that the caller of `send_encoded` made
                self._dispatcher.drop(1, str(error))
        else:
            self._add(stored)

    def _make_batches(self, waiting: list[TraceEntry]) -> Iterator[records.TraceBatch]:
        sends = [each for each in waiting if len(each) == 4]
        for (topic, region), some in group_rows(
            sends, lambda row: (row[0].topic, row[1].region_id)
        ):
            if not self._is_trace(topic):
                yield records.sent(self._trace_topic(region), self._group, some)
        made = [each for each in waiting if len(each) == 5] if len(sends) < len(waiting) else []
        for (trace_topic, _), rows in group_rows(made, _DESTINATION):
            _, _, *columns = zip(*rows, strict=True)
            yield records.TraceBatch(trace_topic, *columns)

    def end_transaction(self, context: EndTransactionContext) -> None:
        message, region = context.message, DEFAULT_REGION
        if isinstance(message, MessageExt):
            region = message.property("MSG_REGION") or region
        if self._is_trace(message.topic):
            return
        keys = " ".join(message.keys)
        record = records.transaction_ended(context, region, keys, time_ns() // 1_000_000)
        self._add((self._trace_topic(region), message.topic, record, context.message_id, keys))

    def recalled(self, topic: str, message_id: str) -> None:
        now_ms = time_ns() // 1_000_000
        record = records.recalled(self._group, topic, message_id, DEFAULT_REGION, now_ms)
        self._add((self._trace_topic(DEFAULT_REGION), topic, record, message_id, ""))

    # --- consumers ------------------------------------------------------------------------------

    def before(self, context: ConsumeContext) -> None:
        now_ms = time_ns() // 1_000_000
        request_id = self._ids.next_id(now_ms)
        noted: list[tuple[MessageExt, str, str, str]] = []
        for message in context.messages:
            if message.property("TRACE_ON") == "false" or self._is_trace(message.topic):
                continue
            region = message.property("MSG_REGION") or DEFAULT_REGION
            keys, message_id = message.property(KEYS) or "", message.message_id
            noted.append((message, message_id, keys, trace_topic := self._trace_topic(region)))
            record = records.consume_before(self._group, message, request_id, region, keys, now_ms)
            self._add((trace_topic, message.topic, record, message_id, keys))
        context.notes[self._note] = request_id, noted

    def after(self, context: ConsumeContext) -> None:
        request_id, noted = context.notes.pop(self._note, ("", ()))
        outcome = _outcome(context.error)
        cost_ms = int((context.seconds or 0.0) * 1000) // max(1, len(context.messages))
        now_ms = None if self._cloud else time_ns() // 1_000_000
        for message, message_id, keys, trace_topic in noted:
            record = records.consume_after(
                self._group, message_id, request_id, keys, cost_ms, outcome, now_ms
            )
            self._add((trace_topic, message.topic, record, message_id, keys))

    def _is_trace(self, topic: str) -> bool:
        """Whether *topic* has traces, which are not traced."""
        return topic.startswith(self._topic) if self._cloud else topic == self._topic

    def _trace_topic(self, region: str) -> str:
        return self._topic + region if self._cloud else self._topic


def group_rows(
    rows: Sequence[Row], destination_of: Callable[[Row], tuple[str, str]]
) -> Iterable[tuple[tuple[str, str], Sequence[Row]]]:
    """Return *rows* by destination; usually all have the same."""
    destinations = set(map(destination_of, rows))
    if len(destinations) == 1:
        return [(destinations.pop(), rows)]
    by_destination: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        by_destination.setdefault(destination_of(each), []).append(each)
    return by_destination.items()


def _outcome(error: BaseException | None) -> int:
    if error is None:
        return records.SUCCESS
    if isinstance(error, asyncio.CancelledError | TimeoutError):
        return records.TIMED_OUT
    if isinstance(error, RetryLater | SuspendQueue):
        return records.FAILED
    return records.EXCEPTION
