"""Typed JSON bodies, named as the broker's classes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.fastjson import READ_ERRORS, json_decoder, read_body

MAX_QUEUES: Final = 65_536  # of one topic; more is invalid
MAX_BROKERS: Final = 4096
MAX_ADDRESSES: Final = 4 * MAX_BROKERS  # of all brokers of a topic: masters and replicas
NO_QUEUES: Final = msgspec.Raw(b"{}")


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of all bodies."""


class QueueData(Body, frozen=True):
    """Numbers of queues of a topic on a broker, and their permissions."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int


class BrokerData(Body, frozen=True):
    """Addresses of a broker: id 0 is the master, others are replicas.

    :ivar enable_acting_master: while there is no master, id 0 may be a slave that acts for it (5.x)
    """

    broker_name: str
    cluster: str = ""
    broker_addrs: dict[int, str] = {}
    enable_acting_master: bool = False


class TopicQueueMappingInfo(Body, frozen=True):
    """Logical queues of a static topic on a broker: the keys of *curr_id_map*."""

    topic: str = ""
    scope: str | None = None
    total_queues: int = 0
    bname: str = ""
    epoch: int = -1
    dirty: bool = False
    curr_id_map: dict[int, int] = {}


class TopicRouteData(Body, frozen=True):
    """Route of a topic: its queues and brokers."""

    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


def read_route(body: bytes) -> TopicRouteData:
    """Decode a route; CodecError if it is invalid or exceeds the limits."""
    return checked_route(read_body(body, TopicRouteData))


def checked_route(route: TopicRouteData) -> TopicRouteData:
    """Return *route*; CodecError if it exceeds the limits."""
    if len(route.broker_datas) > MAX_BROKERS or len(route.queue_datas) > MAX_BROKERS:
        raise CodecError("TopicRouteData", 0, f"more than {MAX_BROKERS} brokers")
    if sum(len(each.broker_addrs) for each in route.broker_datas) > MAX_ADDRESSES:
        raise CodecError("TopicRouteData", 0, f"more than {MAX_ADDRESSES} addresses")
    reads = writes = 0
    for each in route.queue_datas:
        counts = (each.read_queue_nums, each.write_queue_nums)
        if min(counts) < 0:
            raise CodecError("TopicRouteData", 0, f"{counts} queues on {each.broker_name!r}")
        reads, writes = reads + counts[0], writes + counts[1]
    logical: dict[str | None, int] = {}  # by scope: each is a logical broker with so many queues
    for info in (route.topic_queue_mapping_by_broker or {}).values():
        logical[info.scope] = max(info.total_queues, logical.get(info.scope, 0))
    most = max(reads, writes, sum(logical.values()))
    if most > MAX_QUEUES:
        raise CodecError("TopicRouteData", 0, f"{most} queues, above {MAX_QUEUES}")
    return route


# --- membership ---------------------------------------------------------------------------------


class SubscriptionData(Body, frozen=True):
    """A subscription in a heartbeat."""

    topic: str
    sub_string: str
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ProducerData(Body, frozen=True):
    """A producer group of this client."""

    group_name: str


class ConsumerData(Body, frozen=True):
    """A consumer group of this client, with its subscriptions."""

    group_name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscription_data_set: list[SubscriptionData]
    unit_mode: bool = False


class HeartbeatData(Body, frozen=True):
    """The groups of this client."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class ConsumerList(Body, frozen=True):
    """Client ids of the members of a group."""

    consumer_id_list: list[str] = []


class CheckClientRequest(Body, frozen=True):
    """A filter expression to validate."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


class LockBatchRequest(Body, frozen=True):
    """Queues to lock or unlock for one client."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueueBody]
    only_this_broker: bool = False


class LockBatchResponse(Body, frozen=True):
    """The locked queues."""

    locked: list[MessageQueueBody] = msgspec.field(name="lockOKMQSet", default_factory=list)


