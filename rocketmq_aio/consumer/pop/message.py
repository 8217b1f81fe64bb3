"""PoppedMessage: a message with its receipt, and how long it stays invisible."""

from __future__ import annotations

import asyncio
from enum import Enum
from time import monotonic
from typing import Final

from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.model.codec import V_co
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import LMQ_PREFIX
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.decoding import Decoded
from rocketmq_aio.protocol.receipt import Receipt, order_count, read_info, receipts
from rocketmq_aio.protocol.requests.pop import PopMessageResponse

QUEUE_ID: Final = slice(12, 16)  # in the head of a record
MILLISECOND: Final = 0.001  # brokers round down to whole milliseconds


class AckState(Enum):
    """Whether a popped message is still held, and how it ended."""

    HELD = "held"
    ACKED = "acknowledged"
    RETURNED = "given back to the group"
    DEAD = "made a dead letter"


class PoppedMessage(MessageExt[V_co], kw_only=True, gc=False, eq=False):
    """A message that is invisible to the rest of the group until `deadline`.

    *group* received it.  *receipt* identifies this delivery; changing the invisible time replaces
    it.  *expires_at* and *received_at* are in seconds of `boottime`.
    """

    group: str
    receipt: Receipt
    expires_at: float
    invisible_seconds: float
    received_at: float
    ack_state: AckState = AckState.HELD
    invalid_reason: str = ""  # why the receipt may be invalid
    order_count: int = 0  # deliveries in order, which the broker counts outside of the record
    pending: asyncio.Future[None] | None = None  # done when the running request for it ends

    @property
    def reconsume_times(self) -> int:
        """How often the message was delivered to the group before."""
        return max(self.order_count, super().reconsume_times)

    @property
    def deadline(self) -> float:
        """When its invisible time ends, in seconds of the event loop's clock."""
        return monotonic() + self.expires_at - boottime()

    def is_expired(self, now: float) -> bool:
        """Whether the broker may have delivered it to another consumer."""
        return now >= self.expires_at

    def is_due(self, now: float) -> bool:
        """Whether half of its invisible time is over."""
        return self.expires_at - now < self.invisible_seconds / 2


def read_popped(
    decoded: Decoded,
    response: PopMessageResponse,
    group: str,
    source: MessageQueue,
    now: float,
    age: float,
) -> tuple[list[PoppedMessage], Exception | None]:
    """Return the messages of a pop, and the decoding error behind them.

    Messages that are not returned are redelivered after their invisible time.

    :param source: topic and broker; the queue id may be -1
    :param age: for how many seconds the messages have been invisible
    :raises CodecError: the response has no receipts for them
    """
    messages, fault = decoded
    queues: dict[int, MessageQueue] = {}
    is_light = source.topic.startswith(LMQ_PREFIX)  # has one queue; the record names the parent's
    for message in messages:  # a response holds messages of several queues
        number = 0 if is_light else int.from_bytes(message.head[QUEUE_ID], "big", signed=True)
        if number not in queues:
            queues[number] = MessageQueue(source.topic, source.broker_name, number)
        message.queue = queues[number]
    invisible = response.invisible_time / 1000
    popped = [
        PoppedMessage(
            each.topic,
            each.body,
            each.queue,
            each.queue_offset,
            each.head,
            each.raw_properties,
            group=group,
            receipt=receipt,
            expires_at=now - age + invisible - MILLISECOND,
            invisible_seconds=invisible,
            received_at=now,
        )
        for each, receipt in zip(
            messages, receipts(messages, response, source.broker_name), strict=True
        )
    ]
    if response.order_count_info:
        info = read_info(response)
        for message in popped:
            message.order_count = order_count(info, message.receipt)
    return popped, fault
