"""Requests from brokers to clients."""

from __future__ import annotations

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader


class CheckTransactionState(RequestHeader, frozen=True, kw_only=True):
    """Check the state of a transaction; the body is the half message."""

    code = RequestCode.CHECK_TRANSACTION_STATE
    topic: str | None = None
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class NotifyConsumerIdsChanged(RequestHeader, frozen=True, kw_only=True):
    """A member joined or left the group."""

    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    consumer_group: str


class ResetOffset(RequestHeader, frozen=True, kw_only=True):
    """Reset offsets; `bodies.read_reset_offsets` decodes the body."""

    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    group: str
    topic: str
    queue_id: int | None = None
    offset: int | None = None
    timestamp: int
    is_force: bool


class GetConsumerStatus(RequestHeader, frozen=True, kw_only=True):
    """Get the consumed offsets; the response is bodies.ConsumerStatusBody."""

    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(RequestHeader, frozen=True, kw_only=True):
    """Get the state of a consumer; the response is bodies.ConsumerRunningInfo.

    Brokers forward unknown fields: a consumer that queries its own client id sets *check_id*.
    """

    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    consumer_group: str
    client_id: str
    jstack_enable: bool = False
    check_id: str | None = None


class ConsumeMessageDirectly(RequestHeader, frozen=True, kw_only=True):
    """Run the handler once on the message in the body."""

    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


class PushReplyMessage(RequestHeader, frozen=True, kw_only=True):
    """Deliver a reply message; the broker waits for the response."""

    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: int
