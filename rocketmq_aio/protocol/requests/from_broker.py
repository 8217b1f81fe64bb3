"""Requests from brokers to clients."""

from __future__ import annotations

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader


class CheckTransactionState(RequestHeader, code=RequestCode.CHECK_TRANSACTION_STATE, frozen=True):
    """Check the state of a transaction; the body is the half message."""

    topic: str | None = None
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class NotifyConsumerIdsChanged(
    RequestHeader, code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, frozen=True
):
    """A member joined or left the group."""

    consumer_group: str


class ResetOffset(RequestHeader, code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET, frozen=True):
    """Reset offsets; `bodies.read_reset_offsets` decodes the body."""

    group: str
    topic: str
    queue_id: int | None = None
    offset: int | None = None
    timestamp: int
    is_force: bool


class GetConsumerStatus(
    RequestHeader, code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, frozen=True
):
    """Get the consumed offsets; the response is bodies.ConsumerStatusBody."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(
    RequestHeader, code=RequestCode.GET_CONSUMER_RUNNING_INFO, frozen=True
):
    """Get the state of a consumer; the response is bodies.ConsumerRunningInfo.

    Brokers forward unknown fields: a consumer that queries its own client id sets *check_id*.
    """

    consumer_group: str
    client_id: str
    jstack_enable: bool = False
    check_id: str | None = None


class ConsumeMessageDirectly(RequestHeader, code=RequestCode.CONSUME_MESSAGE_DIRECTLY, frozen=True):
    """Run the handler once on the message in the body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


class PushReplyMessage(RequestHeader, code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, frozen=True):
    """Deliver a reply message; the broker waits for the response."""

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
