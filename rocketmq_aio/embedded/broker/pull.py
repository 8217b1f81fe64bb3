"""PullProcessor of the broker, with long polling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from rocketmq_aio.embedded.broker.clients import ClientProcessor
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse, Handlers
from rocketmq_aio.embedded.broker.store import QueueLog, StoredMessage
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.protocol.codes import (
    PERM_READ,
    PULL_COMMIT,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    RequestCode,
    ResponseCode,
)
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.requests.pull import PullMessage, PullMessageResponse
from rocketmq_aio.protocol.subscription import java_hash

MAX_MESSAGES: Final = 32
MAX_BYTES: Final = 256 * 1024

SQLFilter = Callable[[str, dict[str, str]], bool]
Matches = Callable[[StoredMessage], bool]


class Found(NamedTuple):
    """Result of one lookup in a queue."""

    code: int
    remark: str
    next_offset: int
    messages: tuple[StoredMessage, ...] = ()


class PullProcessor:
    """Hands out messages. SQL is judged by *sql*; without one everything passes, as on a broker
    that cannot parse the expression.
    """

    def __init__(self, state: BrokerState, members: ClientProcessor) -> None:
        self.sql: SQLFilter | None = None
        self._state = state
        self._members = members

    def handlers(self) -> Handlers:
        handlers: Handlers = {RequestCode.PULL_MESSAGE: self.pull}
        if self._state.version.is_5:
            handlers[RequestCode.LITE_PULL_MESSAGE] = self.pull
        return handlers

    def pull(self, command: Command, _connection: ServerConnection) -> Outcome | Awaitable[Outcome]:
        asked = read_header(command, PullMessage)
        self._state.ensure_group(asked.consumer_group)
        self._state.check_group(asked.consumer_group)
        if not self._state.group_setting(asked.consumer_group, "consumeEnable"):
            remark = f"subscription group no permission, {asked.consumer_group}"
            raise ErrorResponse(ResponseCode.NO_PERMISSION, remark)
        log = self._log(asked)
        key = (asked.consumer_group, asked.topic, asked.queue_id)
        reset = self._state.reset_offsets.pop(key, None)
        if reset is not None:
            return self._reply(log, Found(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", reset))
        matches = self._filter(asked)
        found = look(log, asked, matches)
        if asked.sys_flag & PULL_COMMIT:
            self._state.committed[key] = asked.commit_offset
        if found.code == ResponseCode.PULL_NOT_FOUND and asked.sys_flag & PULL_SUSPEND:
            return self._hold(log, asked, matches)
        return self._reply(log, found)

    async def _hold(self, log: QueueLog, asked: PullMessage, matches: Matches) -> Outcome:
        """Respond when a matching message arrives, or after the client's timeout.

        A real broker checks timeouts every five seconds, and so responds later.
        """
        seconds = asked.suspend_timeout_millis / 1000
        arrived = self._state.store.changed
        with suppress(TimeoutError):
            await arrived.until(
                lambda: bool(look(log, asked, matches).messages),
                "a match",
                seconds,
                self._state.clock,
            )
        return self._reply(log, look(log, asked, matches))

    def _reply(self, log: QueueLog, found: Found) -> Response:
        answer = PullMessageResponse(
            suggest_which_broker_id=0,
            next_begin_offset=found.next_offset,
            min_offset=log.min_offset,
            max_offset=log.max_offset,
        )
        ext = to_ext_fields(answer)
        if self._state.version.is_5:
            ext |= {"topicSysFlag": "0", "groupSysFlag": "0"}
        body = b"".join([message.record for message in found.messages])
        return Response(found.code, ext, body, found.remark)

    def _log(self, asked: PullMessage) -> QueueLog:
        topic = self._state.topic(asked.topic)
        if not topic.perm & PERM_READ:
            remark = f"the topic[{asked.topic}] pulling message is forbidden"
            raise ErrorResponse(ResponseCode.NO_PERMISSION, remark)
        if not 0 <= asked.queue_id < topic.read_queues:
            raise self._state.invalid(f"queueId[{asked.queue_id}] is illegal")
        return topic.queues[asked.queue_id]

    def _filter(self, asked: PullMessage) -> Matches:
        if asked.sys_flag & PULL_SUBSCRIPTION:
            expression, kind = asked.subscription or "*", asked.expression_type or "TAG"
        else:
            expression, kind = self._subscribed(asked)
        if kind != "TAG":
            sql = self.sql
            return lambda stored: sql is None or sql(expression, stored.properties)
        if expression == "*":
            return lambda _stored: True
        hashes = {java_hash(tag.strip()) for tag in expression.split("||") if tag.strip()}
        if not hashes:
            remark = "parse the consumer's subscription failed"
            raise ErrorResponse(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        return lambda stored: stored.tag_hash in hashes

    def _subscribed(self, asked: PullMessage) -> tuple[str, str]:
        """Return the subscription of the group's last heartbeat."""
        group = self._members.groups.get(asked.consumer_group)
        if group is None or asked.topic not in group.subscriptions:
            remark = "the consumer's subscription not exist"
            raise ErrorResponse(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        known = group.subscriptions[asked.topic]
        if asked.sub_version > known.sub_version:
            remark = "the consumer's subscription not latest"
            raise ErrorResponse(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
        return known.sub_string, known.expression_type


def look(log: QueueLog, asked: PullMessage, matches: Matches) -> Found:
    """Return the result of a pull from *log*."""
    offset = asked.queue_offset
    if log.max_offset == 0:
        code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
        return Found(code, "NO_MESSAGE_IN_QUEUE", 0)
    if offset < log.min_offset:
        return Found(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", log.min_offset)
    if offset > log.max_offset:
        return Found(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", log.max_offset)
    if offset == log.max_offset:
        return Found(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset)
    taken, next_offset = _take(log.since(offset), asked.max_msg_nums, matches)
    if taken:
        return Found(ResponseCode.SUCCESS, "FOUND", next_offset, tuple(taken))
    return Found(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", next_offset)


def _take(
    rest: list[StoredMessage], most: int, matches: Matches
) -> tuple[list[StoredMessage], int]:
    """Return the messages of one response, and the offset to continue from."""
    taken: list[StoredMessage] = []
    size, most = 0, min(most, MAX_MESSAGES)
    for stored in rest:
        full = len(taken) >= most or size + len(stored.record) > MAX_BYTES
        if taken and full:
            return taken, stored.offset
        if matches(stored):
            taken.append(stored)
            size += len(stored.record)
    return taken, rest[-1].offset + 1
