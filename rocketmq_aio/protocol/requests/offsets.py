"""Offsets of queues and of groups."""

from __future__ import annotations

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import GroupQueueRequest, Header, QueueRequest


class QueryConsumerOffset(GroupQueueRequest, frozen=True, kw_only=True):
    """Get the committed offset; response 22 if there is none.

    Without ``set_zero_if_not_found=False`` (5.x) a broker returns 0 for a young queue.
    """

    code = RequestCode.QUERY_CONSUMER_OFFSET
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(GroupQueueRequest, frozen=True, kw_only=True):
    """Commit *commit_offset*, the next offset to consume."""

    code = RequestCode.UPDATE_CONSUMER_OFFSET
    commit_offset: int


class SearchOffset(QueueRequest, frozen=True, kw_only=True):
    """Get the first offset stored at or after *timestamp* (milliseconds)."""

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    timestamp: int


class GetMaxOffset(QueueRequest, frozen=True, kw_only=True):
    """Get the end offset of a queue."""

    code = RequestCode.GET_MAX_OFFSET


class GetMinOffset(QueueRequest, frozen=True, kw_only=True):
    """Get the first offset that is still stored."""

    code = RequestCode.GET_MIN_OFFSET


class GetEarliestMsgStoretime(QueueRequest, frozen=True, kw_only=True):
    """Get the store time of the first stored message (milliseconds)."""

    code = RequestCode.GET_EARLIEST_MSG_STORETIME


class OffsetResponse(Header, frozen=True, kw_only=True):
    """Response with an offset."""

    offset: int


class TimestampResponse(Header, frozen=True, kw_only=True):
    """Response to GetEarliestMsgStoretime."""

    timestamp: int
