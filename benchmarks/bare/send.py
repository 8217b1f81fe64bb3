"""The yardstick's sends: a message object, its ids and properties, one frame, one typed result."""

from __future__ import annotations

import asyncio
import os
import time
from itertools import count
from struct import Struct
from typing import Final

import msgspec

from benchmarks.bare.connection import Connection, Reply, binary_head, connect, entry, find_broker
from benchmarks.subject.measure import KEY, TAG_ONLY, TRACE, Options, closed_loop

SEND: Final = 310
SEND_BATCH: Final = 320
BUSY: Final = 2
BUSY_TRIES: Final = 100
BUSY_PAUSE_SECONDS: Final = 0.1

_UNIQ: Final = Struct(">10sIH").pack
_WORD: Final = Struct(">i").pack
_ENTRY: Final = Struct(">iiiii").pack
_SHORT: Final = Struct(">H").pack


class RefusedError(RuntimeError):
    """The broker did not store it: code and remark."""


class Message:
    __slots__ = ("body", "properties", "topic")

    def __init__(self, topic: str, body: bytes, properties: dict[str, str]) -> None:
        self.topic = topic
        self.body = body
        self.properties = dict(properties)


class SendResult:
    __slots__ = ("message_id", "offset_message_id", "queue_id", "queue_offset")

    def __init__(
        self, message_id: str, offset_message_id: str, queue_id: int, queue_offset: int
    ) -> None:
        self.message_id = message_id
        self.offset_message_id = offset_message_id
        self.queue_id = queue_id
        self.queue_offset = queue_offset


class SendFields(msgspec.Struct, rename="camel"):
    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None


_send_fields: Final = msgspec.json.Decoder(SendFields, strict=False).decode


def _stored_at(reply: Reply) -> SendFields:
    if reply.binary_fields is not None:
        return msgspec.convert(reply.binary_fields, SendFields, strict=False)
    return _send_fields(reply.raw_fields)


class Producer:
    """Sends round robin over the queues of one topic."""

    def __init__(self, connection: Connection, topic: str, broker: str, queues: int) -> None:
        constant = b"".join(
            entry(name, value)
            for name, value in (("a", "bare-producer"), ("b", topic), ("c", "TBW102"), ("d", "4"),
                                ("f", "0"), ("h", "0"), ("j", "0"), ("k", "false"), ("n", broker))
        )  # fmt: skip
        time_follows = b"\x00\x01g\x00\x00\x00\x0d"
        ids = [entry("e", str(queue)) + time_follows for queue in range(queues)]
        self._single = [constant + entry("m", "false") + queue for queue in ids]
        self._batch = [constant + entry("m", "true") + queue for queue in ids]
        self._connection = connection
        self._queue = 0
        self._unique = os.urandom(10)
        self._counter = count()

    def _text(self, message: Message, now: int) -> tuple[str, bytes]:
        unique = _UNIQ(self._unique, now & 0xFFFFFFFF, next(self._counter) & 0xFFFF).hex().upper()
        properties = message.properties
        properties["UNIQ_KEY"] = unique
        properties["WAIT"] = "true"
        text = "".join([f"{key}\x01{value}\x02" for key, value in properties.items()])
        return unique, text.encode()

    async def send(self, message: Message) -> SendResult:
        now = time.time_ns() // 1_000_000
        unique, text = self._text(message, now)
        self._queue = queue = (self._queue + 1) % len(self._single)
        fields = b"%b%d\x00\x01i%b%b" % (self._single[queue], now, _WORD(len(text)), text)
        return await self._store(SEND, fields, message.body, unique)

    async def send_batch(self, messages: list[Message]) -> SendResult:
        now = time.time_ns() // 1_000_000
        parts: list[bytes] = []
        unique = ""
        for message in messages:
            unique, text = self._text(message, now)
            body = message.body
            head = _ENTRY(22 + len(body) + len(text), 0, 0, 0, len(body))
            parts += (head, body, _SHORT(len(text)), text)
        self._queue = queue = (self._queue + 1) % len(self._batch)
        text = b"WAIT\x01true\x02"
        fields = b"%b%d\x00\x01i%b%b" % (self._batch[queue], now, _WORD(len(text)), text)
        return await self._store(SEND_BATCH, fields, b"".join(parts), unique)

    async def _store(self, code: int, fields: bytes, body: bytes, unique: str) -> SendResult:
        opaque = self._connection.next_opaque()
        head = binary_head(code, opaque, fields, len(body))
        reply, _ = await self._connection.request(head, body, opaque)
        if reply.code:
            raise RefusedError(reply.code, reply.remark)
        stored = _stored_at(reply)
        return SendResult(unique, stored.msg_id, stored.queue_id, stored.queue_offset)


async def send_messages(options: Options) -> None:
    """Single sends, or batches if ``options.batch`` is set."""
    address, broker, queues = await find_broker(options.namesrv, options.topic)
    connection = await connect(address)
    producer = Producer(connection, options.topic, broker, queues)
    body, topic, size = options.body(), options.topic, options.batch
    properties = {"KEYS": KEY, **TAG_ONLY, **TRACE} if options.rich else TAG_ONLY

    async def send() -> object:
        return await producer.send(Message(topic, body, properties))

    async def send_batch() -> object:
        return await producer.send_batch([Message(topic, body, properties) for _ in range(size)])

    await closed_loop(send_batch if size > 1 else send, options, per_operation=size)
    connection.close()


async def fill(options: Options) -> None:
    """Send exactly ``options.total`` messages in batches, evenly over the queues."""
    address, broker, queues = await find_broker(options.namesrv, options.topic)
    connection = await connect(address)
    producer = Producer(connection, options.topic, broker, queues)
    body, left = options.body(), iter(range(options.total // options.batch))

    async def send_some() -> None:
        for _ in left:
            messages = [Message(options.topic, body, TAG_ONLY) for _ in range(options.batch)]
            await _send_patiently(producer, messages)

    async with asyncio.TaskGroup() as senders:
        for _ in range(options.in_flight):
            senders.create_task(send_some())
    connection.close()


async def _send_patiently(producer: Producer, messages: list[Message]) -> None:
    """Send again what a busy broker refused: it stored nothing of it."""
    for tries_left in reversed(range(BUSY_TRIES)):
        try:
            await producer.send_batch(messages)
            return
        except RefusedError as refusal:
            if refusal.args[0] != BUSY or not tries_left:
                raise
        await asyncio.sleep(BUSY_PAUSE_SECONDS)
