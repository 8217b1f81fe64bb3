"""Messages: `Message` to send, `MessageExt` received."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from ipaddress import IPv6Address
from struct import Struct
from typing import Any, Final, Generic

import msgspec

from rocketmq_aio.core import core
from rocketmq_aio.model.codec import Codec, V_co, decode_with
from rocketmq_aio.model.errors import CodecError, InvalidMessageError, PayloadError, repr_of
from rocketmq_aio.model.names import send_fault
from rocketmq_aio.model.properties import (
    CHECKED,
    DELAY,
    KEYS,
    MAX_PRIORITY,
    PRIORITY,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    WAIT,
    check_encoded,
    find_property,
    join_keys,
    parse_properties,
    read_priority,
    split_keys,
    take_properties,
    user_properties,
)
from rocketmq_aio.model.timestamps import EPOCH, MILLISECOND, millis_of
from rocketmq_aio.model.values import MessageQueue

MAX_DELAY_LEVEL: Final = 0x7FFF_FFFF  # brokers use their last level for a larger one
MAX_DELAY_SECONDS: Final = 10.0**12  # brokers allow far less; fits 64-bit milliseconds
MAX_FLAG: Final = 0x7FFF_FFFF
MAX_CHECKED_TOPICS: Final = 10_000

_checked_topics: set[str] = set()  # valid ones: each is validated once, not per message


class Message:
    """A message to send; validated when created and not changed by sending: it can be sent again.

    :param body: at least 1 byte; `bytes`, `bytearray` or `memoryview`
    :param tags: one tag (the broker filters by a single tag per message)
    :param keys: one key or several, without spaces; the broker indexes them for search
    :param properties: user properties; names of system properties are rejected
    :param delay_level: of the broker's delay table, by default 1 (1 s) to 18 (2 h); 0 = now
    :param delay_seconds: delay from broker receipt; brokers from 5.0
    :param deliver_at: delivery time, an aware datetime; brokers from 5.0
    :param sharding_key: messages with the same key go to one queue in order (see `Producer.send`)
    :param priority: from 0: brokers from 5.4 store the message in the queue of this number, or in
        the last one; pop consumers receive the highest first, of a topic with the attribute
        ``message.type=PRIORITY``.  Not with a delay or a sharding key
    :param wait_store_ok: False: the broker responds before flush and replication
    :raises InvalidMessageError: an argument is invalid
    """

    __slots__ = (
        "body",
        "encoded_properties",
        "flag",
        "properties",
        "sharding_key",
        "timed",
        "topic",
    )

    topic: str
    body: bytes
    flag: int
    properties: dict[str, str]
    encoded_properties: str
    sharding_key: str | None
    timed: bool  # has a delivery time, which brokers before 5.0 do not support

    def __init__(  # noqa: C901 - flat: a call per check would make a send 10 % slower
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        delay_seconds: float | None = None,
        deliver_at: datetime | None = None,
        sharding_key: str | None = None,
        priority: int | None = None,
        wait_store_ok: bool = True,
    ) -> None:
        if type(topic) is not str or topic not in _checked_topics:
            topic = _checked_topic(topic)
        if type(body) is not bytes:
            body = _as_bytes(topic, body)
        if not body:
            raise InvalidMessageError(topic, "the body is empty; brokers of 5.x refuse that")
        named: dict[str, str] = {}
        encoded = ""
        if properties is not None:
            encoded = take_properties(topic, properties, named)
        # Joined piece by piece: faster than encoding the whole dict for the usual message.
        if keys is not None and (joined := join_keys(topic, keys)):
            named[KEYS] = joined
            encoded += f"KEYS\x01{joined}\x02"
        if tags is not None:
            if type(tags) is not str or "|" in tags or not tags.strip():
                tags = _checked_tag(topic, tags)
            named[TAGS] = tags
            encoded += f"TAGS\x01{tags}\x02"
        self.timed = False
        if delay_level or delay_seconds is not None or deliver_at is not None:
            when = _delivery_time(topic, delay_level, delay_seconds, deliver_at)
            if when is not None:
                name, value = when
                named[name] = value
                encoded += f"{name}\x01{value}\x02"
                self.timed = name != DELAY
        if sharding_key is not None:
            named[SHARDING_KEY] = sharding_key = _checked_sharding_key(topic, sharding_key)
            encoded += f"{SHARDING_KEY}\x01{sharding_key}\x02"
        if priority is not None:
            named[PRIORITY] = text = _checked_priority(topic, priority, named)
            encoded += f"{PRIORITY}\x01{text}\x02"
        if wait_store_ok is not True and wait_store_ok is not False:
            reason = f"wait_store_ok={repr_of(wait_store_ok)}: expected True or False"
            raise InvalidMessageError(topic, reason)
        named[WAIT] = wait = "true" if wait_store_ok else "false"
        encoded += f"WAIT\x01{wait}\x02"
        pairs = len(named)
        if not encoded.count("\x01") == encoded.count("\x02") == pairs or not encoded.isascii():
            check_encoded(topic, encoded, pairs)
        self.topic = topic
        self.body = body
        self.flag = _checked_flag(topic, flag) if flag else 0
        self.sharding_key = sharding_key
        self.properties = named
        self.encoded_properties = encoded

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, maybe none."""
        return split_keys(self.properties.get(KEYS, ""))

    @property
    def delay_level(self) -> int:
        """The delay level; 0 means now."""
        return int(self.properties.get(DELAY, "0"))

    @property
    def delayed(self) -> bool:
        """Whether it has a delay level or a delivery time."""
        return self.timed or DELAY in self.properties

    @property
    def priority(self) -> int | None:
        """The priority, or None."""
        return read_priority(self.properties.get(PRIORITY))

    def __repr__(self) -> str:
        return f"<Message {self.topic!r} {len(self.body)} bytes tags={self.tags!r}>"


