"""Message store of a broker: a log in memory with records in the format of brokers."""

from __future__ import annotations

import socket
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, count
from operator import attrgetter
from struct import Struct
from typing import Final

import msgspec
from msgspec.structs import replace

from rocketmq_aio.embedded.broker.waiters import Waiters
from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.server import Version
from rocketmq_aio.model.names import DLQ_PREFIX, LMQ_PREFIX, RETRY_PREFIX
from rocketmq_aio.model.properties import (
    LMQ_NAMES,
    LMQ_OFFSETS,
    TAGS,
    UNIQ_KEY,
    encode_properties,
    find_property,
    parse_properties,
)
from rocketmq_aio.protocol.codes import BORN_IPV6, STORE_IPV6
from rocketmq_aio.protocol.record import CRC_MASK, IPV4_HEAD, MAGIC_V1, MAGIC_V2

REGION: Final = "DefaultRegion"
TRACE_FIELDS: Final = {"MSG_REGION": REGION, "TRACE_ON": "true"}
MAX_V1_TOPIC: Final = 127
READ_WRITE: Final = 6
UNIT: Final = 1  # sysFlag of topics: first sent to by a unit
UNIT_GROUP: Final = 2  # retry topic of a group that is in a unit
# Of topics whose messages 5.5.0 puts into no light message queues.
WITHOUT_LIGHT_QUEUES: Final = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "SCHEDULE_TOPIC_XXXX")
MESSAGE_OVERHEAD: Final = 256  # approximate memory of a message without its record
DROPPED_SHARE: Final = 16  # retention makes room for this share of the limit at once

# total size, magic, crc, queue id, flag, queue offset, log offset, sysFlag, born time and host,
# store time and host, reconsume times, prepared transaction offset, body length
_HEAD: Final = Struct(">iiIiiqqiq8sq8siqi")
_BODY_LENGTH_AT: Final = IPV4_HEAD - 4
_LOOPBACK: Final = bytes([127, 0, 0, 1])
_HOST: Final = Struct(">4si")
_SHORT: Final = Struct(">H")
_MAGIC_V1: Final = MAGIC_V1.to_bytes(4, signed=True)
_TAGS: Final = f"{TAGS}\x01".encode()
_log_offset = attrgetter("log_offset")
_store_ms = attrgetter("store_ms")


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str] = {}
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: tuple[str, int] = ("127.0.0.1", 0)
    reconsume_times: int = 0
    prepared_offset: int = 0  # position of its half message


class StoredMessage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stored message; all but its position is read from the record.

    In a light message queue it has the position there, but the record of its topic.
    """

    topic: str
    queue_id: int
    offset: int
    log_offset: int
    store_ms: int
    record: bytes

    @property
    def body(self) -> bytes:
        return self.record[IPV4_HEAD : self._body_end]

    @property
    def properties(self) -> dict[str, str]:
        return parse_properties(self.raw_properties)

    @property
    def raw_properties(self) -> bytes:
        record, at = self.record, self._body_end
        if record[4:8] == _MAGIC_V1:
            return record[at + 3 + record[at] :]
        return record[at + 4 + int.from_bytes(record[at : at + 2]) :]

    @property
    def tag(self) -> str | None:
        return find_property(self.raw_properties, _TAGS)

    @property
    def message_id(self) -> str:
        """The id assigned by the broker: store host and log offset."""
        return f"{_hex(self.record[64:72])}{self.log_offset:016X}"

    @property
    def reconsume_times(self) -> int:
        return int.from_bytes(self.record[72:76], "big")

    @property
    def _body_end(self) -> int:
        length = int.from_bytes(self.record[_BODY_LENGTH_AT:IPV4_HEAD], "big")
        return IPV4_HEAD + length

    def to_new(self, topic: str, queue_id: int, **changes: object) -> NewMessage:
        """Return the message to store it again, in *topic*."""
        fields = _HEAD.unpack_from(self.record)
        host, port = _HOST.unpack(fields[9])
        message = NewMessage(
            topic=topic,
            queue_id=queue_id,
            body=self.body,
            properties=self.properties,
            flag=fields[4],
            sys_flag=fields[7],
            born_ms=fields[8],
            born_host=(socket.inet_ntoa(host), port),
            reconsume_times=fields[12],
        )
        return replace(message, **changes)


class QueueLog:
    """Messages of one queue; the oldest may have been deleted."""

    __slots__ = ("messages", "min_offset")

    def __init__(self, min_offset: int = 0) -> None:
        self.min_offset = min_offset
        self.messages: list[StoredMessage] = []

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.messages)

    def get(self, offset: int) -> StoredMessage | None:
        """Return the message at *offset*; None if it is deleted."""
        index = offset - self.min_offset
        return self.messages[index] if 0 <= index < len(self.messages) else None

    def read(self, offset: int, most: int) -> list[StoredMessage]:
        """Return up to *most* messages from *offset*, which is not below the minimum."""
        index = offset - self.min_offset
        return self.messages[index : index + most]

    def drop_before(self, offset: int) -> None:
        """Delete the messages before *offset*, as a broker does with old files."""
        if offset > self.min_offset:
            del self.messages[: offset - self.min_offset]
            self.min_offset = offset

    def drop_stored_before(self, log_offset: int) -> int:
        """Delete the messages before a log offset; return how many."""
        dropped = bisect_left(self.messages, log_offset, key=_log_offset)
        self.drop_before(self.min_offset + dropped)
        return dropped

    def search(self, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at *timestamp_ms* or later."""
        return self.min_offset + bisect_left(self.messages, timestamp_ms, key=_store_ms)


