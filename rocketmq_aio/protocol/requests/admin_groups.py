"""Consumer and producer groups as administrators see them."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.bodies import Body
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader
from rocketmq_aio.protocol.requests.connections import Connection


class CreateGroup(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Make a consumer group on one broker, or change it; the body says everything."""

    code: ClassVar[int] = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


class DeleteGroup(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Delete a consumer group on one broker; answered 0 where it is not."""

    code: ClassVar[int] = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group_name: str
    remove_offset: bool | None = None  # 4.9
    clean_offset: bool | None = None  # 5.x


class GetAllGroups(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """The settings of all consumer groups of a broker."""

    code: ClassVar[int] = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG


class AllGroupsResponse(Header, frozen=True, kw_only=True, rename="camel", gc=False):
    """Brokers from 5.4 say how many there are."""

    total_group_num: int | None = None


class SubscriptionGroupBody(Body, frozen=True):
    """The settings of a consumer group on one broker; a new group has these defaults."""

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
    """The answer to GetAllGroups: settings by name, each as it came."""

    subscription_group_table: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


class GetGroupsOfTopic(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Who consumes a topic, or once did."""

    code: ClassVar[int] = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str


class GroupList(Body, frozen=True):
    """Names, in no order."""

    group_list: list[str] = msgspec.field(default_factory=list)


class GetProducerConnections(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """The connections of a producer group; answered 1 when there is none."""

    code: ClassVar[int] = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producer_group: str


class ProducerConnections(Body, frozen=True):
    """The answer."""

    connection_set: list[Connection] = msgspec.field(default_factory=list)


class GetConsumeStats(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """How far a group is, in one topic or in all that it committed something of."""

    code: ClassVar[int] = RequestCode.GET_CONSUME_STATS

    consumer_group: str
    topic: str | None = None


class OffsetWrapper(Body, frozen=True):
    """How far a group is in a queue; *last_timestamp* is of the last message it consumed."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    pull_offset: int | None = None


class ConsumeStats(Body, frozen=True):
    """The answer to GetConsumeStats, by queue as JSON."""

    offset_table: dict[str, OffsetWrapper] = msgspec.field(default_factory=dict)
    consume_tps: float = 0.0


class InvokeResetOffset(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Let a group continue elsewhere; with a queue and an offset only from 5.0 on."""

    code: ClassVar[int] = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    group: str
    topic: str
    queue_id: int | None = None
    offset: int | None = None
    timestamp: int
    is_force: bool
