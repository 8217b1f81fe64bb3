"""Message store of the broker: logs in memory with records in the format of brokers."""

from __future__ import annotations

import socket
import zlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from struct import Struct
from typing import Final

from rocketmq_aio.embedded.notifier import Notifier
from rocketmq_aio.embedded.server import Version
from rocketmq_aio.model.properties import TAGS, UNIQ_KEY, encode_properties, parse_properties
from rocketmq_aio.protocol.record import MAGIC_V1, MAGIC_V2
from rocketmq_aio.protocol.subscription import java_hash

REGION: Final = "DefaultRegion"
CRC_MASK: Final = 0x7FFF_FFFF
MAX_V1_TOPIC: Final = 127
READ_WRITE: Final = 6

# total size, magic, crc, queue id, flag, queue offset, log offset, sysFlag, born time
_HEAD: Final = Struct(">iiIiiqqiq")
_HOST: Final = Struct(">4si")
_STORED: Final = Struct(">q")
_TAIL: Final = Struct(">iqi")  # reconsume times, prepared transaction offset, body length
_SHORT: Final = Struct(">H")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message sent by a producer."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: tuple[str, int] = ("127.0.0.1", 0)
    reconsume_times: int = 0
    prepared_offset: int = 0  # position of its half message


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A stored message."""

    offset: int
    log_offset: int
    store_ms: int
    body: bytes
    properties: dict[str, str]
    record: bytes
    message_id: str  # assigned by the broker

    @property
    def tag_hash(self) -> int | None:
        """Hash for tag filters; None without a tag."""
        return java_hash(self.properties[TAGS]) if TAGS in self.properties else None


@dataclass(slots=True)
class QueueLog:
    """Messages of one queue; the oldest may have been deleted."""

    min_offset: int = 0
    messages: list[StoredMessage] = field(default_factory=list)

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.messages)

    def since(self, offset: int) -> list[StoredMessage]:
        return self.messages[offset - self.min_offset :]

    def drop_before(self, offset: int) -> None:
        """Delete the messages before *offset*, as a broker does with old files."""
        del self.messages[: offset - self.min_offset]
        self.min_offset = offset

    def search(self, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at *timestamp_ms* or later."""
        return self.min_offset + bisect_left(
            self.messages, timestamp_ms, key=lambda stored: stored.store_ms
        )


@dataclass(slots=True)
class Topic:
    """Queues of a topic, and its settings; a queue that is no longer used keeps its messages."""

    queues: list[QueueLog]
    perm: int = READ_WRITE
    read_queues: int = 0
    write_queues: int = 0
    sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class MessageStore:
    """All topics of one broker; *changed* is notified of new messages."""

    def __init__(self, version: Version, cluster: str) -> None:
        self.topics: dict[str, Topic] = {}
        self.changed = Notifier()
        self.host: tuple[str, int] = ("127.0.0.1", 0)
        self._version = version
        self._cluster = cluster
        self.log_end = 0
        self._made_ids = count(1)

    def create_topic(self, name: str, queues: int, perm: int = READ_WRITE) -> Topic:
        """Add a topic, or queues to one that exists."""
        topic = self.topics.setdefault(name, Topic([]))
        topic.queues += [QueueLog() for _ in range(queues - len(topic.queues))]
        topic.read_queues = max(queues, topic.read_queues)
        topic.write_queues = max(queues, topic.write_queues)
        topic.perm = perm
        return topic

    def at(self, log_offset: int) -> StoredMessage | None:
        """Return the message that begins at *log_offset*."""
        logs = [log for topic in self.topics.values() for log in topic.queues]
        found = (each for log in logs for each in log.messages if each.log_offset == log_offset)
        return next(found, None)

    def append(self, incoming: NewMessage, now_ms: int) -> StoredMessage:
        """Store a single message: the broker adds properties."""
        properties = parse_properties(incoming.properties)
        if self._version.is_5:
            properties |= {"MSG_REGION": REGION, "TRACE_ON": "true"}
            properties.setdefault(UNIQ_KEY, f"FD{next(self._made_ids):030X}")
        properties["CLUSTER"] = self._cluster
        text = encode_properties(properties)
        return self._put(incoming, text if self._version.is_5 else text[:-1], now_ms)

    def append_entry(
        self, entry: NewMessage, batch: Mapping[str, str], now_ms: int
    ) -> StoredMessage:
        """Store an entry of a batch: 5.5.0 stores it as sent, 4.9 adds properties of the batch."""
        text = entry.properties.decode()
        if not self._version.is_5:
            added = encode_properties({**batch, "CLUSTER": self._cluster})[:-1]
            text = f"{text.removesuffix(chr(2))}\x02{added}" if text else added
        return self._put(entry, text, now_ms)

    def _put(self, incoming: NewMessage, properties: str, now_ms: int) -> StoredMessage:
        log = self.topics[incoming.topic].queues[incoming.queue_id]
        at = log.max_offset, self.log_end
        record = self._record(incoming, properties.encode(), at, now_ms)
        stored = StoredMessage(
            offset=log.max_offset,
            log_offset=self.log_end,
            store_ms=now_ms,
            body=incoming.body,
            properties=parse_properties(properties.encode()),
            record=record,
            message_id=(packed_host(self.host) + _STORED.pack(self.log_end)).hex().upper(),
        )
        log.messages.append(stored)
        self.log_end += len(record)
        self.changed.notify()
        return stored

    def record(
        self, incoming: NewMessage, properties: Mapping[str, str], stored: StoredMessage
    ) -> bytes:
        """Return the record of *incoming* at the position of *stored*."""
        encoded = encode_properties(dict(properties)).encode()
        at = stored.offset, stored.log_offset
        return self._record(incoming, encoded, at, stored.store_ms)

    def _record(
        self, incoming: NewMessage, properties: bytes, at: tuple[int, int], now_ms: int
    ) -> bytes:
        topic = incoming.topic.encode()
        short = len(topic) <= MAX_V1_TOPIC
        tail = (
            packed_host(incoming.born_host),
            _STORED.pack(now_ms),
            packed_host(self.host),
            _TAIL.pack(incoming.reconsume_times, incoming.prepared_offset, len(incoming.body)),
            incoming.body,
            bytes([len(topic)]) if short else _SHORT.pack(len(topic)),
            topic,
            _SHORT.pack(len(properties)),
            properties,
        )
        head = _HEAD.pack(
            _HEAD.size + sum(map(len, tail)),
            MAGIC_V1 if short else MAGIC_V2,
            zlib.crc32(incoming.body) & CRC_MASK,
            incoming.queue_id,
            incoming.flag,
            *at,
            incoming.sys_flag,
            incoming.born_ms,
        )
        return b"".join((head, *tail))


def packed_host(host: tuple[str, int]) -> bytes:
    return _HOST.pack(socket.inet_aton(host[0]), host[1])
