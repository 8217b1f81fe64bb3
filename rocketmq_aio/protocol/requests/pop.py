"""Popping (5.x): 200050 POP_MESSAGE, 200051 ACK_MESSAGE, 200053 and 200151.

The codes do not fit a ROCKETMQ binary header: `encode_command` writes JSON headers.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader


class PopMessage(RequestHeader, frozen=True, kw_only=True):
    """Pop messages of a topic, which stay invisible to the group for *invisible_time* ms.

    *queue_id* -1: all queues of the broker; *born_time*: ms by the broker's clock, 0: unknown.
    """

    code: ClassVar[int] = RequestCode.POP_MESSAGE

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: int
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class PopMessageResponse(Header, frozen=True, kw_only=True):
    """Header of responses 0 and 210; `receipt` decodes the last three fields."""

    pop_time: int
    invisible_time: int
    revive_queue_id: int = msgspec.field(name="reviveQid")
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessage(RequestHeader, frozen=True, kw_only=True):
    """Acknowledge a message; *topic* is where it is stored, *extra_info* its receipt."""

    code: ClassVar[int] = RequestCode.ACK_MESSAGE

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    broker_name: str | None = msgspec.field(name="bname", default=None)


class ChangeInvisibleTime(RequestHeader, frozen=True, kw_only=True):
    """Keep a message invisible for *invisible_time* ms from now; else as `AckMessage`."""

    code: ClassVar[int] = RequestCode.CHANGE_MESSAGE_INVISIBLETIME

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int
    broker_name: str | None = msgspec.field(name="bname", default=None)


class ChangeInvisibleTimeResponse(Header, frozen=True, kw_only=True):
    """The changed parts of the receipt."""

    pop_time: int
    invisible_time: int
    revive_queue_id: int = msgspec.field(name="reviveQid")


class BatchAckMessage(RequestHeader, frozen=True, kw_only=True):
    """Acknowledge several messages; the body is bodies.BatchAckRequest (from 5.1.3)."""

    code: ClassVar[int] = RequestCode.BATCH_ACK_MESSAGE