class MessageQueueBody(Body, frozen=True):
    """A queue as JSON."""

    topic: str
    broker_name: str
    queue_id: int

    def queue(self) -> MessageQueue:
        """Return it as a `MessageQueue`."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class BatchAck(Body, frozen=True):
    """Processed messages of one queue and pop; *bits* is relative to *start_offset*."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    marker: str = msgspec.field(name="r")
    start_offset: int = msgspec.field(name="so")
    queue_id: int = msgspec.field(name="q")
    revive_queue_id: int = msgspec.field(name="rq")
    pop_time: int = msgspec.field(name="pt")
    invisible_time: int = msgspec.field(name="it")
    bits: str = msgspec.field(name="b")


class BatchAckRequest(Body, frozen=True):
    """Processed messages of one broker."""

    broker_name: str
    acks: list[BatchAck]


# --- responses to requests of brokers -----------------------------------------------------------


class ProcessQueueInfo(Body, frozen=True):
    """State of a queue, for administration tools; *droped* is the wire spelling."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = msgspec.field(name="cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: int = 0  # in flight in an orderly handler
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class PopProcessQueueInfo(Body, frozen=True):
    """State of a popped queue (5.x)."""

    wait_ack_count: int = 0
    droped: bool = False
    last_pop_timestamp: int = 0


class ConsumeStatus(Body, frozen=True):
    """Statistics of a topic; times are averages in milliseconds, rates per second."""

    pull_rt: float = msgspec.field(name="pullRT", default=0.0)
    pull_tps: float = msgspec.field(name="pullTPS", default=0.0)
    consume_rt: float = msgspec.field(name="consumeRT", default=0.0)
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0  # during the last hour


class ConsumerRunningInfo(Body, frozen=True):
    """State of a consumer; `queue_table` encodes *mq_table* and *mq_pop_table*."""

    properties: dict[str, str]
    subscription_set: list[SubscriptionData]
    mq_table: msgspec.Raw
    mq_pop_table: msgspec.Raw = NO_QUEUES
    status_table: dict[str, ConsumeStatus] = {}
    jstack: str | None = None


class DirectOutcome(StrEnum):
    """Result of a handler run by an administrator."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    RAISED = "CR_THROW_EXCEPTION"
    NOTHING = "CR_RETURN_NULL"


class ConsumeDirectlyResult(Body, frozen=True):
    """Result and duration of running a handler on one message."""

    consume_result: DirectOutcome
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0


class ConsumerStatusBody(Body, frozen=True):
    """Consumed offsets of a group, encoded by `queue_table`."""

    message_queue_table: msgspec.Raw
    consumer_table: dict[str, Any] = {}


def queue_table(table: Mapping[MessageQueue, object]) -> msgspec.Raw:
    """Encode *table* in the only form that all brokers decode: with objects as keys."""
    encode = msgspec.json.encode
    entries = [
        b'{"brokerName":%b,"queueId":%d,"topic":%b}:%b'
        % (encode(queue.broker_name), queue.queue_id, encode(queue.topic), encode(value))
        for queue, value in table.items()
    ]
    return msgspec.Raw(b"{" + b",".join(entries) + b"}")


class _ResetOffsetTable(Body, frozen=True):
    offset_table: dict[str, int]


class _ResetOffsetEntry(MessageQueueBody, frozen=True):
    offset: int


class _ResetOffsetList(Body, frozen=True):
    offset_table: list[_ResetOffsetEntry]


def read_reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    """Decode the offsets of a reset, in either form; CodecError if the body is invalid."""
    try:
        listed: _ResetOffsetList = json_decoder(_ResetOffsetList).decode(body)
    except READ_ERRORS:
        table = read_body(body, _ResetOffsetTable).offset_table
        return {queue_key(key): offset for key, offset in table.items()}
    return {each.queue(): each.offset for each in listed.offset_table}


def queue_key(key: str) -> MessageQueue:
    """Decode a queue that is a key of a table; CodecError if it is not one."""
    return read_body(key.encode(), MessageQueueBody).queue()