if core is not None:
    core.accelerate_messages(Message, _checked_topics, CHECKED)


def _checked_topic(topic: object) -> str:
    """Return *topic* as a plain `str`: a member of a string enum is formatted by its name."""
    if (fault := send_fault(topic)) is not None:
        raise InvalidMessageError(topic, fault)
    assert isinstance(topic, str)
    plain = str.__str__(topic)
    if len(_checked_topics) < MAX_CHECKED_TOPICS:
        _checked_topics.add(plain)
    return plain


def _as_bytes(topic: str, body: object) -> bytes:
    if not isinstance(body, bytes | bytearray | memoryview):
        kind = type(body).__name__
        raise InvalidMessageError(topic, f"the body is {kind}, expected bytes (encode text first)")
    return bytes(body)


def _checked_tag(topic: str, tag: object) -> str:
    if not isinstance(tag, str) or not tag.strip():
        raise InvalidMessageError(topic, f"tags={repr_of(tag)}: expected one non-empty string")
    if "|" in tag:
        raise InvalidMessageError(
            topic, f"tags={repr_of(tag)}: a message has one tag, without a bar"
        )
    return str.__str__(tag)


def _checked_flag(topic: str, flag: object) -> int:
    if type(flag) is not int or not -MAX_FLAG - 1 <= flag <= MAX_FLAG:
        raise InvalidMessageError(
            topic, f"flag={repr_of(flag)}: a signed 32-bit number is expected"
        )
    return flag


def _checked_sharding_key(topic: str, key: object) -> str:
    """Return *key*; `check_encoded` checks it for separators."""
    if not isinstance(key, str) or not key.strip():
        raise InvalidMessageError(
            topic, f"sharding_key={repr_of(key)}: expected a non-empty string"
        )
    return str.__str__(key)


def _checked_priority(topic: str, priority: object, named: Mapping[str, str]) -> str:
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        reason = f"priority={repr_of(priority)}: expected a number from 0 to {MAX_PRIORITY}"
        raise InvalidMessageError(topic, reason)
    for name in (DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS, SHARDING_KEY):
        if name in named:
            reason = f"priority={priority}: brokers drop it from a message with a delay or a key"
            raise InvalidMessageError(topic, reason)
    return str(priority)


