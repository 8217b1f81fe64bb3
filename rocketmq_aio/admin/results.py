"""Results of `AdminClient`: frozen values with a JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.timestamps import EPOCH, MILLISECOND
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import queue_key
from rocketmq_aio.protocol.codes import release_name
from rocketmq_aio.protocol.requests.admin import ConsumeStats

LAST_MILLIS: Final = 253_402_300_799_999  # the end of the year 9999
PERMISSIONS: Final = (("R", 4), ("W", 2), ("X", 1))  # X: a template for topics that sends create
DESCRIBED: Final = (  # of a message
    *("message_id", "offset_message_id", "topic", "queue", "queue_offset", "commit_log_offset"),
    *("tags", "keys", "born_time", "store_time", "born_host", "store_host", "reconsume_times"),
    "properties",
)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all results."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values by the names of fields and properties; times are ISO 8601 text."""
        computed = [name for name, each in vars(type(self)).items() if isinstance(each, property)]
        names = (*self.__struct_fields__, *computed)
        return {name: _plain(getattr(self, name)) for name in names}


class TopicConfig(Result, frozen=True):
    """The settings of a topic on one broker.

    :ivar perm: ``R``, ``W`` or ``RW``, with ``X`` for a template of topics that sends create
    :ivar order: the name servers have an order configuration; not reported by 4.9 brokers
    :ivar attributes: of 5.x brokers, such as ``message.type``
    :ivar sys_flag: bits of `mqadmin updateTopic`: 1 of a unit, 2 with subscriptions of units
    """

    topic: str
    broker_name: str
    read_queues: int
    write_queues: int
    perm: str = "RW"
    order: bool = False
    attributes: dict[str, str] = {}
    sys_flag: int = 0


class QueueCount(Result, frozen=True):
    """The queues of a topic on one broker, and their permissions."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: str


class BrokerInfo(Result, frozen=True):
    """A broker registered with name servers; ``addresses`` by id, 0 is the master."""

    broker_name: str
    cluster: str
    addresses: dict[int, str]

    @property
    def master(self) -> str | None:
        """The address of the master, None if it has none now."""
        return self.addresses.get(0)


class TopicRouteInfo(Result, frozen=True):
    """The route of a topic from a name server."""

    topic: str
    queues: tuple[QueueCount, ...]
    brokers: tuple[BrokerInfo, ...]
    order_conf: str | None = None


class QueueStats(Result, frozen=True):
    """The first offset of a queue, and the offset after its last message."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update: datetime | None

    @property
    def count(self) -> int:
        """The number of messages."""
        return self.max_offset - self.min_offset


class TopicStats(Result, frozen=True):
    """All queues of a topic."""

    topic: str
    queues: tuple[QueueStats, ...]

    @property
    def count(self) -> int:
        """The number of messages."""
        return sum(queue.count for queue in self.queues)


