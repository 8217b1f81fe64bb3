"""Administration of consumer and producer groups."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.bodies import Body
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader
from rocketmq_aio.protocol.requests.connections import ConnectionBody


class CreateGroup(RequestHeader, frozen=True, kw_only=True):
    """Create or update a consumer group on one broker; the body has the settings."""

    code: ClassVar[int] = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


class DeleteGroup(RequestHeader, frozen=True, kw_only=True):
    """Delete a consumer group on one broker; response 0 if it does not exist."""

    code: ClassVar[int] = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group_name: str
    remove_offset: bool | None = None  # 4.9
    clean_offset: bool | None = None  # 5.x


class GetAllGroups(RequestHeader, frozen=True, kw_only=True):
    """Get the settings of all consumer groups of a broker."""

    code: ClassVar[int] = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG


class AllGroupsResponse(Header, frozen=True, kw_only=True):
    """Brokers from 5.4 return the number of groups."""

    total_group_num: int | None = None


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


class GetGroupsOfTopic(RequestHeader, frozen=True, kw_only=True):
    """List the groups that have consumed a topic."""

    code: ClassVar[int] = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str


class GroupList(Body, frozen=True):
    """Names, unordered."""

    group_list: list[str] = msgspec.field(default_factory=list)


class GetProducerConnections(RequestHeader, frozen=True, kw_only=True):
    """List the connections of a producer group; response 1 if there are none."""

    code: ClassVar[int] = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producer_group: str


class ProducerConnections(Body, frozen=True):
    """Response to GetProducerConnections."""

    connection_set: list[ConnectionBody] = msgspec.field(default_factory=list)


class GetConsumeStats(RequestHeader, frozen=True, kw_only=True):
    """Get the progress of a group in one topic, or in all that it committed offsets of."""

    code: ClassVar[int] = RequestCode.GET_CONSUME_STATS

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


class InvokeResetOffset(RequestHeader, frozen=True, kw_only=True):
    """Reset the offsets of a group; queue and offset from 5.0."""

    code: ClassVar[int] = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    group: str
    topic: str
    queue_id: int | None = None
    offset: int | None = None
    timestamp: int
    is_force: bool
