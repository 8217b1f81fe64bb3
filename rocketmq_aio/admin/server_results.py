"""Results of maintenance: decoded from the JSON of brokers, name servers and controllers.

Times are milliseconds since 1970, UTC; 0 or -1: none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from rocketmq_aio.admin.results import Result
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import MessageQueueBody
from rocketmq_aio.protocol.codes import release_name

SETTING_NAME: Final = re.compile(r"[\w.%|$@-]+", re.ASCII)  # also of groups
# Servers read settings as Java properties, where a backslash at the end continues a line.
LINE_END: Final = re.compile(r"[\r\n]|(?<!\\)(?:\\\\)*\\\Z")


class ServerResult(Result, frozen=True, rename="camel"):
    """Base of results that servers send as they are."""


# --- static topics ----------------------------------------------------------------------------


class LogicalQueue(Result, frozen=True):
    """A logical queue of a static topic.

    :ivar queue_id: the number that clients use
    :ivar broker_name: the owner, which stores new messages in its *physical_queue*
    :ivar first_offset: logical offset at which the owner begins; -1: not decided yet
    :ivar moves: how often the queue has moved
    """

    queue_id: int
    broker_name: str
    physical_queue: int
    first_offset: int
    moves: int = 0


# --- brokers ----------------------------------------------------------------------------------


class BrokerOverview(Result, frozen=True):
    """A broker, or a replica of it, with its rates.

    :ivar put_tps: messages stored per second; ``get_tps`` delivered
    :ivar problem: why its statistics could not be read; the other fields are empty then
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: str = ""
    put_tps: float = 0.0
    get_tps: float = 0.0
    messages_today: int = 0
    disk_ratio: float = 0.0
    problem: str | None = None


class Statistics(ServerResult, frozen=True):
    """Sum, rate per second and average of a statistic during a minute, an hour or a day."""

    sum: int = 0
    tps: float = 0.0
    average: float = msgspec.field(name="avgpt", default=0.0)


class BrokerStatistics(ServerResult, frozen=True):
    """A statistic that a broker counts."""

    minute: Statistics = msgspec.field(name="statsMinute", default=Statistics())
    hour: Statistics = msgspec.field(name="statsHour", default=Statistics())
    day: Statistics = msgspec.field(name="statsDay", default=Statistics())


class HASlave(ServerResult, frozen=True):
    """A slave as its master sees it; ``diff`` is how many bytes it lags."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class HAClient(ServerResult, frozen=True):
    """A slave's connection to its master."""

    master_addr: str = ""
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    is_activated: bool = False


class HAStatus(ServerResult, frozen=True):
    """Replication: the slaves of a master, or the connection of a slave."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    slaves: tuple[HASlave, ...] = msgspec.field(name="haConnectionInfo", default=())
    client: HAClient | None = msgspec.field(name="haClientRuntimeInfo", default=None)


class Epoch(ServerResult, frozen=True):
    """The part of a commit log that one master wrote."""

    epoch: int
    start_offset: int
    end_offset: int = 0


class Epochs(ServerResult, frozen=True):
    """All epochs of a broker."""

    cluster_name: str
    broker_name: str
    broker_id: int
    max_offset: int
    epochs: tuple[Epoch, ...] = msgspec.field(name="epochList", default=())


class ProducerInfo(ServerResult, frozen=True):
    """A connected producer."""

    client_id: str
    address: str = msgspec.field(name="remoteIP", default="")
    language: str | None = None
    version: int = 0
    last_update_timestamp: int = 0

    @property
    def release(self) -> str:
        """The release whose protocol it speaks, such as ``V5_5_0``."""
        return release_name(self.version)


class ConsumeQueueEntry(ServerResult, frozen=True):
    """An entry of a consume queue; ``eval``: whether the filter of the group matches."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class ConsumeQueue(ServerResult, frozen=True):
    """Entries of a consume queue, and its first and last index."""

    min_queue_index: int = 0
    max_queue_index: int = 0
    entries: tuple[ConsumeQueueEntry, ...] = msgspec.field(name="queueData", default=())
    filter_data: str | None = None