def _delivery_time(topic: str, level: object, seconds: Any, at: object) -> tuple[str, str] | None:  # noqa: ANN401
    """Return the property of the delivery time as (name, value); None: no delay."""
    if bool(level) + (seconds is not None) + (at is not None) > 1:
        reason = "give one of delay_level, delay_seconds and deliver_at"
        raise InvalidMessageError(topic, reason)
    if at is not None:
        if not isinstance(at, datetime) or at.utcoffset() is None:
            reason = f"deliver_at={repr_of(at)}: expected a datetime with a time zone"
            raise InvalidMessageError(topic, reason)
        return TIMER_DELIVER_MS, str(max(0, millis_of(at)))
    if seconds is not None:
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 <= seconds <= MAX_DELAY_SECONDS:
            reason = f"delay_seconds={repr_of(seconds)}: expected a number of seconds (0 = now)"
            raise InvalidMessageError(topic, reason)
        return (TIMER_DELAY_MS, str(math.ceil(seconds * 1000))) if seconds else None
    if type(level) is not int or not 0 < level <= MAX_DELAY_LEVEL:
        reason = f"delay_level={repr_of(level)}: expected 1 to {MAX_DELAY_LEVEL} (0 = now)"
        raise InvalidMessageError(topic, reason)
    return DELAY, str(level)


_HEAD = Struct(">iiiiiqqiq")  # size magic crc queue-id flag queue-offset log-offset sys-flag born
_AFTER_HOST = Struct(">iq")  # port, store time
_TAIL = Struct(">iiqi")  # port, reconsume times, prepared transaction offset, body length
_BORN_IPV6: Final = 0x10
_STORE_IPV6: Final = 0x20
_BORN_AT: Final = 48


