"""Routes, membership and locks: what a client tells and asks about itself and its group."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader


class GetRouteInfo(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """To a name server: which brokers hold a topic."""

    code: ClassVar[int] = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    accept_standard_json_only: bool | None = None


class Heartbeat(RequestHeader, frozen=True, kw_only=True, gc=False):
    """The body says everything: bodies.HeartbeatData."""

    code: ClassVar[int] = RequestCode.HEART_BEAT


class HeartbeatResponse(Header, frozen=True, kw_only=True, gc=False):
    """Brokers from 5.1.3 say whether short heartbeats will do."""

    supports_v2: bool = msgspec.field(name="IS_SUPPORT_HEART_BEAT_V2", default=False)
    subscription_changed: bool = msgspec.field(name="IS_SUB_CHANGE", default=False)


class UnregisterClient(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Leave: removes only the entry of the connection it arrives on."""

    code: ClassVar[int] = RequestCode.UNREGISTER_CLIENT

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroup(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Client ids of the members; answered 1 when there is none."""

    code: ClassVar[int] = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str


class CheckClientConfig(RequestHeader, frozen=True, kw_only=True, gc=False):
    """Is this filter expression accepted?  The body is bodies.CheckClientRequest."""

    code: ClassVar[int] = RequestCode.CHECK_CLIENT_CONFIG


class LockBatchMQ(RequestHeader, frozen=True, kw_only=True, gc=False):
    """Lock queues for orderly consumption; the body is bodies.LockBatchRequest."""

    code: ClassVar[int] = RequestCode.LOCK_BATCH_MQ


class UnlockBatchMQ(RequestHeader, frozen=True, kw_only=True, gc=False):
    """Give locks back; the body is bodies.LockBatchRequest."""

    code: ClassVar[int] = RequestCode.UNLOCK_BATCH_MQ
