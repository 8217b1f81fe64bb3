"""Pre-encoded sends: messages and batches that the caller has encoded."""

from __future__ import annotations

from time import time_ns
from typing import Final

import msgspec

from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.model.names import RETRY_PREFIX, send_fault
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.queue_selection import checked_key, routing_to
from rocketmq_aio.producer.send_request import SendRequest, too_large
from rocketmq_aio.producer.sender import Sender
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo

BATCH_PROPERTIES: Final = b"WAIT\x01true\x02"


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
    if not isinstance(encoded, Encoded):
        reason = (
            f"expected Encoded(topic=..., body=..., message_id=...), got {type(encoded).__name__}"
        )
        raise InvalidMessageError(None, reason)
    topic, size, max_bytes = encoded.topic, len(encoded.body), sender.config.max_message_bytes
    if size > max_bytes:
        raise too_large(topic, "the batch" if encoded.batch else "the body", size, max_bytes)
    if (fault := send_fault(topic)) is not None:
        raise InvalidMessageError(topic, fault)
    if encoded.batch and topic.startswith(RETRY_PREFIX):
        raise InvalidMessageError(topic, "a retry topic takes no batches")

    routing = routing_to(queue)
    if queue is None and key is not None:
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

    return await sender.with_target(topic, size, routing.select_target, deadline, send)
