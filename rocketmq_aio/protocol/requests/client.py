"""Routes, group membership and queue locks."""

from __future__ import annotations

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader


class GetRouteInfo(RequestHeader, code=RequestCode.GET_ROUTEINFO_BY_TOPIC, frozen=True):
    """To a name server: get the route of a topic."""

    topic: str
    accept_standard_json_only: bool | None = None


class Heartbeat(RequestHeader, code=RequestCode.HEART_BEAT, frozen=True):
    """Register the client; the body is bodies.HeartbeatData."""


class HeartbeatResponse(Header, frozen=True):
    """Brokers from 5.1.3 say whether they support short heartbeats."""

    supports_v2: bool = msgspec.field(name="IS_SUPPORT_HEART_BEAT_V2", default=False)
    subscription_changed: bool = msgspec.field(name="IS_SUB_CHANGE", default=False)


class UnregisterClient(RequestHeader, code=RequestCode.UNREGISTER_CLIENT, frozen=True):
    """Unregister; the broker removes only the entry of this connection."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroup(
    RequestHeader, code=RequestCode.GET_CONSUMER_LIST_BY_GROUP, frozen=True
):
    """List the client ids of the members; response 1 if there are none."""

    consumer_group: str


class CheckClientConfig(RequestHeader, code=RequestCode.CHECK_CLIENT_CONFIG, frozen=True):
    """Validate a filter expression; the body is bodies.CheckClientRequest."""


class LockBatchMQ(RequestHeader, code=RequestCode.LOCK_BATCH_MQ, frozen=True):
    """Lock queues for orderly consumption; the body is bodies.LockBatchRequest."""


class UnlockBatchMQ(RequestHeader, code=RequestCode.UNLOCK_BATCH_MQ, frozen=True):
    """Unlock queues; the body is bodies.LockBatchRequest."""
