"""Trace dispatcher: buffers trace records and sends them in batches in the background."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address
from itertools import chain, count
from time import monotonic, time_ns
from typing import Final

import anyio

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.producer.batching.pre_encoded import Encoded
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.trace.records import StoredSend, TraceBatch, Traced

logger = get_logger(__name__)

SENDERS: Final = 4  # concurrent sends
MAX_RECORDS: Final = 200  # per message
MAX_TEXT: Final = 120_000  # characters per message; readers accept 128 000
MAX_KEYS: Final = 7_500  # characters of keys per message, by which its records are found
MOST_KEYS: Final = 32_000  # bytes: the limit of properties
SEND_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 5.0
LEAST_SECONDS: Final = 0.1
MAX_GROUP: Final = 200  # characters of the group in the name of the producer

TraceEntry = Traced | StoredSend

_numbers = count()


class TraceDispatcher:
    """Sends trace records in batches; drops records that exceed *max_waiting*.

    :param on_count: called with the numbers of sent and dropped records
    :param make_batches: formats entries; called for many at once, when they are sent
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        *,
        max_waiting: int,
        flush_seconds: float,
        on_count: Callable[[int, int], None],
        make_batches: Callable[[list[TraceEntry]], Iterable[TraceBatch]],
    ) -> None:
        self._instance = instance
        self._group = group
        self._max_waiting = max_waiting
        self._flush_seconds = flush_seconds
        self._on_count = on_count
        self._make_batches = make_batches
        host = ip_address(instance.address).packed
        self.ids = MessageIdGenerator(host, 0, 0)  # see `MessageIdGenerator.renew`
        name = f"_INNER_TRACE_PRODUCER-{group[:MAX_GROUP]}-{next(_numbers)}"
        # Compression would cost more than the rest of the trace.
        config = ProducerConfig(send_timeout_seconds=SEND_SECONDS, compression=None)
        self._producer = Producer(name, client=instance, config=config)
        self._waiting: deque[TraceEntry] = deque()
        self._senders = 0
        self._start_at = MAX_RECORDS  # length of the buffer that starts a sender
        self._due = False  # send a partial batch
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close_by: float | None = None
        self._empty: asyncio.Future[None] | None = None
        self._drop_logged = False
        self._dropped = 0

    def add(self, traced: TraceEntry) -> None:
        waiting = self._waiting
        if self._loop is None:
            self.drop(1, "the trace is not running")
            return
        if len(waiting) >= self._max_waiting:
            self.drop(1, "more is traced than can be sent")
            return
        waiting.append(traced)
        if self._timer is None:
            self._timer = self._loop.call_later(self._flush_seconds, self._on_time)
        if len(waiting) >= self._start_at and self._senders < SENDERS:
            self._start_sender()

    async def open(self) -> None:
        """Start the producer; a failure is logged and disables the trace."""
        try:
            self.ids.renew()
            await self._producer.start()
        except RocketMQError as error:
            logger.warning("trace_unavailable", group=self._group, reason=str(error))
        else:
            self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Send the buffered entries, within `CLOSE_SECONDS`."""
        loop, self._loop = self._loop, None
        if loop is not None:
            self._close_by = monotonic() + CLOSE_SECONDS
            if not self._senders and self._waiting:
                self._start_sender()
            # One that a failed client cancelled before its first step never ends.
            if self._senders and not self._instance.has_ended:
                self._empty = loop.create_future()
                with anyio.move_on_after(CLOSE_SECONDS):
                    await self._empty
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting:
            self.drop(len(self._waiting), "they could not be sent before the close")
            self._waiting.clear()
        await self._producer.close()  # sends in flight end by their own deadline
        if self._dropped:
            logger.warning("trace_incomplete", group=self._group, dropped=self._dropped)

    def _on_time(self) -> None:
        self._timer = None
        self._due = True
        if self._senders < SENDERS and self._waiting:
            self._start_sender()

    def _start_sender(self) -> None:
        self._senders += 1
        self._start_at += MAX_RECORDS
        if self._instance.has_ended or not self._instance.tasks.spawn(
            self._send_some, name="trace"
        ):
            self._senders -= 1
            self._start_at -= MAX_RECORDS

    async def _send_some(self) -> None:
        self._start_at -= MAX_RECORDS
        try:
            while traced := self._take():
                await self._send_all(traced)
        finally:
            self._senders -= 1
            if not self._senders and self._empty is not None and not self._empty.done():
                self._empty.set_result(None)

    def _take(self) -> list[TraceEntry]:
        waiting, closing = self._waiting, self._close_by is not None
        if len(waiting) < MAX_RECORDS and not self._due and not closing:
            return []
        taken = [waiting.popleft() for _ in range(min(MAX_RECORDS, len(waiting)))]
        if not waiting:
            self._due = False
        return taken

    async def _send_all(self, traced: list[TraceEntry]) -> None:
        left, reason = len(traced), "the client was closed"
        try:
            for batch in self._make_batches(traced):
                for message, number in messages_of(batch, self.ids):
                    left -= number  # `_send` counts them
                    await self._send(message, number)
            left = 0  # traces themselves are not traced
        except Exception as error:  # noqa: BLE001 - a trace must not stop the client
            reason = repr(error)
        finally:
            if left:
                self.drop(left, reason)

    async def _send(self, message: Encoded, number: int) -> None:
        seconds = SEND_SECONDS
        if self._close_by is not None:
            seconds = max(LEAST_SECONDS, self._close_by - monotonic())
        try:
            await self._producer.send_encoded(message, timeout_seconds=seconds)
        except RocketMQError as error:
            self.drop(number, str(error))
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            self.drop(number, "the client was closed" if cancelled else repr(error))
            raise
        else:
            self._on_count(number, 0)

    def drop(self, number: int, reason: str) -> None:
        """Count *number* records as dropped; log the first *reason*."""
        self._dropped += number
        self._on_count(0, number)
        if not self._drop_logged:
            self._drop_logged = True
            logger.warning("trace_dropped", group=self._group, records=number, reason=reason)


def messages_of(batch: TraceBatch, ids: MessageIdGenerator) -> Iterator[tuple[Encoded, int]]:
    """Yield messages with the records of *batch*, as few as fit, and the number of records."""
    body = "".join(batch.records)
    keys = " ".join(filter(None, dict.fromkeys(chain(batch.ids, batch.keys))))
    number = len(batch.records)
    if number > 1 and (len(body) > MAX_TEXT or len(keys) > MAX_KEYS):
        for half in batch.halves():
            yield from messages_of(half, ids)
        return
    if len(keys.encode()) > MOST_KEYS:  # of a single record
        keys = batch.ids[0]
    message_id = ids.next_id(time_ns() // 1_000_000)
    properties = f"KEYS\x01{keys}\x02WAIT\x01true\x02UNIQ_KEY\x01{message_id}\x02"
    message = Encoded(
        topic=batch.trace_topic,
        body=body.encode(),
        message_id=message_id,
        properties=properties.encode(),
    )
    yield message, number