class Topic(msgspec.Struct, array_like=True):
    """Queues of a topic, and its settings; a queue that is no longer used keeps its messages."""

    queues: list[QueueLog]
    perm: int = READ_WRITE
    read_queues: int = 0
    write_queues: int = 0
    sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}

    def to_read(self) -> list[tuple[int, QueueLog]]:
        """Return the queues that members may read, with their numbers."""
        return list(enumerate(self.queues[: self.read_queues]))

    def to_write(self) -> list[tuple[int, QueueLog]]:
        """Return the queues that producers may write to, with their numbers."""
        return list(enumerate(self.queues[: self.write_queues]))


class MessageStore:
    """All topics of one broker.

    :param max_bytes: approximate memory of messages; the oldest are deleted, as by retention
    :ivar arrivals: waiters by topic, and by topic and queue id
    :ivar on_stored: called with every new message
    :ivar has_light_queues: ``enableLmq``: there are light message queues
    :ivar fills_light_queues: with ``enableMultiDispatch``, too: messages go into those they name
    :ivar light_queues: those with an offset, by name
    """

    def __init__(self, version: Version, cluster: str, clock: Clock, max_bytes: int) -> None:
        self.topics: dict[str, Topic] = {}
        self.arrivals = Waiters(clock)
        self.clock = clock
        self.log: list[StoredMessage] = []  # of all queues, in the order of their storage
        self.log_end = 0
        self.on_stored: Callable[[StoredMessage], object] | None = None
        self.has_light_queues = self.fills_light_queues = False
        self.light_queues: dict[str, QueueLog] = {}
        self._max_bytes = max_bytes
        self._bytes = 0
        self._host = packed_host(("127.0.0.1", 0))
        self._is_5 = version.is_5
        self._added = {"CLUSTER": cluster}
        if self._is_5:
            self._added = TRACE_FIELDS | self._added
        self._made_ids = count(1)

    @property
    def host(self) -> tuple[str, int]:
        """Address of the broker, in message ids."""
        host, port = _HOST.unpack(self._host)
        return socket.inet_ntoa(host), port

    @host.setter
    def host(self, host: tuple[str, int]) -> None:
        self._host = packed_host(host)

    @property
    def log_start(self) -> int:
        """Log offset of the oldest message."""
        return self.log[0].log_offset if self.log else self.log_end

    def create_topic(
        self, name: str, queues: int, perm: int = READ_WRITE, sys_flag: int = 0
    ) -> Topic:
        """Add a topic, or queues to one that exists, whose flags do not change."""
        topic = self.topics.setdefault(name, Topic([], sys_flag=sys_flag))
        topic.queues += [QueueLog() for _ in range(queues - len(topic.queues))]
        topic.read_queues = max(queues, topic.read_queues)
        topic.write_queues = max(queues, topic.write_queues)
        topic.perm = perm
        return topic

    def ensure_topic(self, name: str, queues: int, sys_flag: int = 0) -> str:
        """Add a topic if it does not exist; one that exists keeps its settings."""
        if name not in self.topics:
            self.create_topic(name, queues, sys_flag=sys_flag)
        return name

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic; None if it does not exist.  Every light message queue exists."""
        topic = self.topics.get(name)
        if topic is None and self.is_light(name):
            queue = self.light_queues.get(name) or QueueLog()
            topic = Topic([queue], read_queues=1, write_queues=1)
        return topic

    def is_light(self, name: str) -> bool:
        """Whether it is the name of a light message queue."""
        return self.has_light_queues and name.startswith(LMQ_PREFIX)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; light message queues keep its messages."""
        self.topics.pop(name, None)
        self.light_queues.pop(name, None)
        self.log = [stored for stored in self.log if stored.topic != name]
        light = sum(len(queue.messages) for queue in self.light_queues.values())
        self._bytes = sum(map(_size, self.log)) + light * MESSAGE_OVERHEAD

    def queue(self, topic: str, queue_id: int) -> QueueLog | None:
        """Return a queue; None if it does not exist."""
        found = self.find_topic(topic)
        if found is None or not 0 <= queue_id < len(found.queues):
            return None
        return found.queues[queue_id]

    def find(self, log_offset: int) -> StoredMessage | None:
        """Return the message at *log_offset*; None if there is none or it is deleted."""
        at = bisect_left(self.log, log_offset, key=_log_offset)
        if at < len(self.log) and self.log[at].log_offset == log_offset:
            return self.log[at]
        return None

    def stored_between(self, begin_ms: int, end_ms: int) -> Iterator[StoredMessage]:
        """Iterate over the messages stored in a time range, the newest first."""
        low = bisect_left(self.log, begin_ms, key=_store_ms)
        high = bisect_left(self.log, end_ms + 1, key=_store_ms)
        return (self.log[index] for index in range(high - 1, low - 1, -1))

    def rate(self, seconds: int) -> float:
        """Return how many messages per second were stored in the last *seconds*."""
        since = bisect_left(self.log, self.clock.now_ms() - seconds * 1000, key=_store_ms)
        return (len(self.log) - since) / seconds

    # --- storing --------------------------------------------------------------------------------

    def encode_properties(self, message: NewMessage) -> bytes:
        """Return the properties of a single message as stored: the broker adds some."""
        properties = message.properties | self._added
        if not self._is_5:
            return encode_properties(properties)[:-1].encode()
        if UNIQ_KEY not in properties:
            properties[UNIQ_KEY] = f"FD{next(self._made_ids):030X}"
        return encode_properties(properties).encode()

    def append(self, message: NewMessage) -> StoredMessage:
        """Store a single message."""
        return self.append_encoded(message, self.encode_properties(message))

    def append_batch(
        self, batch: NewMessage, entries: Iterable[tuple[int, bytes, bytes]]
    ) -> list[StoredMessage]:
        """Store the entries of *batch*: (flag, body, properties).

        5.5.0 stores the properties as sent; 4.9 adds its own and those of the batch.
        """
        added = b""
        if not self._is_5:
            added = encode_properties(batch.properties | self._added)[:-1].encode()
        stored = []
        for flag, body, properties in entries:
            text = properties
            if added:
                text = properties.removesuffix(b"\x02") + b"\x02" + added if properties else added
            stored.append(self.append_encoded(batch, text, (flag, body)))
        return stored

    def append_encoded(
        self, message: NewMessage, properties: bytes, entry: tuple[int, bytes] | None = None
    ) -> StoredMessage:
        """Store *message*, or one *entry* (flag, body) of a batch, with encoded properties."""
        topic, queue_id = message.topic, message.queue_id
        log = self.topics[topic].queues[queue_id]
        light: tuple[str, ...] = ()
        if LMQ_NAMES in message.properties and entry is None:  # brokers put no batch there
            light, properties = self._numbered(message, properties)
        now = self.clock.now_ms()
        offset, log_offset = log.min_offset + len(log.messages), self.log_end
        flag, body = entry or (message.flag, message.body)
        parts, at = (flag, body, properties), (offset, log_offset)
        record = encode_record(message, parts, at, now, self._host)
        stored = StoredMessage(topic, queue_id, offset, log_offset, now, record)
        log.messages.append(stored)
        self.log.append(stored)
        self.log_end = log_offset + len(record)
        self._bytes += len(record) + MESSAGE_OVERHEAD
        for name in light:
            self._put_light(name, stored)
        if self._bytes > self._max_bytes:
            self._drop_oldest()
        if self.arrivals.waiting:
            self.arrivals.wake((topic, queue_id), topic)
        if self.on_stored is not None:
            self.on_stored(stored)
        return stored

    def _numbered(self, message: NewMessage, properties: bytes) -> tuple[tuple[str, ...], bytes]:
        """Return the light message queues that *message* goes into, and its properties.

        They get its offsets there.
        """
        barred = self._is_5 and message.topic.startswith(WITHOUT_LIGHT_QUEUES)
        if barred or not self.fills_light_queues:
            return (), properties
        names = message.properties[LMQ_NAMES].split(",")
        queues = {name: self.light_queues.setdefault(name, QueueLog()) for name in names}
        offsets = {LMQ_OFFSETS: ",".join(str(queues[name].max_offset) for name in names)}
        numbered = replace(message, properties=message.properties | offsets)
        return tuple(queues), self.encode_properties(numbered)

    def _put_light(self, name: str, stored: StoredMessage) -> None:
        queue = self.light_queues[name]
        queue.messages.append(replace(stored, topic=name, queue_id=0, offset=queue.max_offset))
        self._bytes += MESSAGE_OVERHEAD
        self.arrivals.wake((name, 0), name)

    def record_of(self, message: NewMessage, stored: StoredMessage) -> bytes:
        """Return the record of *message* at the position of *stored*."""
        parts = message.flag, message.body, encode_properties(message.properties).encode()
        at = stored.offset, stored.log_offset
        return encode_record(message, parts, at, stored.store_ms, self._host)

    def restore(self, messages: Iterable[StoredMessage], log_end: int) -> None:
        """Add messages with their positions to topics that exist; the store is empty."""
        for stored in messages:
            self.topics[stored.topic].queues[stored.queue_id].messages.append(stored)
            self.log.append(stored)
            self._bytes += _size(stored)
        self.log_end = log_end

    def restore_light_queue(self, name: str, begin: int, log_offsets: Sequence[int]) -> None:
        """Add a light message queue, without messages up to the last whose topic was deleted."""
        found = [self.find(log_offset) for log_offset in log_offsets]
        lost = max((at for at, stored in enumerate(found, 1) if stored is None), default=0)
        self.light_queues[name] = QueueLog(begin + lost)
        for stored in found[lost:]:
            assert stored is not None
            self._put_light(name, stored)

    def _drop_oldest(self) -> None:
        room = self._max_bytes - self._max_bytes // DROPPED_SHARE
        while self._bytes > room and len(self.log) > 1:
            dropped = min(len(self.log) // DROPPED_SHARE + 1, len(self.log) - 1)
            self._bytes -= sum(map(_size, self.log[:dropped]))
            del self.log[:dropped]
            for queue in self.light_queues.values():
                self._bytes -= MESSAGE_OVERHEAD * queue.drop_stored_before(self.log_start)
        for queue in chain.from_iterable(topic.queues for topic in self.topics.values()):
            queue.drop_stored_before(self.log_start)


def encode_record(
    message: NewMessage,
    parts: tuple[int, bytes, bytes],
    at: tuple[int, int],
    store_ms: int,
    host: bytes,
) -> bytes:
    """Return the record of a message as brokers store it.

    :param parts: flag, body and encoded properties
    :param at: offset in its queue, and in the log
    :param host: packed address of the broker
    """
    flag, body, properties = parts
    topic = message.topic.encode()
    short = len(topic) <= MAX_V1_TOPIC
    head = _HEAD.pack(
        IPV4_HEAD + len(body) + len(topic) + len(properties) + (3 if short else 4),
        MAGIC_V1 if short else MAGIC_V2,
        zlib.crc32(body) & CRC_MASK,
        message.queue_id,
        flag,
        *at,
        message.sys_flag & ~(BORN_IPV6 | STORE_IPV6),  # hosts have 4 bytes, whatever was sent
        message.born_ms,
        packed_host(message.born_host),
        store_ms,
        host,
        message.reconsume_times,
        message.prepared_offset,
        len(body),
    )
    length = bytes((len(topic),)) if short else _SHORT.pack(len(topic))
    return b"".join((head, body, length, topic, _SHORT.pack(len(properties)), properties))


def _size(stored: StoredMessage) -> int:
    return len(stored.record) + MESSAGE_OVERHEAD


@lru_cache(maxsize=64)
def _hex(host: bytes) -> str:
    return host.hex().upper()


@lru_cache(maxsize=4096)
def packed_host(host: tuple[str, int]) -> bytes:
    """Return a host as records and message ids contain it: others than IPv4 as 127.0.0.1."""
    try:
        packed = socket.inet_aton(host[0])
    except OSError:
        packed = _LOOPBACK
    return _HOST.pack(packed, host[1])