class MessageExt(msgspec.Struct, Generic[V_co], gc=False, eq=False):
    """A received message; ``MessageExt[Order]`` is one whose `value` is an ``Order``.

    The fixed part of the record and the property string stay bytes and are decoded on access:
    most handlers read little but the body.
    """

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    head: bytes  # the fixed fields of the stored record, hosts included
    raw_properties: bytes
    parsed_properties: dict[str, str] | None = None
    done: bool = False  # used by the process queue
    local_retries: int = 0  # retries in this process, which the broker does not count
    codec: Codec | None = None  # the codec of the consumer
    decoded: Any = msgspec.UNSET

    @property
    def value(self) -> V_co:
        """The body as the consumer's ``codec`` reads it, on first use; without one the body.

        :raises PayloadError: the codec cannot read it
        """
        if self.decoded is msgspec.UNSET:
            codec = self.codec
            self.decoded = self.body if codec is None else decode_with(codec, self.body)
        value: V_co = self.decoded
        return value

    @property
    def properties(self) -> dict[str, str]:
        """All properties as a plain dict, built on first use."""
        parsed = self.parsed_properties
        if parsed is None:
            parsed = self.parsed_properties = parse_properties(self.raw_properties)
        return parsed

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that a `Message` may have: those of the system are left out.

        For a message that forwards this one; tag, keys and sharding key are arguments of their own.
        """
        return user_properties(self.properties)

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return find_property(self.raw_properties, b"TAGS\x01")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, maybe none."""
        return split_keys(find_property(self.raw_properties, b"KEYS\x01") or "")

    @property
    def sharding_key(self) -> str | None:
        """The sharding key, or None."""
        return find_property(self.raw_properties, b"__SHARDINGKEY\x01")

    @property
    def priority(self) -> int | None:
        """The priority that its producer gave it, or None; brokers from 5.4 keep it."""
        return read_priority(find_property(self.raw_properties, b"_SYS_MSG_PRIORITY_\x01"))

    @property
    def message_id(self) -> str:
        """The id set by the producer (UNIQ_KEY), else the offset id."""
        return find_property(self.raw_properties, b"UNIQ_KEY\x01") or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: store host and commit log offset in hex."""
        host, port = self._store_host_bytes()
        return f"{host.hex()}{port:08x}{self.commit_log_offset:016x}".upper()

    @property
    def store_size(self) -> int:
        """Size of the stored record in bytes."""
        return int(_HEAD.unpack_from(self.head)[0])

    @property
    def body_crc(self) -> int:
        """CRC-32 (31 bits) of the body as stored, compressed or not."""
        return int(_HEAD.unpack_from(self.head)[2])

    @property
    def flag(self) -> int:
        """The user's flag."""
        return int(_HEAD.unpack_from(self.head)[4])

    @property
    def commit_log_offset(self) -> int:
        """Position in the broker's commit log."""
        return int(_HEAD.unpack_from(self.head)[6])

    @property
    def sys_flag(self) -> int:
        """The broker's flag bits."""
        return int(_HEAD.unpack_from(self.head)[7])

    @property
    def born_time(self) -> datetime:
        """When the producer created it, by the producer's clock.

        :raises CodecError: the time is out of range
        """
        return _time("born timestamp", _BORN_AT - 8, _HEAD.unpack_from(self.head)[8])

    @property
    def store_time(self) -> datetime:
        """When the broker stored it, by the broker's clock; errors as `born_time`."""
        at = self._born_port_at()
        return _time("store timestamp", at + 4, _AFTER_HOST.unpack_from(self.head, at)[1])

    @property
    def born_host(self) -> str:
        """``ip:port`` of the producer as the broker saw it."""
        at = self._born_port_at()
        return _host_text(self.head[_BORN_AT:at], int.from_bytes(self.head[at : at + 4], "big"))

    @property
    def store_host(self) -> str:
        """``ip:port`` of the broker that stored it."""
        return _host_text(*self._store_host_bytes())

    @property
    def reconsume_times(self) -> int:
        """How many times the group has failed to process it."""
        sent_back = int(_TAIL.unpack_from(self.head, self._store_port_at())[1])
        return sent_back + self.local_retries

    @property
    def prepared_transaction_offset(self) -> int:
        """Queue offset of the half message of its transaction, else 0."""
        return int(_TAIL.unpack_from(self.head, self._store_port_at())[2])

    def _born_port_at(self) -> int:
        return _BORN_AT + (16 if self.sys_flag & _BORN_IPV6 else 4)

    def _store_port_at(self) -> int:
        return self._born_port_at() + 12 + (16 if self.sys_flag & _STORE_IPV6 else 4)

    def _store_host_bytes(self) -> tuple[bytes, int]:
        start, at = self._born_port_at() + 12, self._store_port_at()
        return self.head[start:at], int.from_bytes(self.head[at : at + 4], "big")

    def __repr__(self) -> str:
        return f"<MessageExt {self.queue}@{self.queue_offset} {len(self.body)} bytes>"

    # Last: its name hides the builtin decorator from methods below it.
    def property(self, name: str) -> str | None:
        """Return one property, or None, without building the dict."""
        if self.parsed_properties is not None:
            return self.parsed_properties.get(name)
        return find_property(self.raw_properties, name.encode() + b"\x01")


def decode_all(
    codec: Codec, messages: Iterable[MessageExt]
) -> tuple[list[MessageExt], list[tuple[MessageExt, PayloadError]]]:
    """Decode the values of *messages*; return those decoded, and the others with their errors."""
    good: list[MessageExt] = []
    bad: list[tuple[MessageExt, PayloadError]] = []
    for message in messages:
        message.codec = codec
        try:
            _ = message.value
        except PayloadError as error:
            bad.append((message, error))
        else:
            good.append(message)
    return good, bad


def _time(field: str, position: int, millis: int) -> datetime:
    try:
        return EPOCH + millis * MILLISECOND
    except OverflowError as error:
        raise CodecError(field, position, f"{millis} ms: {error}") from error


def _host_text(raw: bytes, port: int) -> str:
    if len(raw) == 4:
        return f"{'.'.join(map(str, raw))}:{port}"
    return f"[{IPv6Address(raw)}]:{port}"
