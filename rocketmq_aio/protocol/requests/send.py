"""Sending, sending back and recall of messages, and the end of transactions.

The fields of a send have one-letter names.
"""

from __future__ import annotations

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader


class SendMessage(RequestHeader, frozen=True, kw_only=True):
    """Send a message, or batch entries if *batch* is true."""

    code = RequestCode.SEND_MESSAGE_V2
    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: int = msgspec.field(name="d")
    queue_id: int = msgspec.field(name="e")
    sys_flag: int = msgspec.field(name="f")
    born_timestamp: int = msgspec.field(name="g")
    flag: int = msgspec.field(name="h")
    properties: str | None = msgspec.field(name="i", default=None)
    reconsume_times: int | None = msgspec.field(name="j", default=None)
    unit_mode: bool | None = msgspec.field(name="k", default=None)
    max_reconsume_times: int | None = msgspec.field(name="l", default=None)
    batch: bool | None = msgspec.field(name="m", default=None)
    broker_name: str | None = msgspec.field(name="n", default=None)


class SendBatchMessage(SendMessage, frozen=True, kw_only=True):
    """Send a batch; the broker checks *batch*, not the code."""

    code = RequestCode.SEND_BATCH_MESSAGE


class SendReplyMessage(SendMessage, frozen=True, kw_only=True):
    """Send a reply message; the broker pushes it to the requester."""

    code = RequestCode.SEND_REPLY_MESSAGE_V2


class RecallMessage(RequestHeader, frozen=True, kw_only=True):
    """Recall a delayed message."""

    code = RequestCode.RECALL_MESSAGE
    producer_group: str | None = None
    topic: str
    recall_handle: str
    broker_name: str | None = msgspec.field(name="bname", default=None)


class RecallMessageResponse(Header, frozen=True, kw_only=True):
    """The id of the recalled message."""

    msg_id: str
    region_id: str = msgspec.field(name="MSG_REGION", default="DefaultRegion")


class SendMessageResponse(Header, frozen=True, kw_only=True):
    """Position of the stored message."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region_id: str = msgspec.field(name="MSG_REGION", default="DefaultRegion")
    trace_on: str | None = msgspec.field(name="TRACE_ON", default=None)


class ConsumerSendMsgBack(RequestHeader, frozen=True, kw_only=True):
    """Store the message at *offset* of the commit log in the retry topic of *group*."""

    code = RequestCode.CONSUMER_SEND_MSG_BACK
    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class EndTransaction(RequestHeader, frozen=True, kw_only=True):
    """Commit or roll back a half message; no response for "unknown"."""

    code = RequestCode.END_TRANSACTION
    topic: str | None = None
    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)
