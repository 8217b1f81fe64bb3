"""Pre-encoded sends: messages and batches that the caller has encoded."""

from __future__ import annotations

from time import time_ns
from typing import Final

import msgspec

from rocketmq_aio.errors import ConfigError, InvalidMessageError
from rocketmq_aio.model.names import RETRY_PREFIX, send_fault
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.queue_selection import ONE_CHOICE, checked_key, routing_to
from rocketmq_aio.producer.send_request import (
    MAX_TIMED_PROPERTIES,
    SendRequest,
    too_large,
    too_many_properties,
)
from rocketmq_aio.producer.sender import Sender
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo

BATCH_PROPERTIES: Final = b"WAIT\x01true\x02"
WIRE_TYPES: Final = {
    "body": bytes,
    "message_id": str,
    "properties": bytes,
    "flag": int,
    "batch": bool,
}


class Encoded(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message or a batch in wire form; its content is not validated.

    :ivar body: of a message; of a batch its concatenated entries, see `encode_batch_entry`
    :ivar message_id: the id of the (first) message, for results and errors
    :ivar properties: in wire form; those of a message, or of each entry, must have its
        ``UNIQ_KEY``, by which tools find it
    :ivar timed: the properties have a delivery time, which brokers before 5.0 ignore
    """

    topic: str
    body: bytes
    message_id: str
    properties: bytes = BATCH_PROPERTIES
    flag: int = 0
    batch: bool = False
    timed: bool = False

    def __repr__(self) -> str:
        return f"<Encoded {self.topic!r} {self.message_id} {len(self.body)} bytes>"


async def send_encoded(
    sender: Sender, encoded: Encoded, queue: MessageQueue | None, key: str | None, deadline: float
) -> SendResult:
    """Send *encoded*; see `Producer.send_encoded`."""
    _check(encoded, sender.config.max_message_bytes)
    topic = encoded.topic
    routing = routing_to(queue)
    if key is not None:
        if queue is not None:
            raise ConfigError("sharding_key", key, ONE_CHOICE)
        routing = sender.selection.by_key(checked_key(key), True)

    async def send(publish: TopicPublishInfo, target: SendTarget) -> SendResult:
        fixed = routing.fixed
        if encoded.timed:
            target, fixed = await sender.delayed_target(publish, target, fixed, deadline)
        request = SendRequest(
            target,
            topic,
            encoded.message_id,
            encoded.body,
            encoded.properties,
            sys_flag=0,
            flag=encoded.flag,
            born_ms=time_ns() // 1_000_000,
            batch=encoded.batch,
            fixed=fixed,
        )
        return await sender.attempts.run(request, publish, deadline)

    return await sender.with_target(topic, len(encoded.body), routing.select_target, deadline, send)


def _check(encoded: Encoded, max_bytes: int) -> None:
    if not isinstance(encoded, Encoded):
        got = type(encoded).__name__
        reason = f"expected Encoded(topic=..., body=..., message_id=...), got {got}"
        raise InvalidMessageError(None, reason)
    topic, batch = encoded.topic, encoded.batch
    if (fault := send_fault(topic)) is not None:
        raise InvalidMessageError(topic, fault)
    for name, kind in WIRE_TYPES.items():
        if not isinstance(value := getattr(encoded, name), kind):
            reason = f"Encoded.{name} is {type(value).__name__}, expected {kind.__name__}"
            raise InvalidMessageError(topic, reason)
    if (size := len(encoded.body)) > max_bytes:
        raise too_large(topic, "the batch" if batch else "the body", size, max_bytes)
    if encoded.timed and (size := len(encoded.properties)) > MAX_TIMED_PROPERTIES:
        raise too_many_properties(topic, size, MAX_TIMED_PROPERTIES)
    if batch and topic.startswith(RETRY_PREFIX):
        raise InvalidMessageError(topic, "a retry topic takes no batches")
