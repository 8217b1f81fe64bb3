"""Batch accumulator: concurrent sends share batches, and each caller gets its own result.

A batch is sent when it is full or has lingered long enough.  Timers and tasks are per batch, none
per message.  Batches to one queue are sent one after another, because brokers handle the requests
of a connection in any order; messages that arrive meanwhile share the next batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from time import monotonic, time_ns
from typing import Any, Final

import msgspec

from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.errors import (
    BrokerError,
    ClosedError,
    NotConnectedError,
    NotRunningError,
    RocketMQError,
    SendAttempt,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import DELAY, WAIT
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.batching.explicit_batch import ENTRY_BYTES, Batch, results_of
from rocketmq_aio.producer.send_request import (
    SendRequest,
    check_sizes,
    encode_with_id,
    make_request,
)
from rocketmq_aio.producer.sender import Sender
from rocketmq_aio.producer.topic_publish_info import SendTarget
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.record import encode_batch_entry

# Messages with these properties are rejected in a batch, or stored without their effect.
UNBATCHABLE: Final = frozenset(
    (DELAY, "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TRAN_MSG")
)
TOO_LARGE: Final = "size exceeded"  # remark of a 5.5.0 broker about batches (code 1)
LEAST_SECONDS: Final = 0.01  # with less time than this left no request is sent
SPREAD_SECONDS: Final = 0.1  # most between the deadlines within a batch, whose own is the earliest

# The future, the message, its id, and its properties in wire form
Entry = tuple["asyncio.Future[SendResult]", Message, str, bytes]


class PendingBatch(msgspec.Struct, eq=False):
    """Messages of one *kind* (topic, wait flag, timeout), to *queue* if one was chosen."""

    key: object
    kind: object
    queue: MessageQueue | None
    deadline: float
    entries: list[Entry] = []
    size: int = 0  # bytes of the request's body
    body_bytes: int = 0  # bytes as the in-flight limiter counts them
    is_lined_up: bool = False
    may_be_sent: bool = False
    timer: asyncio.Handle | None = None

    @property
    def unresolved(self) -> list[Entry]:
        """The entries without a result whose callers were not cancelled."""
        return [entry for entry in self.entries if not entry[0].done()]


class BatchAccumulator:
    """Collects messages in `PendingBatch` objects and sends these.

    A batch is open, and takes more messages, until it is full, its linger time is over, or a
    message to the same queue needs another batch.  While an earlier batch to its queue is being
    sent, it waits in line, and stays open unless it is full.
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
        # By queue, where one was chosen; else by topic and what the messages have in common.
        self._open: dict[object, PendingBatch] = {}
        self._lines: dict[MessageQueue, deque[PendingBatch]] = {}  # the first is being sent
        self._unfinished: set[PendingBatch] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def takes(self, message: Message) -> bool:
        """Whether *message* may be part of a batch."""
        return (
            len(message.body) < self._alone_from
            and UNBATCHABLE.isdisjoint(message.properties)
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
        message_id = self._ids.next_id(time_ns() // 1_000_000)
        length = len(message.body)
        try:
            if alone:
                check_sizes(message, self._config)
            properties = encode_with_id(message, message_id)
        except BaseException:
            self._sender.in_flight.release(length)
            raise
        future: asyncio.Future[SendResult] = loop.create_future()
        size = ENTRY_BYTES + length + len(properties)
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
        entries.append((future, message, message_id, properties))
        batch.size += size
        batch.body_bytes += length
        if deadline < batch.deadline:
            batch.deadline = deadline
        if alone or len(entries) >= self._max_messages or batch.size >= self._max_bytes:
            self._close(batch)
        return future

    def close_all(self) -> None:
        for batch in list(self._open.values()):
            self._close(batch)

    async def flush(self) -> None:
        """Send all open batches; return when all messages added before have their results."""
        self.close_all()
        futures = [entry[0] for each in self._unfinished for entry in each.unresolved]
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
        if batch.queue in self._lines:
            self._line_up(batch)  # still open: more messages may join until it is sent
        else:
            self._close(batch)

    def _close(self, batch: PendingBatch) -> None:
        """Take no more messages into *batch*, and send it or line it up."""
        del self._open[batch.key]
        if batch.queue in self._lines:
            if not batch.is_lined_up:
                self._line_up(batch)
            return
        assert batch.timer is not None
        batch.timer.cancel()
        try:
            if batch.queue is None:
                self._spawn(self._deliver, batch)
            else:
                self._spawn(self._deliver_line, batch.queue)
                self._lines[batch.queue] = deque([batch])
        except NotRunningError as error:
            self._finish(batch, error)

    def _line_up(self, batch: PendingBatch) -> None:
        """Queue *batch* behind others to its queue, until the deadline of its messages."""
        assert self._loop is not None
        assert batch.queue is not None
        assert batch.timer is not None
        batch.timer.cancel()
        batch.timer = self._loop.call_later(batch.deadline - monotonic(), self._expire, batch)
        batch.is_lined_up = True
        self._lines[batch.queue].append(batch)

    def _expire(self, batch: PendingBatch) -> None:
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]  # a later message would wait without a timer
        if unresolved := batch.unresolved:
            fail(unresolved, _out_of_time(unresolved))

    def _spawn(self, function: Callable[..., Coroutine[Any, Any, None]], argument: object) -> None:
        instance = self._sender.instance
        instance.check_running()  # a host that is closing would ignore the call
        instance.tasks.spawn(function, argument, name="batch")

    async def _deliver_line(self, queue: MessageQueue) -> None:
        line = self._lines[queue]
        try:
            while line:
                if self._open.get(queue) is line[0]:
                    del self._open[queue]
                await self._deliver(line[0])
                line.popleft()
        finally:
            del self._lines[queue]
            for batch in line:  # cancelled: the client was closed
                if self._open.get(queue) is batch:
                    del self._open[queue]
                self._finish(batch, ClosedError("the client was closed"))

    async def _deliver(self, batch: PendingBatch) -> None:
        assert batch.timer is not None
        batch.timer.cancel()
        try:
            if unresolved := batch.unresolved:
                batch.may_be_sent = True
                await self._send(unresolved, batch)
        finally:
            self._finish(batch, ClosedError("the client was closed"))

    async def _send(self, entries: Sequence[Entry], batch: PendingBatch) -> None:
        try:
            if batch.deadline - monotonic() < LEAST_SECONDS:
                raise _out_of_time(entries)
            whole = await self._transmit(entries, batch.queue, batch.deadline)
        except RocketMQError as error:
            if len(entries) == 1 or not _may_concern_one(error):
                fail(entries, error)
                return
        except Exception as error:  # noqa: BLE001 - raised in the callers; here it would end the client
            fail(entries, error)
            return
        else:
            set_results(entries, whole)
            return
        # Nothing was stored.  One message, or the size of all, may be the reason: try halves.
        middle = len(entries) // 2
        await self._send(entries[:middle], batch)
        await self._send(entries[middle:], batch)

    async def _transmit(
        self, entries: Sequence[Entry], queue: MessageQueue | None, deadline: float
    ) -> SendResult:
        sender = self._sender
        publish = await sender.table.find(entries[0][1].topic, deadline)
        target = publish.next_target()
        if queue is not None:
            target = sender.selection.target_of(publish, queue)
        born_ms = time_ns() // 1_000_000
        request = request_of(entries, target, born_ms, self._config, fixed=queue is not None)
        return await sender.attempts.run(request, publish, deadline)

    def _finish(self, batch: PendingBatch, error: RocketMQError) -> None:
        """End *batch*, once; messages without a result get *error*."""
        if batch not in self._unfinished:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        self._unfinished.discard(batch)
        self._sender.in_flight.release(batch.body_bytes, len(batch.entries))
        unresolved = batch.unresolved
        if unresolved and batch.may_be_sent:
            attempt = SendAttempt(address="-", cause=error, seconds=0.0)
            error = SendUnknownError(unresolved[0][1].topic, unresolved[0][2], [attempt])
        fail(unresolved, error)


def _may_concern_one(error: RocketMQError) -> bool:
    """Whether the broker stored nothing, for a reason that may be a single message."""
    causes = [each.cause for each in error.attempts] if type(error) is SendError else [error]
    return any(
        isinstance(cause, BrokerError)
        and (cause.code == ResponseCode.MESSAGE_ILLEGAL or TOO_LARGE in (cause.remark or ""))
        for cause in causes
    )


def _out_of_time(entries: Sequence[Entry]) -> SendError:
    _, message, message_id, _ = entries[0]
    reason = "others to its queue took all the time that it had (send_timeout_seconds)"
    attempt = SendAttempt(address="-", cause=NotConnectedError("-", reason), seconds=0.0)
    return SendError(message.topic, message_id, [attempt])


def request_of(
    entries: Sequence[Entry],
    target: SendTarget,
    born_ms: int,
    config: ProducerConfig,
    *,
    fixed: bool,
) -> SendRequest:
    """Return the request that carries *entries*; a single message is not sent as a batch."""
    if len(entries) > 1:
        _, first, _, _ = entries[0]
        ids = [message_id for _, _, message_id, _ in entries]
        batch = Batch(first.topic, first.properties[WAIT], list(range(len(ids))), ids, [])
        for _, message, _, properties in entries:
            batch.parts += encode_batch_entry(message.body, properties, message.flag)
        return batch.request(target, born_ms, fixed=fixed)
    ((_, message, message_id, _),) = entries
    request = make_request(message, target, message_id, born_ms, config)
    request.fixed = fixed
    return request


def set_results(entries: Sequence[Entry], whole: SendResult) -> None:
    ids = [entry[2] for entry in entries]
    results = results_of(whole, ids) if len(entries) > 1 else (whole,)
    for entry, result in zip(entries, results, strict=True):
        future = entry[0]
        if not future.done():
            future.set_result(result)


def fail(entries: Sequence[Entry], error: Exception) -> None:
    """Give the future of each entry an error of its own, because raising changes an error."""
    for future, message, message_id, _ in entries:
        if future.done():
            continue
        if isinstance(error, SendError):
            future.set_exception(type(error)(message.topic, message_id, error.attempts))
        else:
            future.set_exception(copy(error))
