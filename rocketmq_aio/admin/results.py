"""What administrators get to see: plain values, each with a form for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

import msgspec

from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.message_fields import EPOCH
from rocketmq_aio.model.values import MessageQueue

LAST_MILLIS: Final = 253_402_300_799_999  # the year 9999 ends
PERMISSIONS: Final = (("R", 4), ("W", 2), ("X", 1))  # X: topics made by sends are made after it


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all results."""

    computed: ClassVar[tuple[str, ...]] = ()  # properties that `to_dict` shows besides the fields

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON knows them: times as ISO text, names as they are here."""
        names = (*self.__struct_fields__, *self.computed)
        return {name: _plain(getattr(self, name)) for name in names}


class TopicConfig(Result, frozen=True):
    """The settings of a topic on one broker.

    :ivar perm: ``R``, ``W`` or ``RW``; ``X`` besides: topics that sends create are made after it
    :ivar order: the name servers keep an order configuration; 4.9 brokers do not tell
    :ivar attributes: of 5.x brokers, such as ``message.type``
    """

    topic: str
    broker_name: str
    read_queues: int
    write_queues: int
    perm: str = "RW"
    order: bool = False
    attributes: dict[str, str] = {}


class QueueCount(Result, frozen=True):
    """How many queues of a topic a broker has, and what may be done with them."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: str


class BrokerInfo(Result, frozen=True):
    """A broker as name servers know it; ``addresses`` by id, where 0 is the master."""

    broker_name: str
    cluster: str
    addresses: dict[int, str]

    computed: ClassVar[tuple[str, ...]] = ("master",)

    @property
    def master(self) -> str | None:
        """The address of the master; None: it has none now."""
        return self.addresses.get(0)


class TopicRouteInfo(Result, frozen=True):
    """Where a topic is, as a name server says."""

    topic: str
    queues: tuple[QueueCount, ...]
    brokers: tuple[BrokerInfo, ...]
    order_conf: str | None = None


class QueueStats(Result, frozen=True):
    """The ends of a queue: the first message that is stored, and one past the last."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update: datetime | None

    computed: ClassVar[tuple[str, ...]] = ("count",)

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self.max_offset - self.min_offset


class TopicStats(Result, frozen=True):
    """All queues of a topic."""

    topic: str
    queues: tuple[QueueStats, ...]

    computed: ClassVar[tuple[str, ...]] = ("count",)

    @property
    def count(self) -> int:
        """How many messages there are."""
        return sum(queue.count for queue in self.queues)


class GroupConfig(Result, frozen=True):
    """The settings of a consumer group on one broker.

    :ivar enabled: False: the group is given nothing
    :ivar retry_queues: of the retry topic; 0: what is sent back is dropped
    :ivar max_retries: tries before a message goes to the dead letters
    :ivar consume_timeout_minutes: 5.x; 15 where a broker does not say
    """

    group: str
    broker_name: str
    enabled: bool
    broadcast_enabled: bool
    from_min_enabled: bool
    orderly: bool
    retry_queues: int
    max_retries: int
    consume_timeout_minutes: int
    notify_members: bool
    attributes: dict[str, str] = {}


class ClientConnection(Result, frozen=True):
    """A client as brokers see it: ``address`` is where it comes from."""

    client_id: str
    address: str
    language: str
    version: int
    brokers: tuple[str, ...]


class SubscriptionInfo(Result, frozen=True):
    """What a group wants of a topic."""

    topic: str
    expression: str
    kind: str


class GroupConnections(Result, frozen=True):
    """Who is connected for a group; without members it is offline, and the rest says nothing."""

    group: str
    members: tuple[ClientConnection, ...]
    subscriptions: tuple[SubscriptionInfo, ...] = ()
    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""

    computed: ClassVar[tuple[str, ...]] = ("online",)

    @property
    def online(self) -> bool:
        """Whether any member is connected."""
        return bool(self.members)


class QueueProgress(Result, frozen=True):
    """How far a group is in a queue.

    :ivar broker_offset: one past the last message
    :ivar consumer_offset: what is committed; 0 where nothing is
    :ivar last_time: when the last message that was consumed had been stored; None: it is gone
    :ivar client_id: who reads the queue; None: nobody, or it was not asked for
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_time: datetime | None
    client_id: str | None = None

    computed: ClassVar[tuple[str, ...]] = ("lag",)

    @property
    def lag(self) -> int:
        """How many messages are still to come."""
        return self.broker_offset - self.consumer_offset


class GroupProgress(Result, frozen=True):
    """How far a group is in all its queues.

    :ivar consume_tps: messages a second, as brokers count what they hand out
    :ivar silent: members that did not say what they read, and why
    """

    group: str
    queues: tuple[QueueProgress, ...]
    consume_tps: float = 0.0
    silent: dict[str, str] = {}

    computed: ClassVar[tuple[str, ...]] = ("lag",)

    @property
    def lag(self) -> int:
        """How many messages are still to come."""
        return sum(queue.lag for queue in self.queues)


class OffsetReset(Result, frozen=True):
    """Where a group continues in a queue.

    :ivar before: what was committed; None: nothing, or nobody said
    :ivar how: ``members``: they were told, ``broker``: it tells whoever reads next,
        ``committed``: nobody was connected
    """

    queue: MessageQueue
    before: int | None
    offset: int
    how: str


class ClusterInfo(Result, frozen=True):
    """All brokers that a name server knows."""

    brokers: tuple[BrokerInfo, ...]

    computed: ClassVar[tuple[str, ...]] = ("clusters",)

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters."""
        return tuple(sorted({broker.cluster for broker in self.brokers}))


class BrokerRuntime(Result, frozen=True):
    """How a broker is; the names of ``stats`` differ from release to release."""

    broker_name: str
    address: str
    stats: dict[str, str]

    computed: ClassVar[tuple[str, ...]] = ("version",)

    @property
    def version(self) -> str:
        """Its release, such as ``V5_5_0``."""
        return self.stats.get("brokerVersionDesc", "")

    def __repr__(self) -> str:
        name, address, version = self.broker_name, self.address, self.version
        return f"BrokerRuntime({name!r}, {address!r}, {version!r}, {len(self.stats)} stats)"


def describe_message(message: MessageExt) -> dict[str, Any]:
    """Return *message* as JSON knows it; ``body`` is None where it is no text."""
    return {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.topic,
        "queue": _plain(message.queue),
        "queue_offset": message.queue_offset,
        "commit_log_offset": message.commit_log_offset,
        "tags": message.tags,
        "keys": list(message.keys),
        "born_time": message.born_time.isoformat(),
        "store_time": message.store_time.isoformat(),
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "properties": dict(message.properties),
        "body_bytes": len(message.body),
        "body": _text(message.body),
    }


def time_of(millis: int) -> datetime | None:
    """Return a broker's time; None where it says that there is none, or one of no calendar."""
    return EPOCH + timedelta(milliseconds=millis) if 0 < millis <= LAST_MILLIS else None


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _plain(value: object) -> object:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, MessageQueue):
        return msgspec.to_builtins(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return value


def perm_text(bits: int) -> str:
    """Return permission bits as letters."""
    return "".join([letter for letter, bit in PERMISSIONS if bits & bit])


def perm_bits(text: str) -> int:
    """Return letters as permission bits."""
    return sum(bit for letter, bit in PERMISSIONS if letter in text)
