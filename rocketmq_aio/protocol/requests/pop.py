"""Popping (5.x): 200050 POP_MESSAGE, 200051 ACK_MESSAGE, 200053 and 200151.

The codes do not fit a ROCKETMQ binary header: `encode_command` writes JSON headers.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import GroupQueueRequest, Header, bare_request

# Acknowledges several messages; the body is a `BatchAckRequest` (from 5.1.3).
BatchAckMessage: Final = bare_request(RequestCode.BATCH_ACK_MESSAGE, __name__)


class PopMessage(GroupQueueRequest, frozen=True, kw_only=True):
    """Pop messages of a topic, which stay invisible to the group for *invisible_time* ms.

    *queue_id* -1: all queues of the broker; *born_time*: ms by the broker's clock, 0: unknown.
    """

    code = RequestCode.POP_MESSAGE
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: int
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class ChangeInvisibleTimeResponse(Header, frozen=True, kw_only=True):
    """The changed parts of the receipt."""

    pop_time: int
    invisible_time: int
    revive_queue_id: int = msgspec.field(name="reviveQid")


class PopMessageResponse(ChangeInvisibleTimeResponse, frozen=True, kw_only=True):
    """Header of responses 0 and 210; `receipt` decodes the last three fields."""

    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessage(GroupQueueRequest, frozen=True, kw_only=True):
    """Acknowledge a message; *topic* is where it is stored, *extra_info* its receipt."""

    code = RequestCode.ACK_MESSAGE
    extra_info: str
    offset: int


class ChangeInvisibleTime(AckMessage, frozen=True, kw_only=True):
    """Keep a message invisible for *invisible_time* ms from now; else as `AckMessage`.

    *suspend*: its redelivery does not count as a retry (from 5.5; others ignore it).
    """

    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    invisible_time: int
    suspend: bool | None = None
