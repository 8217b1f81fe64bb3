"""MessageTrace: writes down what became of each message, where the official tools look for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from time import time_ns
from typing import Final, TypeVar

from rocketmq_aio.config.validation import checked_count, checked_seconds
from rocketmq_aio.consumer.push.handlers import RetryLater, SuspendQueue
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.hooks import ConsumeContext, EndTransactionContext
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.properties import KEYS
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer.send_request import SendRequest
from rocketmq_aio.trace import records
from rocketmq_aio.trace.trace_dispatcher import TraceDispatcher, Waiting

LOCAL_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CLOUD_TOPIC: Final = "rmq_sys_TRACE_DATA_"  # and the region
DEFAULT_REGION: Final = "DefaultRegion"
MOST_RECORDS: Final = 1_000_000
Row = TypeVar("Row")

_PLACE_OF_RECORD: Final = itemgetter(0, 1)  # where it is written, and what it is about
NOTE: Final = "rocketmq_aio.trace"  # the name of our note in a context


class MessageTrace:
    """A message trace in the format of the official clients, for ``hooks=[...]`` of clients.

    ::

        async with Producer("orders-producer", hooks=[MessageTrace()]) as producer: ...

    Sends, handlers, what polls hand out, ends of transactions and recalls are written as messages
    to a topic of their own, by a sender of its own over the connections of the client.  Brokers
    have that topic with ``traceTopicEnable=true``.  Nothing waits for the trace: what there is no
    room for, or cannot be sent, is dropped, counted and logged.  One object serves any number of
    producers, `PushConsumer`, `LitePullConsumer` and `PopConsumer` objects.

    :param topic: where to write; default ``RMQ_SYS_TRACE_TOPIC``
    :param cloud: write to ``rmq_sys_TRACE_DATA_<region>``, as the cloud's brokers want it
    :param flush_seconds: a record waits for company no longer than that
    :param max_waiting: records of one client that may wait; more are dropped
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
        self.sent = 0  # records that are stored
        self.dropped = 0

    def count(self, sent: int, dropped: int) -> None:
        """So many records more were stored, or dropped."""
        self.sent += sent
        self.dropped += dropped

    def made_for(self, instance: MQClientInstance, group: str) -> ClientTrace:
        """Return the trace of one client; clients call this."""
        return ClientTrace(self, instance, group)

    def __repr__(self) -> str:
        return f"<MessageTrace {self.topic!r} sent={self.sent} dropped={self.dropped}>"


def _place_of_send(stored: records.StoredSend) -> tuple[str, str]:
    return stored[0].topic, stored[1].region_id


class ClientTrace:
    """The trace of one client: its hooks, and what they put into the outbox."""

    def __init__(self, trace: MessageTrace, instance: MQClientInstance, group: str) -> None:
        self._group = group
        self._cloud = trace.cloud
        self._topic = trace.topic
        self._outbox = TraceDispatcher(
            instance,
            group,
            most=trace.max_waiting,
            flush_seconds=trace.flush_seconds,
            counts=trace.count,
            parcels=self._parcels,
        )
        self._add = self._outbox.add
        self.open = self._outbox.open
        self.close = self._outbox.close
        self._ids = self._outbox.ids

    # --- producers ------------------------------------------------------------------------------

    def stored(self, sent: SendRequest, result: SendResult, seconds: float) -> None:
        """Trace what was stored, unless its broker does not want that."""
        if not result.trace_on:
            return
        stored = sent, result, seconds, len(sent.body)
        if sent.batch:
            for each in records.parts_of_batch(stored):
                self._add(each)
        else:
            sent.body = b""  # nobody needs it any more, and it may be large
            self._add(stored)

    def _parcels(self, waiting: list[Waiting]) -> Iterator[records.TraceBatch]:
        sends = [each for each in waiting if len(each) == 4]
        for (topic, region), some in alike(sends, _place_of_send):
            if not topic.startswith(self._topic):  # else every trace would be traced
                yield records.sent(self._where(region), self._group, some)
        made = [each for each in waiting if len(each) == 5] if len(sends) < len(waiting) else []
        for (where, _), rows in alike(made, _PLACE_OF_RECORD):
            _, _, *columns = zip(*rows, strict=True)
            yield records.TraceBatch(where, *columns)

    def end_transaction(self, context: EndTransactionContext) -> None:
        """Trace the decision."""
        message, region = context.message, DEFAULT_REGION
        if isinstance(message, MessageExt):
            region = message.property("MSG_REGION") or region
        if message.topic.startswith(self._topic):
            return
        keys = " ".join(message.keys)
        record = records.transaction_ended(context, region, keys, time_ns() // 1_000_000)
        self._add((self._where(region), message.topic, record, context.message_id, keys))

    def recalled(self, topic: str, message_id: str) -> None:
        """Trace that a message was taken back."""
        now_ms = time_ns() // 1_000_000
        record = records.recalled(self._group, topic, message_id, DEFAULT_REGION, now_ms)
        self._add((self._where(DEFAULT_REGION), topic, record, message_id, ""))

    # --- consumers ------------------------------------------------------------------------------

    def before(self, context: ConsumeContext) -> None:
        """Trace what a handler is about to get."""
        now_ms = time_ns() // 1_000_000
        request_id = self._ids.next_id(now_ms)
        noted: list[tuple[MessageExt, str, str, str]] = []
        for message in context.messages:
            if message.property("TRACE_ON") == "false" or message.topic.startswith(self._topic):
                continue
            region = message.property("MSG_REGION") or DEFAULT_REGION
            keys, message_id = message.property(KEYS) or "", message.message_id
            noted.append((message, message_id, keys, where := self._where(region)))
            record = records.handed_over(self._group, message, request_id, region, keys, now_ms)
            self._add((where, message.topic, record, message_id, keys))
        context.notes[NOTE] = request_id, noted

    def after(self, context: ConsumeContext) -> None:
        """Trace how it ended."""
        request_id, noted = context.notes.pop(NOTE, ("", ()))
        how = _ending(context.error)
        cost_ms = int((context.seconds or 0.0) * 1000) // max(1, len(context.messages))
        now_ms = None if self._cloud else time_ns() // 1_000_000
        for message, message_id, keys, where in noted:
            record = records.handled(
                self._group, message_id, request_id, keys, cost_ms, how, now_ms
            )
            self._add((where, message.topic, record, message_id, keys))

    def _where(self, region: str) -> str:
        return self._topic + region if self._cloud else self._topic


def alike(
    rows: Sequence[Row], place_of: Callable[[Row], tuple[str, str]]
) -> Iterable[tuple[tuple[str, str], Sequence[Row]]]:
    """Return *rows* by what *place_of* says of each; mostly it says the same of all."""
    places = set(map(place_of, rows))
    if len(places) == 1:
        return [(places.pop(), rows)]
    by_place: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        by_place.setdefault(place_of(each), []).append(each)
    return by_place.items()


def _ending(error: BaseException | None) -> int:
    if error is None:
        return records.SUCCESS
    if isinstance(error, asyncio.CancelledError | TimeoutError):
        return records.TIMED_OUT
    if isinstance(error, RetryLater | SuspendQueue):
        return records.FAILED
    return records.EXCEPTION
