"""Sending back: 36 CONSUMER_SEND_MSG_BACK, a message that the group could not consume."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader


class ConsumerSendMsgBack(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Store the message at *offset* of the commit log once more, for the group alone."""

    code: ClassVar[int] = RequestCode.CONSUMER_SEND_MSG_BACK

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)
