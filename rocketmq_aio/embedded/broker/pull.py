"""PullProcessor: reads queues, with long polling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rocketmq_aio.embedded.broker.clients import ClientProcessor
from rocketmq_aio.embedded.broker.filters import FilterError, Matches, compile_filter
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse
from rocketmq_aio.embedded.broker.store import QueueLog, StoredMessage
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.protocol.codes import (
    PERM_READ,
    PULL_COMMIT,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    ResponseCode,
)
from rocketmq_aio.protocol.requests.pull import LitePullMessage, PullMessage

MAX_MESSAGES: Final = 32
MAX_BYTES: Final = 256 * 1024
MAX_SCANNED: Final = 800  # messages that a filter checks per pull
PARSE_FAILED: Final = "parse the consumer's subscription failed"
NO_FILTER_DATA: Final = (
    "The broker's consumer filter data is not exist!Your expression may be wrong!"
)


class ReadResult(NamedTuple):
    """Result of reading a queue once."""

    code: int
    remark: str
    next_offset: int
    messages: Sequence[StoredMessage] = ()


class PullProcessor:
    """Returns messages from an offset; holds requests at the end of a queue."""

    def __init__(self, state: BrokerState, clients: ClientProcessor) -> None:
        self._state = state
        self._clients = clients

    @reads(LitePullMessage, version=5)
    @reads(PullMessage)
    def pull(self, header: PullMessage) -> object:
        self._state.check_consumer(header.consumer_group)
        log = self._log(header)
        if (moved := self._reset(header, log)) is not None:
            return moved
        key = (header.consumer_group, header.topic, header.queue_id)
        matches = self._filter(header)
        result = read(log, header.queue_offset, header.max_msg_nums, matches)
        if header.sys_flag & PULL_COMMIT:
            self._state.commit(*key, header.commit_offset)
        if result.code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & PULL_SUSPEND:
            self._state.pulled[key] = result.next_offset
            return self._hold(header, matches)
        return self._response(header, log, result)

    async def _hold(self, header: PullMessage, matches: Matches | None) -> Outcome:
        """Respond when a matching message arrives, or after the client's timeout.

        A real broker checks timeouts every five seconds, and so responds later.
        """
        clock, arrivals = self._state.clock, self._state.store.arrivals
        deadline = clock.monotonic() + header.suspend_timeout_millis / 1000
        key = (header.topic, header.queue_id)
        log = self._log(header)
        result = read(log, header.queue_offset, header.max_msg_nums, matches)
        while result.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            left = deadline - clock.monotonic()
            if left <= 0:
                break
            if result.next_offset == log.max_offset:
                await arrivals.wait((key,), left)
                # Checked again: the topic may have been deleted, and exist again.
                self._state.check_consumer(header.consumer_group)
                log = self._log(header)
                if (moved := self._reset(header, log)) is not None:
                    return moved
            result = read(log, result.next_offset, header.max_msg_nums, matches)
        if result.code == ResponseCode.PULL_NOT_FOUND and result.next_offset > header.queue_offset:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
            result = result._replace(code=code, remark="NO_MATCHED_MESSAGE")
        return self._response(header, log, result)

    def _reset(self, header: PullMessage, log: QueueLog) -> Response | None:
        """Return the response with the offset that an administrator set, if that is new."""
        key = (header.consumer_group, header.topic, header.queue_id)
        if (offset := self._state.reset_offsets.pop(key, None)) is None:
            return None
        moved = ReadResult(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", offset)
        return self._response(header, log, moved)

    def _response(self, header: PullMessage, log: QueueLog, result: ReadResult) -> Response:
        key = (header.consumer_group, header.topic, header.queue_id)
        self._state.pulled[key] = result.next_offset
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(log.min_offset),
            "maxOffset": str(log.max_offset),
        }
        if self._state.version.is_5:
            ext["topicSysFlag"] = ext["groupSysFlag"] = "0"
        body = b"".join([message.record for message in result.messages])
        if body:
            group, topic = header.consumer_group, header.topic
            self._state.delivered(group, topic, result.messages, len(body))
        return Response(result.code, ext, body, result.remark)

    def _log(self, header: PullMessage) -> QueueLog:
        topic = self._state.topic(header.topic)
        if not topic.perm & PERM_READ:
            remark = f"the topic[{header.topic}] pulling message is forbidden"
            raise ErrorResponse(remark, ResponseCode.NO_PERMISSION)
        if not 0 <= header.queue_id < topic.read_queues:
            raise self._state.invalid(f"queueId[{header.queue_id}] is illegal")
        return topic.queues[header.queue_id]

    def _filter(self, header: PullMessage) -> Matches | None:
        """Return the filter of the request, or of the group's last heartbeat.

        An SQL expression of a request that does not parse matches everything, as on real brokers;
        one of a heartbeat is an error.
        """
        is_5, of_request = self._state.version.is_5, header.sys_flag & PULL_SUBSCRIPTION
        if of_request:
            expression, kind = header.subscription or "", header.expression_type
        else:
            expression, kind = self._subscribed(header)
        try:
            return compile_filter(expression, kind, is_5=is_5)
        except FilterError:
            if kind != "SQL92" or not expression:
                raise ErrorResponse(PARSE_FAILED, ResponseCode.SUBSCRIPTION_PARSE_FAILED) from None
            if of_request:
                return None
            raise ErrorResponse(NO_FILTER_DATA, ResponseCode.FILTER_DATA_NOT_EXIST) from None

    def _subscribed(self, header: PullMessage) -> tuple[str, str]:
        """Return the subscription of the group's last heartbeat."""
        known = self._clients.subscription(header.consumer_group, header.topic)
        if known is None:
            remark = "the consumer's subscription not exist"
            raise ErrorResponse(remark, ResponseCode.SUBSCRIPTION_NOT_EXIST)
        if header.sub_version > known.sub_version:
            remark = "the consumer's subscription not latest"
            raise ErrorResponse(remark, ResponseCode.SUBSCRIPTION_NOT_LATEST)
        return known.sub_string, known.expression_type


def read(log: QueueLog, offset: int, most: int, matches: Matches | None) -> ReadResult:
    """Read up to *most* messages from *offset*; at least one, if there is any."""
    if log.max_offset == 0:
        code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
        return ReadResult(code, "NO_MESSAGE_IN_QUEUE", 0)
    if offset < log.min_offset:
        return ReadResult(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", log.min_offset)
    if offset > log.max_offset:
        return ReadResult(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", log.max_offset)
    if offset == log.max_offset:
        return ReadResult(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset)
    found, next_offset = select(log, offset, max(1, min(most, MAX_MESSAGES)), matches)
    if found:
        return ReadResult(ResponseCode.SUCCESS, "FOUND", next_offset, found)
    return ReadResult(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", next_offset)


def select(
    log: QueueLog, offset: int, most: int, matches: Matches | None
) -> tuple[list[StoredMessage], int]:
    """Return the messages of one response, and the offset to continue from."""
    found: list[StoredMessage] = []
    size = 0
    for stored in log.read(offset, most if matches is None else MAX_SCANNED):
        if found and (len(found) >= most or size + len(stored.record) > MAX_BYTES):
            return found, stored.offset
        if matches is None or matches(stored):
            found.append(stored)
            size += len(stored.record)
        offset = stored.offset + 1
    return found, offset
