"""Administration of topics: create, update, delete, list, statistics."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.bodies import Body
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader


class CreateTopic(RequestHeader, frozen=True, kw_only=True):
    """Create or update a topic on one broker; attributes not given stay."""

    code: ClassVar[int] = RequestCode.UPDATE_AND_CREATE_TOPIC

    topic: str
    default_topic: str  # required but unused
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    topic_sys_flag: int | None = None
    order: bool
    attributes: str | None = None


class DeleteTopicInBroker(RequestHeader, frozen=True, kw_only=True):
    """Delete a topic with its messages; response 0 if it does not exist."""

    code: ClassVar[int] = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


class DeleteTopicInNameServer(RequestHeader, frozen=True, kw_only=True):
    """Delete a topic of one cluster or of all; a broker that has it registers it again."""

    code: ClassVar[int] = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str
    cluster_name: str | None = None


class GetTopicConfig(RequestHeader, frozen=True, kw_only=True):
    """Get the settings of one topic (5.x); response 17 if it does not exist."""

    code: ClassVar[int] = RequestCode.GET_TOPIC_CONFIG

    topic: str


class GetAllTopicConfig(RequestHeader, frozen=True, kw_only=True):
    """Get the settings of all topics of a broker."""

    code: ClassVar[int] = RequestCode.GET_ALL_TOPIC_CONFIG


class AllTopicConfigResponse(Header, frozen=True, kw_only=True):
    """Brokers from 5.4 return the number of topics."""

    total_topic_num: int | None = None


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


class GetAllTopics(RequestHeader, frozen=True, kw_only=True):
    """To a name server: list all topics."""

    code: ClassVar[int] = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


class GetTopicsOfCluster(RequestHeader, frozen=True, kw_only=True):
    """To a name server: list the topics of one cluster."""

    code: ClassVar[int] = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str


class TopicList(Body, frozen=True):
    """Names, unordered."""

    topic_list: list[str] = msgspec.field(default_factory=list)


class GetTopicStats(RequestHeader, frozen=True, kw_only=True):
    """Get the offsets of the queues of a topic on one broker."""

    code: ClassVar[int] = RequestCode.GET_TOPIC_STATS_INFO

    topic: str


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

    code: ClassVar[int] = RequestCode.PUT_KV_CONFIG

    namespace: str
    key: str
    value: str


class GetKVConfig(RequestHeader, frozen=True, kw_only=True):
    """To a name server: get a value; response 22 if there is none."""

    code: ClassVar[int] = RequestCode.GET_KV_CONFIG

    namespace: str
    key: str


class GetKVConfigResponse(Header, frozen=True, kw_only=True):
    """Response to GetKVConfig."""

    value: str | None = None


class DeleteKVConfig(RequestHeader, frozen=True, kw_only=True):
    """To a name server: delete a value."""

    code: ClassVar[int] = RequestCode.DELETE_KV_CONFIG

    namespace: str
    key: str
