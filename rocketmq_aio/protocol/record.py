"""Stored-message records and batch entries: decode and encode.

The decoder keeps the fixed part and the properties as bytes (see `MessageExt`), which makes it
cheap.  Layout: ``protocol/README.md``, "Stored message".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from struct import Struct, error as struct_error
from typing import Final, NamedTuple
from zlib import crc32

from rocketmq_aio.core import core
from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import LMQ_PREFIX
from rocketmq_aio.model.properties import LMQ_NAMES, LMQ_OFFSETS
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import BORN_IPV6, COMPRESSED, INNER_BATCH, NEED_UNWRAP, STORE_IPV6
from rocketmq_aio.protocol.compression import MAX_INFLATED, InflationLimitError, inflate

Decoded = tuple[list[MessageExt], CodecError | None]  # messages, and what stopped the decoder

MAGIC_V1: Final = -626_843_481  # 0xDAA320A7: topic length is one byte
MAGIC_V2: Final = -626_843_477  # 0xDAA320AB: two bytes (brokers from 5.1, long retry topics)
IPV4_HEAD: Final = 88
SHORTEST: Final = IPV4_HEAD + 1 + 2
MESSAGE_BYTES: Final = 512  # approximate memory of a message without its body
MAX_PROPERTIES: Final = 65_535  # bytes
MAX_INNER: Final = 32_767  # messages of an inner batch: the broker counts them in 16 bits

# size, magic, queue offset, sysFlag, body length of a record whose hosts are IPv4
_PLAIN: Final = Struct(">ii12xq8xi44xi")
_OFFSET: Final = Struct(">q")
_INT: Final = Struct(">i")
_SHORT: Final = Struct(">H")
_ENTRY: Final = Struct(">iiiii")  # size, magic, crc, flag, body length
_PAIR_END: Final = b"\x02"
_QUEUE_OFFSET_TEXT: Final = re.compile(r"[0-9]{1,18}")
_CRC_AT: Final = 8
CRC_MASK: Final = 0x7FFF_FFFF
_QUEUE_ID_AT: Final = 12
_QUEUE_OFFSET_AT: Final = 20
_GROWS: Final = COMPRESSED | INNER_BATCH
_UNUSUAL: Final = _GROWS | BORN_IPV6 | STORE_IPV6 | NEED_UNWRAP


def decode_messages(data: bytes, queue: MessageQueue, *, limit: int = MAX_INFLATED) -> Decoded:
    """Return the messages of a pull response, and the error that stopped the decoder, if any.

    A message that cannot be decoded is not skipped: the messages before it are returned with the
    error, and the next pull starts at it.  If the response inflates to more than *limit* bytes in
    total, the error is an `InflationLimitError` at the position of the first record not decoded;
    each message alone may be of that size.
    """
    if queue.topic.startswith(LMQ_PREFIX):
        return _decode_light(data, queue, limit)
    return _decode_records(data, queue, limit)


def _decode_records(  # noqa: C901 - flat: it runs for every message
    data: bytes, queue: MessageQueue, limit: int
) -> Decoded:
    messages: list[MessageExt] = []
    append, unpack, plain_topic = messages.append, _PLAIN.unpack_from, queue.topic.encode()
    at, end, topic, room = 0, len(data), queue.topic, limit
    decode_plain = None if core is None else core.decode_plain
    try:
        while at < end:
            if decode_plain is not None:
                at = decode_plain(
                    MessageExt, messages, data, at, _UNUSUAL, plain_topic, topic, queue
                )
                if at == end:
                    break
            size, magic, offset, sys_flag, body_length = unpack(data, at)
            if sys_flag & _UNUSUAL or magic != MAGIC_V1:
                unusual = _decode_unusual(data, at, queue, room)
                messages += unusual
                room -= _grown(unusual) if sys_flag & _GROWS else 0
                at += size
                continue
            body_at = at + IPV4_HEAD
            topic_at = body_at + body_length + 1
            properties_at = topic_at + data[topic_at - 1] + 2
            next_at = at + size
            if data[topic_at : properties_at - 2] != plain_topic:
                raise _topic_error(topic, topic_at, at, body_length)
            length = data[properties_at - 2] << 8 | data[properties_at - 1]
            if properties_at + length != next_at or next_at > end or body_length < 0:
                raise CodecError("message size", at, f"{size} does not fit its parts")
            append(
                MessageExt(
                    topic,
                    data[body_at : topic_at - 1],
                    queue,
                    offset,
                    data[at:body_at],
                    data[properties_at:next_at],
                )
            )
            at = next_at
    except InflationLimitError as fault:
        return messages, InflationLimitError(fault.field, at, fault.reason)
    except CodecError as fault:
        return messages, fault
    except (struct_error, IndexError):
        return messages, CodecError("message", at, "the record is cut short")
    return messages, None


def _decode_light(data: bytes, queue: MessageQueue, limit: int) -> Decoded:
    """Decode messages of a light message queue, which are stored in other topics.

    They get the topic and the queue that they were read from, and their offset in it.
    """
    messages: list[MessageExt] = []
    at, room = 0, limit
    while at < len(data):
        try:
            record = RawRecord.read(data, at)
            topic = record.topic.decode("utf-8", "replace")
            stored = MessageQueue(topic, queue.broker_name, record.queue_id)
            some, fault = _decode_records(record.data, stored, room)
            if topic != queue.topic:  # else it was sent to the queue itself
                for message in some:
                    message.queue_offset = light_offset(message, queue.topic)
        except CodecError as error:
            return messages, type(error)(error.field, at, error.reason)
        if fault is not None:
            return messages, type(fault)(fault.field, at + fault.position, fault.reason)
        for message in some:
            message.topic, message.queue = queue.topic, queue
        room -= _grown(some) if any(each.sys_flag & _GROWS for each in some) else 0
        messages += some
        at += len(record.data)
    return messages, None


def light_offset(message: MessageExt, name: str) -> int:
    """Return the offset of *message* in the light queue *name*; CodecError if it has none."""
    names, offsets = message.property(LMQ_NAMES) or "", message.property(LMQ_OFFSETS) or ""
    for each, offset in zip(names.split(","), offsets.split(","), strict=False):
        if each == name and _QUEUE_OFFSET_TEXT.fullmatch(offset):
            return int(offset)
    raise CodecError(LMQ_OFFSETS, 0, f"{offsets!r} has no offset in {name}")


def _topic_error(topic: str, topic_at: int, at: int, body_length: int) -> CodecError:
    if body_length < 0:
        return CodecError("message size", at, f"its body has {body_length} bytes")
    return CodecError("topic", topic_at, f"a message of another topic than {topic}")


def decode_message(data: bytes, broker_name: str) -> MessageExt:
    """Return the only message in *data*, a record; CodecError if it is invalid or a batch."""
    messages = decode_record(data, stored_message(data, broker_name).queue)
    if len(messages) != 1:
        raise CodecError("message", 0, f"expected one, found {len(messages)}")
    return messages[0]


def decode_record(data: bytes, queue: MessageQueue) -> list[MessageExt]:
    """Return the message or batch in *data*, a record of *queue*; CodecError if it is invalid."""
    messages, fault = decode_messages(data, queue)
    if fault is not None:
        raise fault
    return messages


def stored_message(data: bytes, broker_name: str) -> MessageExt:
    """Return the record *data* with its body as stored, perhaps compressed or a batch.

    :raises CodecError: it is not a record
    """
    try:
        body_at, body_end, topic_at, properties_at = _bounds(data, 0)
        topic = data[topic_at : properties_at - 2].decode()
        queue = MessageQueue(topic, broker_name, _INT.unpack_from(data, _QUEUE_ID_AT)[0])
        (offset,) = _OFFSET.unpack_from(data, _QUEUE_OFFSET_AT)
    except (struct_error, UnicodeError) as cause:
        raise CodecError("message", 0, "the record is not a message") from cause
    head, properties = data[:body_at], data[properties_at:]
    return MessageExt(topic, data[body_at:body_end], queue, offset, head, properties)


class RawRecord(NamedTuple):
    """A record whose parts are not decoded."""

    data: bytes
    body_end: int
    topic_at: int
    properties_at: int

    @classmethod
    def read(cls, data: bytes, at: int) -> RawRecord:
        """Return the record of *data* that begins at *at*; CodecError if it is invalid."""
        try:
            _, *ends = _bounds(data, at)
            (size,) = _INT.unpack_from(data, at)
        except (struct_error, IndexError) as cause:
            raise CodecError("message", at, "the record is cut short") from cause
        return cls(data[at : at + size], *(each - at for each in ends))

    @property
    def topic(self) -> bytes:
        return self.data[self.topic_at : self.properties_at - 2]

    @property
    def queue_id(self) -> int:
        return int(_INT.unpack_from(self.data, _QUEUE_ID_AT)[0])

    @property
    def queue_offset(self) -> int:
        return int(_OFFSET.unpack_from(self.data, _QUEUE_OFFSET_AT)[0])

    def changed(self, topic: bytes, pair: bytes) -> RawRecord:
        """Return the record of *topic*, which is shorter, with another property."""
        properties = self.data[self.properties_at :].removesuffix(_PAIR_END)
        properties = _PAIR_END.join(filter(None, (properties, pair)))
        if len(properties) > MAX_PROPERTIES:
            raise CodecError("properties", self.properties_at, "there is no room for another one")
        rest = b"".join(
            (
                self.data[_INT.size : self.body_end],
                len(topic).to_bytes(self.topic_at - self.body_end, "big"),
                topic,
                _SHORT.pack(len(properties)),
                properties,
            )
        )
        return RawRecord.read(_INT.pack(_INT.size + len(rest)) + rest, 0)


def _decode_unusual(data: bytes, at: int, queue: MessageQueue, limit: int) -> list[MessageExt]:
    """Decode a record that is compressed, a batch, from IPv6 hosts or of version 2."""
    size, _, _, sys_flag, _ = _PLAIN.unpack_from(data, at)
    body_at, body_end, topic_at, properties_at = _bounds(data, at)
    end = at + size
    if data[topic_at : properties_at - 2] != queue.topic.encode():
        raise CodecError("topic", topic_at, f"a message of another topic than {queue.topic}")
    if properties_at + int.from_bytes(data[properties_at - 2 : properties_at], "big") != end:
        raise CodecError("properties length", properties_at - 2, "it does not end the record")
    body = data[body_at:body_end]
    if sys_flag & _GROWS:  # cheap compared to what follows
        (stored,) = _INT.unpack_from(data, at + _CRC_AT)
        _check_sum(body, stored, body_at)
        if limit <= 0:
            raise InflationLimitError("body", at, "the response inflates to more than the limit")
    if sys_flag & COMPRESSED:
        body = _inflated(body, sys_flag, body_at, limit)
    (offset,) = _OFFSET.unpack_from(data, at + _QUEUE_OFFSET_AT)
    outer = MessageExt(queue.topic, body, queue, offset, data[at:body_at], data[properties_at:end])
    if sys_flag & INNER_BATCH and sys_flag & NEED_UNWRAP:
        if not 0 <= offset < 2**63 - MAX_INNER:
            raise CodecError("queue offset", at + _QUEUE_OFFSET_AT, f"{offset} of an inner batch")
        return _unwrap(outer, body_at, limit)
    return [outer]


def checksum_fault(message: MessageExt) -> CodecError | None:
    """Verify the checksum of *message*; None if it is right, or was verified by the decoder."""
    if message.sys_flag & _GROWS:
        return None
    try:
        _check_sum(message.body, message.body_crc, IPV4_HEAD)
    except CodecError as fault:
        return fault
    return None


def _check_sum(body: bytes, stored: int, at: int) -> None:
    if stored and crc32(body) & CRC_MASK != stored:  # 0: no checksum
        raise CodecError("body", at, "its checksum differs from the stored one")


def _grown(messages: list[MessageExt]) -> int:
    """Return the approximate memory of *messages*."""
    return sum([len(each.body) + MESSAGE_BYTES for each in messages])


def _bounds(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Return the positions of body, body end, topic and properties of the record at *at*."""
    size, magic, _, sys_flag, _ = _PLAIN.unpack_from(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CodecError("magic", at + 4, f"{magic & 0xFFFFFFFF:#x} is not that of a message")
    if not SHORTEST <= size <= len(data) - at:
        raise CodecError("message size", at, f"{size} of {len(data) - at} bytes left")
    body_at = at + IPV4_HEAD + 12 * bool(sys_flag & BORN_IPV6) + 12 * bool(sys_flag & STORE_IPV6)
    (body_length,) = _INT.unpack_from(data, body_at - 4)
    body_end = body_at + body_length
    topic_at = body_end + (1 if magic == MAGIC_V1 else 2)
    if body_length < 0 or topic_at > at + size:
        raise CodecError("body length", body_at - 4, f"{body_length} runs past the record")
    properties_at = topic_at + int.from_bytes(data[body_end:topic_at], "big") + 2
    if properties_at > at + size:
        raise CodecError("topic length", body_end, "it runs past the record")
    return body_at, body_end, topic_at, properties_at


def _inflated(body: bytes, sys_flag: int, at: int, limit: int) -> bytes:
    try:
        return inflate(body, sys_flag, limit=limit)
    except InflationLimitError:
        raise
    except CodecError as fault:
        raise CodecError(fault.field, at, fault.reason) from fault


def _unwrap(outer: MessageExt, at: int, limit: int) -> list[MessageExt]:
    """Return the messages of an inner batch, with consecutive offsets."""
    inner: list[MessageExt] = []
    most = max(1, limit // MESSAGE_BYTES)
    try:
        for index, (flag, body, properties) in enumerate(decode_batch(outer.body)):
            if index >= MAX_INNER:
                raise CodecError("entry", 0, f"there are more than {MAX_INNER}")
            if index >= most:
                raise InflationLimitError(
                    "inner batch", at, "it has more messages than the limit allows"
                )
            offset = outer.queue_offset + index
            head = bytearray(outer.head)
            head[16:20] = flag.to_bytes(4, "big", signed=True)
            head[_QUEUE_OFFSET_AT : _QUEUE_OFFSET_AT + 8] = offset.to_bytes(8, "big")
            message = MessageExt(outer.topic, body, outer.queue, offset, bytes(head), properties)
            inner.append(message)
    except InflationLimitError:
        raise
    except CodecError as fault:
        reason = f"{fault.field} at byte {fault.position} of the batch: {fault.reason}"
        raise CodecError("inner batch", at, reason) from fault
    return inner


def encode_batch_entry(body: bytes, properties: bytes, flag: int) -> tuple[bytes, ...]:
    """Return the parts of an entry of a batch body, to be joined with the others."""
    size = _ENTRY.size + len(body) + 2 + len(properties)
    head = _ENTRY.pack(size, 0, 0, flag, len(body))  # brokers fill in magic and checksum
    return head, body, _SHORT.pack(len(properties)), properties


def decode_batch(data: bytes) -> Iterable[tuple[int, bytes, bytes]]:
    """Yield (flag, body, properties) per entry of a batch; CodecError if one is invalid."""
    at, end = 0, len(data)
    while at < end:
        try:
            size, _, _, flag, body_length = _ENTRY.unpack_from(data, at)
            body_end = at + _ENTRY.size + body_length
            (length,) = _SHORT.unpack_from(data, body_end)
        except struct_error as cause:
            raise CodecError("batch entry", at, "it is cut short") from cause
        next_at = body_end + 2 + length
        if body_length < 0 or next_at != at + size or next_at > end:
            raise CodecError("batch entry", at, f"size {size} does not fit its parts")
        yield flag, data[at + _ENTRY.size : body_end], data[body_end + 2 : next_at]
        at = next_at
