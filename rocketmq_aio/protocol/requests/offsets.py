"""Offsets of queues and of groups."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader


class QueueRequest(RequestHeader, frozen=True):
    """Base of the requests about one queue."""

    topic: str
    queue_id: int
    broker_name: str | None = msgspec.field(name="bname", default=None)


class QueueFields(TypedDict):
    """The fields of a `QueueRequest`."""

    topic: str
    queue_id: int
    broker_name: str


def queue_fields(queue: MessageQueue) -> QueueFields:
    """Return the fields that say which queue a request is about."""
    return {"topic": queue.topic, "queue_id": queue.queue_id, "broker_name": queue.broker_name}


class QueryConsumerOffset(QueueRequest, code=RequestCode.QUERY_CONSUMER_OFFSET, frozen=True):
    """Get the committed offset; response 22 if there is none.

    Without ``set_zero_if_not_found=False`` (5.x) a broker returns 0 for a young queue.
    """

    consumer_group: str
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(QueueRequest, code=RequestCode.UPDATE_CONSUMER_OFFSET, frozen=True):
    """Commit *commit_offset*, the next offset to consume."""

    consumer_group: str
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
