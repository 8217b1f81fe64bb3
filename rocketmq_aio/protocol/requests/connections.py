"""Connections and running info of group members: codes 203 and 307."""

from __future__ import annotations

import msgspec

from rocketmq_aio.protocol.bodies import NO_QUEUES, Body, SubscriptionData
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader


class GetConsumerConnectionList(
    RequestHeader, code=RequestCode.GET_CONSUMER_CONNECTION_LIST, frozen=True
):
    """Get connections and subscriptions of a group; response 206 if it has no member."""

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
