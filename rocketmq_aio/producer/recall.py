"""Message recall: cancels the delivery of a delayed message."""

from __future__ import annotations

import asyncio
import binascii
from base64 import urlsafe_b64decode
from time import monotonic
from typing import Final

from rocketmq_aio.errors import ClosedError, ConfigError, NotConnectedError, RocketMQError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.names import DLQ_PREFIX, RETRY_PREFIX
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.send import RecallMessage, RecallMessageResponse

PARTS: Final = 5  # of a handle: version, topic, broker name, time, message id
VERSION: Final = "v1"
LEAST_SECONDS: Final = 0.001


def broker_of_handle(topic: str, handle: object) -> str:
    """Return the name of the broker that issued a recall handle.

    :param topic: as brokers know it
    :raises ConfigError: it is not a handle, or it belongs to another topic
    """
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise ConfigError("topic", topic, "messages of this kind of topic cannot be recalled")
    if handle is None:
        reason = "only messages with delay_seconds or deliver_at have one, from brokers from 5.3.2"
        raise ConfigError("handle", handle, reason)
    try:
        parts = urlsafe_b64decode(handle).decode().split(" ")  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        parts = []
    if len(parts) != PARTS or parts[0] != VERSION:
        raise ConfigError("handle", handle, "expected a SendResult.recall_handle")
    if parts[1] != topic:
        raise ConfigError("handle", handle, f"it is about topic {parts[1]!r}")
    return parts[2]


async def recall(
    instance: MQClientInstance, group: str, topic: str, handle: str | None, seconds: float
) -> str:
    """Send RECALL_MESSAGE to the broker of *handle*; return the message id."""
    namespace = instance.remoting.namespace
    broker = broker_of_handle(topic if namespace is None else namespace.outer(topic), handle)
    assert handle is not None
    deadline = monotonic() + seconds
    address = await _master_address(instance, topic, broker, deadline)
    header = RecallMessage(
        producer_group=group, topic=topic, recall_handle=handle, broker_name=broker
    )
    left = max(LEAST_SECONDS, deadline - monotonic())
    response = await instance.remoting.request_checked(address, header, timeout=left)
    return read_header(response, RecallMessageResponse).msg_id


async def _master_address(
    instance: MQClientInstance, topic: str, broker: str, deadline: float
) -> str:
    address = instance.routes.master(broker)
    if address is None:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await instance.routes.fetch(topic)
        except TimeoutError:
            reason = "its address is not known: no name server responded in time"
            raise NotConnectedError(broker, reason) from None
        except ClosedError:
            raise
        except RocketMQError as error:
            raise NotConnectedError(broker, f"its address is not known: {error}") from error
        address = instance.routes.master(broker)
    if address is None:
        raise NotConnectedError(broker, "no route names a master of this broker")
    return address
