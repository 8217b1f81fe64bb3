"""OffsetProcessor: committed offsets and the offsets of queues."""

from __future__ import annotations

from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse
from rocketmq_aio.embedded.broker.store import QueueLog
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import QueueRequest, read_header
from rocketmq_aio.protocol.requests import offsets

NONE_STORED = -1  # earliest store time of an empty queue
NOTHING = -1  # committed; brokers store negative offsets, too


class OffsetProcessor:
    """Responds with committed offsets, and with those of queues."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    @reads(offsets.QueryConsumerOffset)
    def query(self, header: offsets.QueryConsumerOffset) -> object:
        key = (header.consumer_group, header.topic, header.queue_id)
        if (committed := self._state.committed.get(key, NOTHING)) >= 0:
            return _offset(committed)
        log = self._log(header)
        # 4.9 ignores the field, and starts unknown queues at their first message.
        remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        young = log.min_offset == 0
        if self._state.version.is_5:
            young &= bool(log.messages)
            if young and header.set_zero_if_not_found is False:
                young, remark = False, "Not found, do not set to zero, maybe this group boot first"
        if young:
            return _offset(0)
        raise ErrorResponse(remark, ResponseCode.QUERY_NOT_FOUND)

    @reads(offsets.UpdateConsumerOffset)
    def update(self, header: offsets.UpdateConsumerOffset) -> None:
        if self._state.version.is_5:  # 4.9 stores any offset
            self._state.group(header.consumer_group)
            self._state.topic(header.topic)
        key = (header.consumer_group, header.topic, header.queue_id)
        if key not in self._state.reset_offsets:
            self._state.commit(*key, header.commit_offset)

    @reads(Command, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search(self, command: Command) -> Response:
        header = read_header(command, offsets.SearchOffset)
        log, time = self._log(header), header.timestamp
        if not log.messages:
            return _offset(log.min_offset)
        offset = log.search(time)
        before, after = log.get(offset - 1), log.get(offset)
        if self._state.version.is_5:
            upper = command.ext_fields().get("boundaryType", "").upper() == "UPPER"
            if upper and before and (after is None or after.store_ms > time):
                offset -= 1
        elif before and (after is None or time - before.store_ms <= after.store_ms - time):
            offset -= 1  # 4.9 returns the nearest message
        return _offset(offset)

    @reads(offsets.GetMaxOffset)
    def max(self, header: offsets.GetMaxOffset) -> object:
        return _offset(self._log(header).max_offset)

    @reads(offsets.GetMinOffset)
    def min(self, header: offsets.GetMinOffset) -> object:
        return _offset(self._log(header).min_offset)

    @reads(offsets.GetEarliestMsgStoretime)
    def earliest(self, header: offsets.GetEarliestMsgStoretime) -> object:
        messages = self._log(header).messages
        time = messages[0].store_ms if messages else NONE_STORED
        return Response(ext={"timestamp": str(time)})

    def _log(self, header: QueueRequest) -> QueueLog:
        """Return the queue that a request is about; an empty one if it does not exist."""
        return self._state.store.queue(header.topic, header.queue_id) or QueueLog()


def _offset(offset: int) -> Response:
    return Response(ext={"offset": str(offset)})
