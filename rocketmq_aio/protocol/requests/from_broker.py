"""What a broker asks of a client, over the client's own connection."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader


class CheckTransactionState(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """How did the local transaction end?  The body is the half message."""

    code: ClassVar[int] = RequestCode.CHECK_TRANSACTION_STATE

    topic: str | None = None
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class NotifyConsumerIdsChanged(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """A member joined or left the group."""

    code: ClassVar[int] = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumer_group: str


class ResetOffset(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Continue elsewhere; the body is bodies.ResetOffsetBody."""

    code: ClassVar[int] = RequestCode.RESET_CONSUMER_CLIENT_OFFSET

    group: str
    topic: str
    queue_id: int | None = None
    offset: int | None = None
    timestamp: int
    is_force: bool


class GetConsumerStatus(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Where does the group stand?  Answered with bodies.ConsumerStatusBody."""

    code: ClassVar[int] = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """How is the consumer doing?  Answered with bodies.ConsumerRunningInfo.

    Brokers pass all fields on to the client, those they do not know too: *check_id* names the
    asking consumer when it asks for its own client id.
    """

    code: ClassVar[int] = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    jstack_enable: bool = False
    check_id: str | None = None


class ConsumeMessageDirectly(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """Run the handler on the message in the body, once."""

    code: ClassVar[int] = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


class PushReplyMessage(RequestHeader, frozen=True, kw_only=True, rename="camel", gc=False):
    """The reply to a request message; the broker waits for the answer."""

    code: ClassVar[int] = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT

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
