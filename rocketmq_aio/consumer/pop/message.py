"""A popped message: what the application gets, and how long it is the application's alone."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final

from rocketmq_aio.model.codec import V_co
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.decoding import Decoded
from rocketmq_aio.protocol.receipt import Receipt, order_count, read_info, receipts
from rocketmq_aio.protocol.requests.pop import PopMessageResponse

QUEUE_ID: Final = slice(12, 16)  # in the head of a record
MILLISECOND: Final = 0.001  # brokers leave out what is less


class AckState(Enum):
    """What became of a popped message."""

    HELD = "held"
    ACKED = "acknowledged"
    RETURNED = "given back to the group"
    DEAD = "made a dead letter"


class PoppedMessage(MessageExt[V_co], kw_only=True, gc=False, eq=False):
    """A message that nobody else of the group gets before `deadline`, unless it is given back.

    *receipt* names this delivery to the broker; changing the invisible time replaces it.
    *deadline* is in seconds of the event loop's clock.
    """

    receipt: Receipt
    deadline: float
    invisible_seconds: float
    received_at: float
    fate: AckState = AckState.HELD
    doubt: str = ""  # why the receipt may be dead already
    tried_in_order: int = 0  # counted by the broker, outside of the record
    changing: asyncio.Future[None] | None = None  # a request about this message is under way

    @property
    def reconsume_times(self) -> int:
        """How often the group has tried it before without success."""
        return max(self.tried_in_order, super().reconsume_times)

    def is_expired(self, now: float) -> bool:
        """The broker may have given it to somebody else."""
        return now >= self.deadline

    def is_due(self, now: float) -> bool:
        """Half of its time is over."""
        return self.deadline - now < self.invisible_seconds / 2


def read_popped(
    decoded: Decoded,
    answer: PopMessageResponse,
    source: MessageQueue,
    now: float,
    age: float,
) -> tuple[list[PoppedMessage], Exception | None]:
    """Return the messages of a pop, and what could not be read behind them.

    What is not returned comes again after its invisible time.

    :param source: topic and broker; the queue id may be -1
    :param age: for how many seconds the messages are invisible already
    :raises CodecError: the answer says nothing of their receipts
    """
    messages, fault = decoded
    queues: dict[int, MessageQueue] = {}
    for message in messages:  # an answer holds messages of several queues
        number = int.from_bytes(message.head[QUEUE_ID], "big", signed=True)
        if number not in queues:
            queues[number] = MessageQueue(source.topic, source.broker_name, number)
        message.queue = queues[number]
    invisible = answer.invisible_time / 1000
    popped = [
        PoppedMessage(
            each.topic,
            each.body,
            each.queue,
            each.queue_offset,
            each.head,
            each.raw_properties,
            receipt=receipt,
            deadline=now - age + invisible - MILLISECOND,
            invisible_seconds=invisible,
            received_at=now,
        )
        for each, receipt in zip(
            messages, receipts(messages, answer, source.broker_name), strict=True
        )
    ]
    if answer.order_count_info:
        info = read_info(answer)
        for message in popped:
            message.tried_in_order = order_count(info, message.receipt)
    return popped, fault