class GroupConfig(Result, frozen=True):
    """The settings of a consumer group on one broker.

    :ivar enabled: False stops delivery to the group
    :ivar retry_queues: queues of the retry topic; 0 drops messages that are sent back
    :ivar max_retries: retries before a message goes to the dead-letter topic
    :ivar consume_timeout_minutes: 5.x brokers; 15 if not reported
    :ivar others: further settings that are no defaults, by the names that brokers use, such as
        ``groupRetryPolicy``; `update` keeps them
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
    others: dict[str, Any] = {}


class ClientConnection(Result, frozen=True):
    """A connected client; ``address`` is its remote address.

    :ivar version: the number of its release
    """

    client_id: str
    address: str
    language: str
    version: int
    brokers: tuple[str, ...]

    @property
    def release(self) -> str:
        """The release whose protocol it speaks, such as ``V5_5_0``."""
        return release_name(self.version)


class SubscriptionInfo(Result, frozen=True):
    """The subscription of a group to a topic."""

    topic: str
    expression: str
    kind: str


class GroupConnections(Result, frozen=True):
    """The connected members of a group; without any, the other fields are empty."""

    group: str
    members: tuple[ClientConnection, ...]
    subscriptions: tuple[SubscriptionInfo, ...] = ()
    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""

    @property
    def online(self) -> bool:
        """Whether any member is connected."""
        return bool(self.members)


class QueueProgress(Result, frozen=True):
    """The committed offset and lag of a group in a queue.

    :ivar broker_offset: the offset after the last message
    :ivar consumer_offset: the committed offset; 0 if there is none
    :ivar pull_offset: the offset after the last message that the broker returned to the group, at
        least the committed one; None before 5.0
    :ivar last_time: the store time of the last consumed message; None if it was deleted
    :ivar client_id: the member that reads the queue; None if unknown or not requested
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_time: datetime | None
    client_id: str | None = None
    pull_offset: int | None = None

    @property
    def lag(self) -> int:
        """The number of messages not consumed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int | None:
        """The number of messages that members have, but did not commit; None before 5.0."""
        return None if self.pull_offset is None else self.pull_offset - self.consumer_offset


class GroupProgress(Result, frozen=True):
    """The committed offsets and lag of a group in all its queues.

    :ivar consume_tps: messages per second delivered by the brokers
    :ivar silent: members that did not report their queues, with the reason
    """

    group: str
    queues: tuple[QueueProgress, ...]
    consume_tps: float = 0.0
    silent: dict[str, str] = {}

    @property
    def lag(self) -> int:
        """The number of messages not consumed yet."""
        return sum(queue.lag for queue in self.queues)

    @property
    def in_flight(self) -> int | None:
        """The number of messages that members have, but did not commit.

        None if no broker reports it: before 5.0.
        """
        counts = [queue.in_flight for queue in self.queues if queue.in_flight is not None]
        return sum(counts) if counts else None


class OffsetReset(Result, frozen=True):
    """The new offset of a group in a queue.

    :ivar before: the offset committed before; None if there was none
    :ivar how: ``members``: sent to the connected members; ``broker``: stored by the broker for
        the next reader; ``committed``: committed, since no member was connected
    """

    queue: MessageQueue
    before: int | None
    offset: int
    how: str


class ClusterInfo(Result, frozen=True):
    """All brokers registered with name servers."""

    brokers: tuple[BrokerInfo, ...]

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters."""
        return tuple(sorted({broker.cluster for broker in self.brokers}))


class BrokerRuntime(Result, frozen=True):
    """Runtime statistics of a broker; the names in ``stats`` depend on its release."""

    broker_name: str
    address: str
    stats: dict[str, str]

    @property
    def version(self) -> str:
        """Its release, such as ``V5_5_0``."""
        return self.stats.get("brokerVersionDesc", "")

    def __repr__(self) -> str:
        name, address, version = self.broker_name, self.address, self.version
        return f"BrokerRuntime({name!r}, {address!r}, {version!r}, {len(self.stats)} stats)"


@checked_arguments
def describe_message(message: MessageExt) -> dict[str, Any]:
    """Return *message* as JSON values; ``body`` is None if it is not UTF-8."""
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = None
    described = {name: _plain(getattr(message, name)) for name in DESCRIBED}
    return {**described, "body_bytes": len(message.body), "body": text}


def time_of(millis: int) -> datetime | None:
    """Return the time of *millis*; None if it is 0 or out of range."""
    return EPOCH + millis * MILLISECOND if 0 < millis <= LAST_MILLIS else None


def _plain(value: object) -> object:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, msgspec.Struct):
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


def progress_of(
    group: str,
    tables: Iterable[ConsumeStats],
    owners: Mapping[MessageQueue, str] | None = None,
    silent: Mapping[str, str] | None = None,
) -> GroupProgress:
    """Return the progress in the *tables* of several brokers; *owners* has client ids by queue."""
    tables, owners = list(tables), owners or {}
    queues = [
        QueueProgress(
            queue=(queue := queue_key(key)),
            broker_offset=each.broker_offset,
            # Brokers return -1 for queues of static topics without a commit.
            consumer_offset=max(0, each.consumer_offset),
            pull_offset=None if each.pull_offset is None else max(0, each.pull_offset),
            last_time=time_of(each.last_timestamp),
            client_id=owners.get(queue),
        )
        for table in tables
        for key, each in table.offset_table.items()
    ]
    return GroupProgress(
        group=group,
        queues=tuple(sorted(queues, key=lambda each: each.queue)),
        consume_tps=sum(table.consume_tps for table in tables),
        silent=dict(silent or {}),
    )
