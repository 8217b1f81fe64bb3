"""Send-back of failed messages: 36 CONSUMER_SEND_MSG_BACK."""

from __future__ import annotations

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader


class ConsumerSendMsgBack(RequestHeader, code=RequestCode.CONSUMER_SEND_MSG_BACK, frozen=True):
    """Store the message at *offset* of the commit log in the retry topic of *group*."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)
