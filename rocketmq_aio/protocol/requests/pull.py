"""Pulling: 11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE (5.x)."""

from __future__ import annotations

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import GroupQueueRequest, Header


class PullMessage(GroupQueueRequest, frozen=True, kw_only=True):
    """Pull messages of a queue from an offset; *sys_flag* says which fields are valid."""

    code = RequestCode.PULL_MESSAGE
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    subscription: str | None = None
    sub_version: int
    expression_type: str | None = None
    max_msg_bytes: int | None = None  # a hint, from 5.0


class LitePullMessage(PullMessage, frozen=True, kw_only=True):
    """The same for lite pull consumers, from 5.0."""

    code = RequestCode.LITE_PULL_MESSAGE


class PullMessageResponse(Header, frozen=True, kw_only=True):
    """Header of responses 0, 19, 20 and 21."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
