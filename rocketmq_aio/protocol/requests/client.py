"""Routes, group membership and queue locks."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader


class GetRouteInfo(RequestHeader, frozen=True, kw_only=True):
    """To a name server: get the route of a topic."""

    code: ClassVar[int] = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    accept_standard_json_only: bool | None = None


class Heartbeat(RequestHeader, frozen=True, kw_only=True):
    """Register the client; the body is bodies.HeartbeatData."""

    code: ClassVar[int] = RequestCode.HEART_BEAT


class HeartbeatResponse(Header, frozen=True, kw_only=True):
    """Brokers from 5.1.3 say whether they support short heartbeats."""

    supports_v2: bool = msgspec.field(name="IS_SUPPORT_HEART_BEAT_V2", default=False)
    subscription_changed: bool = msgspec.field(name="IS_SUB_CHANGE", default=False)


class UnregisterClient(RequestHeader, frozen=True, kw_only=True):
    """Unregister; the broker removes only the entry of this connection."""

    code: ClassVar[int] = RequestCode.UNREGISTER_CLIENT

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroup(RequestHeader, frozen=True, kw_only=True):
    """List the client ids of the members; response 1 if there are none."""

    code: ClassVar[int] = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str


class CheckClientConfig(RequestHeader, frozen=True, kw_only=True):
    """Validate a filter expression; the body is bodies.CheckClientRequest."""

    code: ClassVar[int] = RequestCode.CHECK_CLIENT_CONFIG


class LockBatchMQ(RequestHeader, frozen=True, kw_only=True):
    """Lock queues for orderly consumption; the body is bodies.LockBatchRequest."""

    code: ClassVar[int] = RequestCode.LOCK_BATCH_MQ


class UnlockBatchMQ(RequestHeader, frozen=True, kw_only=True):
    """Unlock queues; the body is bodies.LockBatchRequest."""

    code: ClassVar[int] = RequestCode.UNLOCK_BATCH_MQ