class RocksDBCheck(ServerResult, frozen=True):
    """Result of comparing consume queues in RocksDB and in files."""

    status: int = msgspec.field(name="checkStatus", default=0)
    result: str | None = msgspec.field(name="checkResult", default=None)


class SendTest(Result, frozen=True):
    """How long a broker took to store test messages.

    :ivar seconds: of each message
    """

    broker_name: str
    seconds: tuple[float, ...]

    @property
    def average_seconds(self) -> float:
        """The average."""
        return sum(self.seconds) / len(self.seconds)


# --- groups and offsets -----------------------------------------------------------------------


class QueueTimeSpan(ServerResult, frozen=True):
    """Store times of the messages of a queue, and how far a group is behind.

    :ivar delay_time: milliseconds since the first message not consumed was stored; 0 if none
    """

    message_queue: MessageQueueBody
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0

    @property
    def queue(self) -> MessageQueue:
        """The queue."""
        return self.message_queue.queue()


class MemberStatus(Result, frozen=True):
    """The state of a member of a group.

    :ivar properties: its settings
    :ivar queues: the state of each queue that it reads, as reported
    :ivar subscriptions: expression by topic
    :ivar rates: by topic: pulls and handled messages, per second and in milliseconds
    :ivar stacks: of its threads or tasks, if requested
    """

    client_id: str
    properties: dict[str, str]
    queues: dict[MessageQueue, dict[str, Any]]
    subscriptions: dict[str, str]
    rates: dict[str, dict[str, float]]
    stacks: str | None = None


# --- messages ---------------------------------------------------------------------------------


class TraceEvent(Result, frozen=True):
    """Something that happened to a message, from the trace topic.

    :ivar kind: ``Pub``, ``SubBefore``, ``SubAfter``, ``EndTransaction`` or ``Recall``
    :ivar time: when it began; None if the client did not record it
    :ivar group: of the producer or consumer
    :ivar success: None where it is not known, as before a handler runs
    :ivar request_id: the same before and after one run of a handler
    :ivar state: of a transaction
    """

    kind: str
    message_id: str
    time: datetime | None = None
    group: str = ""
    topic: str = ""
    success: bool | None = None
    cost_millis: int | None = None
    client_host: str = ""
    store_host: str = ""
    keys: str = ""
    tags: str = ""
    retries: int | None = None
    request_id: str = ""
    state: str = ""


class DirectConsumption(Result, frozen=True):
    """Result of a direct consumption: the answer of a member to one message.

    :ivar outcome: ``CR_SUCCESS``, ``CR_LATER``, ``CR_THROW_EXCEPTION``, ...
    """

    outcome: str
    seconds: float
    remark: str | None = None


# --- controllers ------------------------------------------------------------------------------


class ControllerMetadata(ServerResult, frozen=True):
    """The controllers of a group and their leader."""

    group: str = ""
    leader_id: str = msgspec.field(name="controllerLeaderId", default="")
    leader_address: str = msgspec.field(name="controllerLeaderAddress", default="")
    is_leader: bool = False
    peers: str = ""


class Replica(ServerResult, frozen=True):
    """A replica of a broker."""

    broker_name: str = ""
    broker_id: int = 0
    broker_address: str = ""
    alive: bool | None = None


class ElectedMaster(ServerResult, frozen=True):
    """The result of an election."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None


class InSyncSet(ElectedMaster, frozen=True):
    """The master of a broker and its replicas."""

    in_sync: tuple[Replica, ...] = msgspec.field(name="inSyncReplicas", default=())
    not_in_sync: tuple[Replica, ...] = msgspec.field(name="notInSyncReplicas", default=())


# --- access control ---------------------------------------------------------------------------


class User(ServerResult, frozen=True):
    """A user of ACL 2.0; brokers do not send passwords in plain text.

    :ivar user_type: ``Super`` or ``Normal``
    :ivar user_status: ``enable`` or ``disable``
    """

    username: str
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"User({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class PolicyEntry(ServerResult, frozen=True):
    """A rule of a policy.

    :ivar resource: such as ``Topic:orders``, ``Topic:orders-*`` or ``Group:billing``
    :ivar actions: ``Pub``, ``Sub``, ``Create``, ``Update``, ``Delete``, ``Get``, ``List``, ``All``
    :ivar decision: ``Allow`` or ``Deny``
    """

    resource: str
    actions: tuple[str, ...]
    source_ips: tuple[str, ...] = ()
    decision: str = "Allow"


class Policy(ServerResult, frozen=True):
    """Entries of one kind: ``Custom`` ones come before ``Default`` ones."""

    policy_type: str = "Custom"
    entries: tuple[PolicyEntry, ...] = ()


class SubjectPolicies(ServerResult, frozen=True):
    """All policies of a subject such as ``User:alice``."""

    subject: str
    policies: tuple[Policy, ...] = ()


class AccountVersion(ServerResult, frozen=True):
    """The version of the accounts of a 4.9 broker."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_addr: str = ""
    version: str = ""
    all_acl_file_version: str | None = None


