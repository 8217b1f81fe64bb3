"""Offset by timestamp: verifies the answers of brokers against stored messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from typing import Final

from rocketmq_aio.admin.servers import Servers
from rocketmq_aio.errors import (
    AuthError,
    BrokerError,
    CodecError,
    PermissionDeniedError,
    SubscriptionError,
)
from rocketmq_aio.instance.time_search import TimeSearch
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import LMQ_PREFIX
from rocketmq_aio.model.properties import INNER_NUM
from rocketmq_aio.model.timestamps import millis_of
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import PULL_SUBSCRIPTION, ResponseCode
from rocketmq_aio.protocol.header import queue_fields, read_header
from rocketmq_aio.protocol.record import light_offset, stored_message
from rocketmq_aio.protocol.requests.pull import PullMessage, PullMessageResponse

TOOLS: Final = "TOOLS_CONSUMER"  # a group that exists on all brokers
_SIZE: Final = Struct(">i")
COUNT: Final = re.compile(r"[0-9]{1,9}")
REFUSALS: Final = (AuthError, PermissionDeniedError, SubscriptionError)  # of reads as that group
SUCCESS_OR_GAP: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class OffsetSearch:
    """Finds offsets by store time."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def offset_at(self, queue: MessageQueue, millis: int) -> int:
        """Return the first offset stored at or after *millis* since 1970, or the queue's end.

        If the account may not read, the broker's offset is only limited to existing offsets.
        """
        broker = self._servers.instance.broker
        least = max(0, await broker.min_offset(queue))
        most = max(least, await broker.max_offset(queue))
        hint = await broker.offset_for_time(queue, millis)
        try:
            return await TimeSearch(millis, least, most, hint).find(
                lambda offset, count: self._stored(queue, offset, most, count)
            )
        except REFUSALS:
            return min(max(hint, least), most)

    async def _stored(
        self, queue: MessageQueue, offset: int, most: int, count: int
    ) -> list[tuple[int, int]]:
        """Return offsets and store times of the next messages; BrokerError if it ends early."""
        while offset < most:
            body, response = await self.pull(queue, offset, count)
            delta = response.offset_delta or 0
            messages = [
                each
                for record in records(body)
                for each in store_times(_stored_in(queue, record), delta)
                if each[0] >= offset
            ]
            if messages:
                return messages
            if response.next_begin_offset <= offset:
                remark = f"no message at offset {offset} of {queue}, which ends at {most}"
                raise BrokerError(ResponseCode.PULL_NOT_FOUND, remark, queue.broker_name)
            offset = response.next_begin_offset  # after a gap
        return []

    async def pull(
        self, queue: MessageQueue, offset: int, count: int, expression: str = "*"
    ) -> tuple[bytes, PullMessageResponse]:
        """Return records from *offset* on, maybe none, and where to go on."""
        header = PullMessage(
            consumer_group=TOOLS,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=expression,
            sub_version=0,
            **queue_fields(queue),
        )
        address = self._servers.instance.routes.master_of(queue)
        command = await self._servers.request(address, header, accept=SUCCESS_OR_GAP)
        body = command.body if command.code == ResponseCode.SUCCESS else b""
        return body, read_header(command, PullMessageResponse)


def records(body: bytes) -> Iterator[bytes]:
    """Yield the stored records in *body*, of any queues; CodecError if a size is invalid."""
    at = 0
    while at < len(body):
        size = _SIZE.unpack_from(body, at)[0] if len(body) - at >= _SIZE.size else 0
        if not 0 < size <= len(body) - at:
            raise CodecError("message size", at, f"{size} of {len(body) - at} bytes left")
        yield body[at : at + size]
        at += size


def _stored_in(queue: MessageQueue, record: bytes) -> MessageExt:
    """Return *record* as stored, with its offset in *queue*."""
    stored = stored_message(record, queue.broker_name)
    if queue.topic.startswith(LMQ_PREFIX) and stored.topic != queue.topic:
        stored.queue_offset = light_offset(stored, queue.topic)
    return stored


def store_times(stored: MessageExt, delta: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, store time) of the first and the last message of a record.

    :raises CodecError: the time or the number of messages is invalid
    """
    first, millis = stored.queue_offset + delta, millis_of(stored.store_time)
    yield first, millis
    inner = stored.property(INNER_NUM) or "1"
    if not COUNT.fullmatch(inner):
        raise CodecError("INNER_NUM", 0, repr(inner))
    count = int(inner)
    if count > 1:  # a batch that is stored as one
        yield first + count - 1, millis
