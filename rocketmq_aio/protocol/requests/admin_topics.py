"""Topics as administrators see them: made, changed, deleted, listed, measured."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.bodies import Body
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader


class CreateTopic(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Make a topic on one broker, or change it: all but the attributes that are not named."""

    code: ClassVar[int] = RequestCode.UPDATE_AND_CREATE_TOPIC

    topic: str
    default_topic: str  # required, and used by nobody
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    topic_sys_flag: int | None = None
    order: bool
    attributes: str | None = None


class DeleteTopicInBroker(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Delete it with its messages; answered 0 where it is not."""

    code: ClassVar[int] = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


class DeleteTopicInNameServer(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Forget it, of one cluster or of all; a broker that has it tells of it again."""

    code: ClassVar[int] = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str
    cluster_name: str | None = None


class GetTopicConfig(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """The settings of one topic (5.x); answered 17 where it is not."""

    code: ClassVar[int] = RequestCode.GET_TOPIC_CONFIG

    topic: str


class GetAllTopicConfig(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """The settings of all topics of a broker."""

    code: ClassVar[int] = RequestCode.GET_ALL_TOPIC_CONFIG


class AllTopicConfigResponse(Header, frozen=True, kw_only=True, rename="camel", gc=False):
    """Brokers from 5.4 say how many there are."""

    total_topic_num: int | None = None


class TopicConfigBody(Body, frozen=True):
    """The settings of a topic on one broker."""

    topic_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None


class TopicConfigTable(Body, frozen=True):
    """The answer to GetAllTopicConfig."""

    topic_config_table: dict[str, TopicConfigBody] = msgspec.field(default_factory=dict)


class GetAllTopics(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """To a name server: the names of all topics."""

    code: ClassVar[int] = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


class GetTopicsOfCluster(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """To a name server: the names of the topics of one cluster."""

    code: ClassVar[int] = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str


class TopicList(Body, frozen=True):
    """Names, in no order."""

    topic_list: list[str] = msgspec.field(default_factory=list)


class GetTopicStats(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Where the queues of a topic begin and end on one broker."""

    code: ClassVar[int] = RequestCode.GET_TOPIC_STATS_INFO

    topic: str


class TopicOffset(Body, frozen=True):
    """The ends of a queue, and when its last message was stored (milliseconds, 0: never)."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class TopicStatsTable(Body, frozen=True):
    """The answer to GetTopicStats, by queue as JSON."""

    offset_table: dict[str, TopicOffset] = msgspec.field(default_factory=dict)


class PutKVConfig(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """To a name server: keep a value; the order configurations of topics are such values."""

    code: ClassVar[int] = RequestCode.PUT_KV_CONFIG

    namespace: str
    key: str
    value: str


class GetKVConfig(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """To a name server: what is the value?  Answered 22 when there is none."""

    code: ClassVar[int] = RequestCode.GET_KV_CONFIG

    namespace: str
    key: str


class GetKVConfigResponse(Header, frozen=True, kw_only=True, rename="camel", gc=False):
    """The value."""

    value: str | None = None


class DeleteKVConfig(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """To a name server: forget a value."""

    code: ClassVar[int] = RequestCode.DELETE_KV_CONFIG

    namespace: str
    key: str
