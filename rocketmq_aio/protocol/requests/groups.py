"""Routes, group membership, queue locks, and assignment of queues by the broker (5.x)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rocketmq_aio.protocol.bodies import NO_QUEUES, Body, MessageQueueBody, SubscriptionData
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader, bare_request

# With bodies: HeartbeatData, CheckClientRequest, LockBatchRequest (both), AssignmentRequest.
Heartbeat: Final = bare_request(RequestCode.HEART_BEAT, __name__)
CheckClientConfig: Final = bare_request(RequestCode.CHECK_CLIENT_CONFIG, __name__)
LockBatchMQ: Final = bare_request(RequestCode.LOCK_BATCH_MQ, __name__)
UnlockBatchMQ: Final = bare_request(RequestCode.UNLOCK_BATCH_MQ, __name__)
QueryAssignment: Final = bare_request(RequestCode.QUERY_ASSIGNMENT, __name__)


class GetRouteInfo(RequestHeader, frozen=True, kw_only=True):
    """To a name server: get the route of a topic."""

    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str
    accept_standard_json_only: bool | None = None


class HeartbeatResponse(Header, frozen=True, kw_only=True):
    """Brokers from 5.1.3 say whether they support short heartbeats."""

    supports_v2: bool = msgspec.field(name="IS_SUPPORT_HEART_BEAT_V2", default=False)
    subscription_changed: bool = msgspec.field(name="IS_SUB_CHANGE", default=False)


class UnregisterClient(RequestHeader, frozen=True, kw_only=True):
    """Unregister; the broker removes only the entry of this connection."""

    code = RequestCode.UNREGISTER_CLIENT
    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroup(RequestHeader, frozen=True, kw_only=True):
    """List the client ids of the members; response 1 if there are none."""

    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    consumer_group: str


class GetConsumerConnectionList(RequestHeader, frozen=True, kw_only=True):
    """Get connections and subscriptions of a group; response 206 if it has no member."""

    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    consumer_group: str


class ConnectionBody(Body, frozen=True):
    """A connected member; the address is ``ip:port``."""

    client_id: str = ""
    client_addr: str = ""
    language: str = ""
    version: int = 0


class ConsumerConnections(Body, frozen=True):
    """Response to GetConsumerConnectionList.

    The broker keeps one subscription per topic for the whole group, the newest of any member, and
    only topics in the last heartbeat.
    """

    connection_set: list[ConnectionBody] = msgspec.field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = msgspec.field(default_factory=dict)
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class MemberState(Body, frozen=True):
    """Part of the response to GetConsumerRunningInfo; the tables are undecoded."""

    properties: dict[str, str] = msgspec.field(default_factory=dict)
    subscription_set: list[SubscriptionData] = msgspec.field(default_factory=list)
    mq_table: msgspec.Raw = NO_QUEUES
    status_table: msgspec.Raw = NO_QUEUES


class MessageRequestMode(StrEnum):
    """How to fetch the messages of a queue, chosen by the broker."""

    PULL = "PULL"
    POP = "POP"


class AssignmentRequest(Body, frozen=True, kw_only=True):
    """Member, topic and allocation strategy."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str


class MessageQueueAssignment(Body, frozen=True):
    """An assigned queue; id -1: all queues of the broker."""

    message_queue: MessageQueueBody
    mode: str


class AssignmentResponse(Body, frozen=True):
    """The queues of the member; None if the broker does not know it."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None