# --- lite topics ------------------------------------------------------------------------------


class LiteBroker(ServerResult, frozen=True):
    """Sizes of the lite-topic tables of a broker."""

    store_type: str | None = None
    max_lmq_num: int = 0
    current_lmq_num: int = 0
    lite_subscription_count: int = 0
    order_info_count: int = 0
    cq_table_size: int = 0
    offset_table_size: int = 0
    event_map_size: int = 0
    topic_meta: dict[str, int] = msgspec.field(default_factory=dict)
    group_meta: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class LiteParent(ServerResult, frozen=True):
    """A topic with lite topics."""

    topic: str = ""
    ttl: int = 0
    groups: tuple[str, ...] = ()
    lmq_num: int = 0
    lite_topic_count: int = 0


class LiteSubscriber(ServerResult, frozen=True):
    """A subscriber of a lite topic."""

    client_id: str = ""
    group: str = ""


class LiteOffsets(ServerResult, frozen=True):
    """First and next offset of a lite topic."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class LiteTopic(ServerResult, frozen=True):
    """A lite topic on one broker."""

    parent_topic: str = ""
    lite_topic: str = ""
    subscribers: tuple[LiteSubscriber, ...] = msgspec.field(name="subscriber", default=())
    offsets: LiteOffsets | None = msgspec.field(name="topicOffset", default=None)
    sharding_to_broker: bool = False


class LiteClient(ServerResult, frozen=True):
    """The lite topics of a client."""

    parent_topic: str = ""
    group: str = ""
    client_id: str = ""
    last_access_time: int = 0
    last_consume_time: int = 0
    lite_topic_count: int = 0
    lite_topics: tuple[str, ...] = msgspec.field(name="liteTopicSet", default=())


class LiteLag(ServerResult, frozen=True):
    """The lag of a group in one lite topic."""

    lite_topic: str = ""
    lag_count: int = 0
    earliest_unconsumed_timestamp: int = 0


class LiteProgress(ServerResult, frozen=True):
    """Committed and next offset in a lite topic."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0


class LiteGroup(ServerResult, frozen=True):
    """The lag of a group in lite topics."""

    group: str = ""
    parent_topic: str = ""
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: int = 0
    total_lag_count: int = 0
    progress: LiteProgress | None = msgspec.field(name="liteTopicOffsetWrapper", default=None)
    most_lag: tuple[LiteLag, ...] = msgspec.field(name="lagCountTopK", default=())
    oldest_lag: tuple[LiteLag, ...] = msgspec.field(name="lagTimestampTopK", default=())


def read_properties(body: bytes) -> dict[str, str]:
    """Return the settings in *body*, one per line."""
    pairs = (line.partition("=") for line in body.decode(errors="replace").splitlines())
    return {name.strip(): value.strip() for name, found, value in pairs if found}


def write_properties(settings: Mapping[str, str]) -> bytes:
    """Return *settings* as text, one per line, as servers read it.

    :raises ConfigError: there are none, or a name or value would change other settings
    """
    if not settings:
        raise ConfigError("settings", settings, "expected settings by name")
    for name, value in settings.items():
        if not SETTING_NAME.fullmatch(name) or LINE_END.search(str(value)):
            reason = "expected names of settings, and values on one line that end without backslash"
            raise ConfigError("settings", name, reason)
    return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
