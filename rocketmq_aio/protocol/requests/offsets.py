"""Offsets of queues and of groups."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader


class QueueRequest(RequestHeader, frozen=True, kw_only=True):
    """Base of the requests about one queue."""

    topic: str
    queue_id: int
    broker_name: str | None = msgspec.field(name="bname", default=None)


class QueryConsumerOffset(QueueRequest, frozen=True, kw_only=True):
    """Get the committed offset; response 22 if there is none.

    Without ``set_zero_if_not_found=False`` (5.x) a broker returns 0 for a young queue.
    """

    code: ClassVar[int] = RequestCode.QUERY_CONSUMER_OFFSET

    consumer_group: str
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(QueueRequest, frozen=True, kw_only=True):
    """Commit *commit_offset*, the next offset to consume."""

    code: ClassVar[int] = RequestCode.UPDATE_CONSUMER_OFFSET

    consumer_group: str
    commit_offset: int


class SearchOffset(QueueRequest, frozen=True, kw_only=True):
    """Get the first offset stored at or after *timestamp* (milliseconds)."""

    code: ClassVar[int] = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    timestamp: int


class GetMaxOffset(QueueRequest, frozen=True, kw_only=True):
    """Get the end offset of a queue."""

    code: ClassVar[int] = RequestCode.GET_MAX_OFFSET


class GetMinOffset(QueueRequest, frozen=True, kw_only=True):
    """Get the first offset that is still stored."""

    code: ClassVar[int] = RequestCode.GET_MIN_OFFSET


class GetEarliestMsgStoretime(QueueRequest, frozen=True, kw_only=True):
    """Get the store time of the first stored message (milliseconds)."""

    code: ClassVar[int] = RequestCode.GET_EARLIEST_MSG_STORETIME


class OffsetResponse(Header, frozen=True, kw_only=True):
    """Response with an offset."""

    offset: int


class TimestampResponse(Header, frozen=True, kw_only=True):
    """Response to GetEarliestMsgStoretime."""

    timestamp: int
