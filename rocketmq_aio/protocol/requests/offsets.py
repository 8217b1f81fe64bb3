"""Offsets of queues and of groups."""

from __future__ import annotations

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import GroupQueueRequest, Header, QueueRequest


class QueryConsumerOffset(GroupQueueRequest, code=RequestCode.QUERY_CONSUMER_OFFSET, frozen=True):
    """Get the committed offset; response 22 if there is none.

    Without ``set_zero_if_not_found=False`` (5.x) a broker returns 0 for a young queue.
    """

    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(GroupQueueRequest, code=RequestCode.UPDATE_CONSUMER_OFFSET, frozen=True):
    """Commit *commit_offset*, the next offset to consume."""

    commit_offset: int


class SearchOffset(QueueRequest, code=RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, frozen=True):
    """Get the first offset stored at or after *timestamp* (milliseconds)."""

    timestamp: int


class GetMaxOffset(QueueRequest, code=RequestCode.GET_MAX_OFFSET, frozen=True):
    """Get the end offset of a queue."""


class GetMinOffset(QueueRequest, code=RequestCode.GET_MIN_OFFSET, frozen=True):
    """Get the first offset that is still stored."""


class GetEarliestMsgStoretime(
    QueueRequest, code=RequestCode.GET_EARLIEST_MSG_STORETIME, frozen=True
):
    """Get the store time of the first stored message (milliseconds)."""


class OffsetResponse(Header, frozen=True):
    """Response with an offset."""

    offset: int


class TimestampResponse(Header, frozen=True):
    """Response to GetEarliestMsgStoretime."""

    timestamp: int
