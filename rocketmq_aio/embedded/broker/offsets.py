"""Committed offsets and queue offsets of the broker."""

from __future__ import annotations

from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse, Handlers
from rocketmq_aio.embedded.broker.store import QueueLog
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.offsets import (
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)

NONE_STORED = -1  # earliest store time of an empty queue


class OffsetProcessor:
    """Committed offsets, and minimum and maximum offsets of queues."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> Handlers:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max,
            RequestCode.GET_MIN_OFFSET: self.min,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def query(self, command: Command, _connection: ServerConnection) -> Response:
        asked = read_header(command, QueryConsumerOffset)
        key = (asked.consumer_group, asked.topic, asked.queue_id)
        if key in self._state.committed:
            return _offset(self._state.committed[key])
        log = self._log(asked.topic, asked.queue_id) or QueueLog()
        # 4.9 ignores the field, and starts unknown queues at their first message.
        young = log.min_offset == 0
        if self._state.version.is_5:
            young &= bool(log.messages) and asked.set_zero_if_not_found is not False
        if young:
            return _offset(0)
        raise ErrorResponse(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group boots first")

    def update(self, command: Command, _connection: ServerConnection) -> Response:
        asked = read_header(command, UpdateConsumerOffset)
        if self._state.version.is_5:  # 4.9 stores any offset
            self._state.check_group(asked.consumer_group)
            self._state.topic(asked.topic)
        key = (asked.consumer_group, asked.topic, asked.queue_id)
        if key not in self._state.reset_offsets:
            self._state.committed[key] = asked.commit_offset
        return Response()

    def search(self, command: Command, _connection: ServerConnection) -> Response:
        asked = read_header(command, SearchOffset)
        log = self._log(asked.topic, asked.queue_id) or QueueLog()
        found = log.search(asked.timestamp)
        if log.messages and not self._state.version.is_5:
            found = min(
                found, log.max_offset - 1
            )  # 4.9 never returns an offset after the last message
        return _offset(found)

    def max(self, command: Command, _connection: ServerConnection) -> Response:
        asked = read_header(command, GetMaxOffset)
        log = self._log(asked.topic, asked.queue_id)
        return _offset(log.max_offset if log else 0)

    def min(self, command: Command, _connection: ServerConnection) -> Response:
        asked = read_header(command, GetMinOffset)
        log = self._log(asked.topic, asked.queue_id)
        return _offset(log.min_offset if log else 0)

    def earliest(self, command: Command, _connection: ServerConnection) -> Response:
        asked = read_header(command, GetEarliestMsgStoretime)
        log = self._log(asked.topic, asked.queue_id)
        time = log.messages[0].store_ms if log and log.messages else NONE_STORED
        return Response(ext={"timestamp": str(time)})

    def _log(self, topic: str, queue_id: int) -> QueueLog | None:
        found = self._state.store.topics.get(topic)
        if found is None or not 0 <= queue_id < len(found.queues):
            return None
        return found.queues[queue_id]


def _offset(offset: int) -> Response:
    return Response(ext={"offset": str(offset)})
