"""Results of pulls by offset: decoded messages, or the broker's bytes."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from rocketmq_aio.consumer.pull_loop.pull_request import is_reset, read_response, select_messages
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.decoding import Decoded
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.remoting.response_errors import broker_error


class PullStatus(Enum):
    """Outcome of a pull; `next_offset` is the offset of the next pull in every case."""

    FOUND = "FOUND"  # there are messages
    NO_NEW = "NO_NEW"  # the queue ends at the offset
    NO_MATCH = "NO_MATCH"  # no message before the next offset matches: pull again at once
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # no such offset; the next offset is the nearest valid one
    OFFSET_RESET = "OFFSET_RESET"  # an administrator reset the offset (5.x); returned once


class PullResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages of one queue; *min_offset* and *max_offset* are those of the queue."""

    status: PullStatus
    messages: list[MessageExt]  # not empty with FOUND, else empty
    next_offset: int
    min_offset: int
    max_offset: int


class RawPull(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Result of a pull, not decoded.

    The broker compares tags by their hashes: *body* may hold messages of other tags, and messages
    before the requested offset, where a batch is stored as one record.
    """

    status: PullStatus
    body: bytes  # stored messages, back to back
    offset_delta: int  # to be added to the offsets in the body (static topics)
    next_offset: int
    min_offset: int
    max_offset: int

    def __repr__(self) -> str:
        return f"<RawPull {self.status.name} {len(self.body)} bytes next_offset={self.next_offset}>"


STATUSES: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}


def read_raw(command: Command, address: str) -> tuple[RawPull, int]:
    """Return the response of the broker at *address*, and the broker id to read from next.

    :raises BrokerError: the broker returned an error
    """
    status = STATUSES.get(command.code)
    if status is None:
        raise broker_error(command, address)
    if status is PullStatus.OFFSET_ILLEGAL and is_reset(command.remark):
        status = PullStatus.OFFSET_RESET
    header = read_response(command)
    raw = RawPull(
        status=status,
        body=command.body,
        offset_delta=header.offset_delta or 0,
        next_offset=header.next_begin_offset,
        min_offset=header.min_offset,
        max_offset=header.max_offset,
    )
    return raw, header.suggest_which_broker_id


def pull_result(
    raw: RawPull, decoded: Decoded | None, offset: int, wanted: Subscription
) -> PullResult:
    """Return the messages of *raw* that match *wanted*.

    :raises CodecError: the message at *offset* cannot be decoded
    """
    status = raw.status
    messages: list[MessageExt] = []
    next_offset = raw.next_offset
    if decoded is not None:
        messages, next_offset, fault = select_messages(
            decoded, raw.offset_delta, next_offset, offset, wanted
        )
        if fault is not None and next_offset == offset:
            raise fault
        if not messages:
            status = PullStatus.NO_MATCH
    return PullResult(
        status=status,
        messages=messages,
        next_offset=next_offset,
        min_offset=raw.min_offset,
        max_offset=raw.max_offset,
    )
