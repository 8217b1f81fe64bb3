"""Batch accumulator: concurrent sends share batches, and each caller gets its own result.

A batch is sent when it is full or has lingered long enough.  Timers and tasks are per batch, none
per message.  Batches to one queue are sent one after another, because brokers handle the requests
of a connection in any order; messages that arrive meanwhile share the next batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from copy import copy
from functools import partial
from time import monotonic, time_ns
from typing import Any, Final

import msgspec

from rocketmq_aio.config.producer import AutoBatch
from rocketmq_aio.errors import (
    NO_ADDRESS,
    BrokerError,
    ClosedError,
    NotRunningError,
    RocketMQError,
    SendAttempt,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import LITE_TOPIC, LMQ_NAMES, PRIORITY, WAIT
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.batching.explicit_batch import ENTRY_BYTES, Batch, packed, results_of
from rocketmq_aio.producer.retry import TOO_LARGE, never_sent
from rocketmq_aio.producer.send_request import (
    MAX_OWN_PROPERTIES,
    SendRequest,
    check_sizes,
    encode_with_id,
    make_request,
)
from rocketmq_aio.producer.sender import Sender
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.protocol.record import encode_batch_entry

LEAST_SECONDS: Final = 0.01  # with less time than this left no request is sent
SPREAD_SECONDS: Final = 0.1  # most between the deadlines within a batch, whose own is the earliest


class Entries(msgspec.Struct, eq=False):
    """Messages that share a request, and their futures, in one order.

    :ivar bodies: those of the messages when they were added; the caller may use a message again
    :ivar ids: their message ids, made with the request or with an error
    """

    messages: list[Message] = []
    bodies: list[bytes] = []
    futures: list[asyncio.Future[SendResult]] = []
    ids: list[str] = []

    def unresolved(self) -> Entries:
        """Return those without a result whose callers were not cancelled."""
        left = [at for at, future in enumerate(self.futures) if not future.done()]
        if len(left) == len(self.futures):
            return self
        return Entries(
            [self.messages[at] for at in left],
            [self.bodies[at] for at in left],
            [self.futures[at] for at in left],
            [self.ids[at] for at in left if self.ids],
        )

    def halves(self) -> tuple[Entries, Entries]:
        middle = len(self.futures) // 2
        return self._part(slice(middle)), self._part(slice(middle, None))

    def _part(self, part: slice) -> Entries:
        return Entries(self.messages[part], self.bodies[part], self.futures[part], self.ids[part])

    def restore_bodies(self) -> None:
        """Replace messages that have another body now by copies with the former one."""
        for at, (message, body) in enumerate(zip(self.messages, self.bodies, strict=True)):
            if message.body is not body:
                self.messages[at] = copy(message)
                self.messages[at].body = body

    def make_ids(self, generator: MessageIdGenerator) -> None:
        if not self.ids:
            now_ms = time_ns() // 1_000_000
            self.ids = [generator.next_id(now_ms) for _ in self.futures]


class PendingBatch(msgspec.Struct, eq=False):
    """Messages of one *kind* (topic, wait flag, timeout), to *queue* if one was chosen."""

    key: object
    kind: object
    queue: MessageQueue | None
    deadline: float
    entries: Entries = msgspec.field(default_factory=Entries)
    size: int = 0  # bytes of the request's body
    count: int = 0  # of messages that are in flight, with bytes as the limiter counts them
    body_bytes: int = 0
    is_waiting: bool = False
    may_be_sent: bool = False
    timer: asyncio.Handle | None = None


class BatchAccumulator:
    """Collects messages in `PendingBatch` objects and sends these.

    A batch is open, and takes more messages, until it is full, its linger time is over, or a
    message to the same queue needs another batch.  While an earlier batch to its queue is being
    sent, it waits, and stays open unless it is full.
    """

    def __init__(self, settings: AutoBatch, sender: Sender) -> None:
        config = sender.config
        self._linger = settings.linger_seconds
        self._max_bytes = min(settings.max_bytes, config.max_message_bytes)
        self._max_messages = settings.max_messages
        self._alone_from = config.max_message_bytes + 1
        if config.compression is not None:
            # Batches are not compressed.
            self._alone_from = min(self._alone_from, config.compress_above_bytes)
        self._sender = sender
        self._config = config
        self._ids = sender.ids
        self._longest_id = "0" * sender.ids.length
        self._id_bytes = len(f"UNIQ_KEY={self._longest_id};")
        # By queue, where one was chosen; else by topic and what the messages have in common.
        self._open: dict[object, PendingBatch] = {}
        self._by_queue: dict[MessageQueue, deque[PendingBatch]] = {}  # the first is being sent
        self._unfinished: set[PendingBatch] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def takes(self, message: Message) -> bool:
        """Whether *message* may be part of a batch."""
        # Brokers reject a delayed message in a batch, or store it without its delay; they sort only
        # single messages by priority, and put only those into light message queues.
        properties = message.properties
        return (
            len(message.body) < self._alone_from
            and not message.delayed
            and PRIORITY not in properties
            and LMQ_NAMES not in properties
            and LITE_TOPIC not in properties
            and not message.topic.startswith(RETRY_PREFIX)
        )

    def add(  # flat: it runs for every message
        self,
        message: Message,
        queue: MessageQueue | None,
        seconds: float,
        deadline: float,
        *,
        alone: bool = False,
    ) -> asyncio.Future[SendResult]:
        """Return the future of *message*, which is counted as in flight.

        :param seconds: its whole timeout, which ends at *deadline*
        :param alone: it gets a batch of its own, in its place among those to *queue*
        :raises InvalidMessageError: body or properties are too large; it is not in flight any more
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        body, encoded = message.body, message.encoded_properties
        length = len(body)
        properties = self._id_bytes + len(encoded if encoded.isascii() else encoded.encode())
        if alone or properties > MAX_OWN_PROPERTIES:
            self._check_sizes(message)
        future: asyncio.Future[SendResult] = loop.create_future()
        size = ENTRY_BYTES + length + properties
        kind = message.topic, message.properties[WAIT], seconds
        key = queue or kind
        batch = self._open.get(key)
        if (
            batch is None
            or alone
            or batch.kind != kind
            or batch.size + size > self._max_bytes
            or abs(deadline - batch.deadline) > SPREAD_SECONDS
        ):
            if batch is not None:
                self._close(batch)
            batch = self._begin(PendingBatch(key, kind, queue, deadline))
        entries = batch.entries
        entries.messages.append(message)
        entries.bodies.append(body)
        entries.futures.append(future)
        batch.size += size
        batch.count += 1
        batch.body_bytes += length
        if deadline < batch.deadline:
            batch.deadline = deadline
        if alone or batch.count >= self._max_messages or batch.size >= self._max_bytes:
            self._close(batch)
        return future

    def _check_sizes(self, message: Message) -> None:
        try:
            check_sizes(message, self._config)
            encode_with_id(message, self._longest_id)
        except BaseException:
            self._sender.in_flight.release(len(message.body))
            raise

    def close_all(self) -> None:
        for batch in list(self._open.values()):
            self._close(batch)

    def fail_all(self, error: RocketMQError) -> None:
        """End all batches with *error*; for a failed client, whose tasks have ended.

        Tasks that were cancelled before their first step have not done it.
        """
        if self._loop is None or self._loop.is_closed():
            return
        self._open.clear()
        self._by_queue.clear()
        for batch in list(self._unfinished):
            self._finish(batch, error)

    async def flush(self) -> None:
        """Send all open batches; return when all messages added before have their results."""
        self.close_all()
        pending = [each.entries.unresolved() for each in self._unfinished]
        futures = [future for entries in pending for future in entries.futures]
        if futures:
            await asyncio.wait(futures)

    def _begin(self, batch: PendingBatch) -> PendingBatch:
        self._open[batch.key] = batch
        self._unfinished.add(batch)
        assert self._loop is not None
        if self._linger:
            # Half of the time is for the request, whatever the linger time is.
            seconds = min(self._linger, (batch.deadline - monotonic()) / 2)
            batch.timer = self._loop.call_later(seconds, self._lingered, batch)
        else:
            batch.timer = self._loop.call_soon(self._lingered, batch)
        return batch

    def _lingered(self, batch: PendingBatch) -> None:
        if batch.queue in self._by_queue:
            self._wait_in_order(batch)  # still open: more messages may join until it is sent
        else:
            self._close(batch)

    def _close(self, batch: PendingBatch) -> None:
        """Take no more messages into *batch*, and send it in its turn."""
        del self._open[batch.key]
        if batch.queue in self._by_queue:
            if not batch.is_waiting:
                self._wait_in_order(batch)
            return
        assert batch.timer is not None
        batch.timer.cancel()
        try:
            if batch.queue is None:
                self._spawn(self._deliver, batch)
            else:
                self._spawn(self._deliver_in_order, batch.queue)
                self._by_queue[batch.queue] = deque([batch])
        except NotRunningError as error:
            self._finish(batch, error)

    def _wait_in_order(self, batch: PendingBatch) -> None:
        """Queue *batch* behind others to its queue, until the deadline of its messages."""
        assert self._loop is not None
        assert batch.queue is not None
        assert batch.timer is not None
        batch.timer.cancel()
        batch.timer = self._loop.call_later(batch.deadline - monotonic(), self._expire, batch)
        batch.is_waiting = True
        self._by_queue[batch.queue].append(batch)

    def _expire(self, batch: PendingBatch) -> None:
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]  # a later message would wait without a timer
        self._fail(batch.entries.unresolved(), _out_of_time(batch))

    def _spawn(self, function: Callable[..., Coroutine[Any, Any, None]], argument: object) -> None:
        instance = self._sender.instance
        instance.check_running()  # a host that is closing would ignore the call
        instance.tasks.spawn(function, argument, name="batch")

    async def _deliver_in_order(self, queue: MessageQueue) -> None:
        batches = self._by_queue[queue]
        try:
            while batches:
                if self._open.get(queue) is batches[0]:
                    del self._open[queue]
                await self._deliver(batches[0])
                batches.popleft()
        finally:
            del self._by_queue[queue]
            for batch in batches:  # cancelled: the client was closed
                if self._open.get(queue) is batch:
                    del self._open[queue]
                self._finish(batch, ClosedError("the client was closed"))

    async def _deliver(self, batch: PendingBatch) -> None:
        assert batch.timer is not None
        batch.timer.cancel()
        try:
            batch.entries = batch.entries.unresolved()
            if batch.entries.futures:
                await self._send(batch.entries, batch)
        finally:
            self._finish(batch, ClosedError("the client was closed"))

    async def _send(self, entries: Entries, batch: PendingBatch) -> None:
        try:
            if batch.deadline - monotonic() < LEAST_SECONDS:
                raise _out_of_time(batch)
            whole = await self._transmit(entries, batch)
        except RocketMQError as error:
            if len(entries.futures) == 1 or not _may_concern_one(error):
                self._fail(entries, error)
                return
        except Exception as error:  # noqa: BLE001 - raised in the callers; here it would end the client
            self._fail(entries, error)
            return
        else:
            set_results(entries, whole)
            return
        # Nothing was stored.  One message, or the size of all, may be the reason: try halves.
        for half in entries.halves():
            await self._send(half, batch)

    async def _transmit(self, entries: Entries, batch: PendingBatch) -> SendResult:
        sender, queue, deadline = self._sender, batch.queue, batch.deadline
        select: Callable[[TopicPublishInfo], SendTarget] = TopicPublishInfo.next_target
        if queue is not None:
            select = partial(sender.selection.target_of, queue=queue)
        publish, target = await sender.find_target(entries.messages[0].topic, select, deadline)
        request = self._request(entries, target, fixed=queue is not None)
        batch.may_be_sent = True
        return await sender.attempts.run(request, publish, deadline)

    def _request(self, entries: Entries, target: SendTarget, *, fixed: bool) -> SendRequest:
        """Return the request that carries *entries*; a single message is not sent as a batch."""
        entries.restore_bodies()
        messages, config, born_ms = entries.messages, self._config, time_ns() // 1_000_000
        if len(messages) == 1:
            entries.make_ids(self._ids)
            request = make_request(messages[0], target, entries.ids[0], born_ms, config)
            request.fixed = fixed
            return request
        batch = None if entries.ids else packed(messages, self._ids, born_ms, config)
        if batch is None:
            entries.make_ids(self._ids)
            first = messages[0]
            batch = Batch(first.topic, first.properties[WAIT], [], entries.ids, [])
            for message, message_id in zip(messages, entries.ids, strict=True):
                properties = encode_with_id(message, message_id)
                batch.parts += encode_batch_entry(message.body, properties, message.flag)
        entries.ids = batch.ids
        return batch.request(target, born_ms, fixed=fixed)

    def _fail(self, entries: Entries, error: Exception) -> None:
        entries.make_ids(self._ids)
        fail(entries, error)

    def _finish(self, batch: PendingBatch, error: RocketMQError) -> None:
        """End *batch*, once; messages without a result get *error*."""
        if batch not in self._unfinished:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        self._unfinished.discard(batch)
        self._sender.in_flight.release(batch.body_bytes, batch.count)
        unresolved = batch.entries.unresolved()
        if unresolved.futures and batch.may_be_sent:
            attempt = SendAttempt(address=NO_ADDRESS, cause=error, seconds=0.0)
            error = SendUnknownError(unresolved.messages[0].topic, "", [attempt])
        self._fail(unresolved, error)


def _may_concern_one(error: RocketMQError) -> bool:
    """Whether the broker stored nothing, for a reason that may be a single message."""
    causes = [each.cause for each in error.attempts] if type(error) is SendError else [error]
    return any(
        isinstance(cause, BrokerError)
        and (cause.code == ResponseCode.MESSAGE_ILLEGAL or TOO_LARGE in (cause.remark or ""))
        for cause in causes
    )


def _out_of_time(batch: PendingBatch) -> SendError:
    reason = "others to its queue took all the time that it had (send_timeout_seconds)"
    return never_sent(batch.entries.messages[0].topic, reason)


def set_results(entries: Entries, whole: SendResult) -> None:
    results = results_of(whole, entries.ids) if len(entries.ids) > 1 else (whole,)
    for future, result in zip(entries.futures, results, strict=True):
        if not future.done():
            future.set_result(result)


def fail(entries: Entries, error: Exception) -> None:
    """Give each future an error of its own, with its message id: raising changes an error."""
    each = zip(entries.futures, entries.messages, entries.ids, strict=True)
    for future, message, message_id in each:
        if future.done():
            continue
        if isinstance(error, SendError):
            future.set_exception(type(error)(message.topic, message_id, error.attempts))
        else:
            future.set_exception(copy(error))
