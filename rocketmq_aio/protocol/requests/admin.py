"""Administration of topics, consumer and producer groups, brokers; message queries."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from rocketmq_aio.protocol.bodies import Body, BrokerData
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader, TopicRequest, bare_request
from rocketmq_aio.protocol.requests.from_broker import ResetOffset
from rocketmq_aio.protocol.requests.groups import ConnectionBody

BY_ID: Final = "_UNIQUE_KEY_QUERY"

GetAllTopicConfig: Final = bare_request(RequestCode.GET_ALL_TOPIC_CONFIG, __name__)
# To a name server.
GetAllTopics: Final = bare_request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, __name__)
# Create or update a consumer group on one broker; the body has the settings.
CreateGroup: Final = bare_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, __name__)
GetAllGroups: Final = bare_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, __name__)
# To a name server: list all brokers.
GetClusterInfo: Final = bare_request(RequestCode.GET_BROKER_CLUSTER_INFO, __name__)
GetBrokerRuntime: Final = bare_request(RequestCode.GET_BROKER_RUNTIME_INFO, __name__)

# --- topics -----------------------------------------------------------------------------------


class CreateTopic(TopicRequest, frozen=True, kw_only=True):
    """Create or update a topic on one broker; attributes not given stay."""

    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    default_topic: str  # required but unused
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    topic_sys_flag: int | None = None
    order: bool
    attributes: str | None = None


class DeleteTopicInBroker(TopicRequest, frozen=True, kw_only=True):
    """Delete a topic with its messages; response 0 if it does not exist."""

    code = RequestCode.DELETE_TOPIC_IN_BROKER


class DeleteTopicInNameServer(TopicRequest, frozen=True, kw_only=True):
    """Delete a topic of one cluster or of all; a broker that has it registers it again."""

    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    cluster_name: str | None = None


class GetTopicConfig(TopicRequest, frozen=True, kw_only=True):
    """Get the settings of one topic (5.x); response 17 if it does not exist.

    :ivar with_mapping: also its part of the mapping if the topic is static
    """

    code = RequestCode.GET_TOPIC_CONFIG
    with_mapping: bool | None = msgspec.field(name="lo", default=None)


class TopicConfigBody(Body, frozen=True):
    """Settings of a topic on one broker."""

    topic_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None


class TopicConfigTable(Body, frozen=True):
    """Response to GetAllTopicConfig."""

    topic_config_table: dict[str, TopicConfigBody] = msgspec.field(default_factory=dict)


class GetTopicsOfCluster(RequestHeader, frozen=True, kw_only=True):
    """To a name server: list the topics of one cluster."""

    code = RequestCode.GET_TOPICS_BY_CLUSTER
    cluster: str


class TopicList(Body, frozen=True):
    """Names, unordered."""

    topic_list: list[str] = msgspec.field(default_factory=list)


class GetTopicStats(TopicRequest, frozen=True, kw_only=True):
    """Get the offsets of the queues of a topic on one broker."""

    code = RequestCode.GET_TOPIC_STATS_INFO


class TopicOffset(Body, frozen=True):
    """Offsets of a queue, and the store time of its last message (ms, 0: never)."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class TopicStatsTable(Body, frozen=True):
    """Response to GetTopicStats; the keys are queues as JSON."""

    offset_table: dict[str, TopicOffset] = msgspec.field(default_factory=dict)


class PutKVConfig(RequestHeader, frozen=True, kw_only=True):
    """To a name server: store a value, such as the order configuration of a topic."""

    code = RequestCode.PUT_KV_CONFIG
    namespace: str
    key: str
    value: str


class GetKVConfig(RequestHeader, frozen=True, kw_only=True):
    """To a name server: get a value; response 22 if there is none."""

    code = RequestCode.GET_KV_CONFIG
    namespace: str
    key: str


class GetKVConfigResponse(Header, frozen=True, kw_only=True):
    """Response to GetKVConfig."""

    value: str | None = None


class DeleteKVConfig(RequestHeader, frozen=True, kw_only=True):
    """To a name server: delete a value."""

    code = RequestCode.DELETE_KV_CONFIG
    namespace: str
    key: str


# --- groups -----------------------------------------------------------------------------------


class DeleteGroup(RequestHeader, frozen=True, kw_only=True):
    """Delete a consumer group on one broker; response 0 if it does not exist."""

    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group_name: str
    remove_offset: bool | None = None  # 4.9
    clean_offset: bool | None = None  # 5.x


class SubscriptionGroupBody(Body, frozen=True):
    """Settings of a consumer group on one broker, with the defaults of a new group."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    attributes: dict[str, str] | None = None


class SubscriptionGroupTable(Body, frozen=True):
    """Response to GetAllGroups: settings by name, undecoded."""

    subscription_group_table: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


class GetGroupsOfTopic(TopicRequest, frozen=True, kw_only=True):
    """List the groups that have consumed a topic."""

    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO


class GroupList(Body, frozen=True):
    """Names, unordered."""

    group_list: list[str] = msgspec.field(default_factory=list)


class GetProducerConnections(RequestHeader, frozen=True, kw_only=True):
    """List the connections of a producer group; response 1 if there are none."""

    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    producer_group: str


class ProducerConnections(Body, frozen=True):
    """Response to GetProducerConnections."""

    connection_set: list[ConnectionBody] = msgspec.field(default_factory=list)


class GetConsumeStats(RequestHeader, frozen=True, kw_only=True):
    """Get the progress of a group in one topic, or in all that it committed offsets of."""

    code = RequestCode.GET_CONSUME_STATS
    consumer_group: str
    topic: str | None = None


class OffsetWrapper(Body, frozen=True):
    """Progress in a queue; *last_timestamp* is of the last message consumed."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    pull_offset: int | None = None


class ConsumeStats(Body, frozen=True):
    """Response to GetConsumeStats; the keys are queues as JSON."""

    offset_table: dict[str, OffsetWrapper] = msgspec.field(default_factory=dict)
    consume_tps: float = 0.0


class InvokeResetOffset(ResetOffset, frozen=True, kw_only=True):
    """Reset the offsets of a group; queue and offset from 5.0."""

    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


# --- brokers ----------------------------------------------------------------------------------


class ClusterInfoBody(Body, frozen=True):
    """Brokers by name, and names of brokers by cluster."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = msgspec.field(default_factory=dict)


class KVTable(Body, frozen=True):
    """Values by name; the names differ between releases."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


# --- messages ---------------------------------------------------------------------------------


class ViewMessage(RequestHeader, frozen=True, kw_only=True):
    """Get the message at *offset* of the commit log."""

    code = RequestCode.VIEW_MESSAGE_BY_ID
    topic: str | None = None
    offset: int


class QueryMessage(RequestHeader, frozen=True, kw_only=True):
    """Find messages by the hash of *key*, stored between two times (milliseconds).

    With credentials, declare an old client version: releases differ on whether *by_id* is signed,
    but none sign it for old clients.
    """

    code = RequestCode.QUERY_MESSAGE
    unsigned: ClassVar[tuple[str, ...]] = (BY_ID,)

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    index_type: str | None = None
    by_id: bool | None = msgspec.field(name=BY_ID, default=None)
