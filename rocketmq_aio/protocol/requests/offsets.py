"""Offsets of queues and of groups."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader


class QueryConsumerOffset(RequestHeader, frozen=True, kw_only=True):
    """Get the committed offset; response 22 if there is none.

    Without ``set_zero_if_not_found=False`` (5.x) a broker returns 0 for a young queue.
    """

    code: ClassVar[int] = RequestCode.QUERY_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class UpdateConsumerOffset(RequestHeader, frozen=True, kw_only=True):
    """Commit *commit_offset*, the next offset to consume."""

    code: ClassVar[int] = RequestCode.UPDATE_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int
    broker_name: str | None = msgspec.field(name="bname", default=None)


class SearchOffset(RequestHeader, frozen=True, kw_only=True):
    """Get the first offset stored at or after *timestamp* (milliseconds)."""

    code: ClassVar[int] = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    topic: str
    queue_id: int
    timestamp: int
    broker_name: str | None = msgspec.field(name="bname", default=None)


class GetMaxOffset(RequestHeader, frozen=True, kw_only=True):
    """Get the end offset of a queue."""

    code: ClassVar[int] = RequestCode.GET_MAX_OFFSET

    topic: str
    queue_id: int
    broker_name: str | None = msgspec.field(name="bname", default=None)


class GetMinOffset(RequestHeader, frozen=True, kw_only=True):
    """Get the first offset that is still stored."""

    code: ClassVar[int] = RequestCode.GET_MIN_OFFSET

    topic: str
    queue_id: int
    broker_name: str | None = msgspec.field(name="bname", default=None)


class GetEarliestMsgStoretime(RequestHeader, frozen=True, kw_only=True):
    """Get the store time of the first stored message (milliseconds)."""

    code: ClassVar[int] = RequestCode.GET_EARLIEST_MSG_STORETIME

    topic: str
    queue_id: int
    broker_name: str | None = msgspec.field(name="bname", default=None)


class OffsetResponse(Header, frozen=True, kw_only=True):
    """Response with an offset."""

    offset: int


class TimestampResponse(Header, frozen=True, kw_only=True):
    """Response to GetEarliestMsgStoretime."""

    timestamp: int
