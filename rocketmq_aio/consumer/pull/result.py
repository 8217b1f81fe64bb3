"""What a pull by offset comes to, with messages or as the broker's bytes."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import msgspec

from rocketmq_aio.consumer.pulling.pull_response import RESET_REMARK, read_pulled
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.decoding import Decoded
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.pull import PullMessageResponse
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.remoting.response_errors import broker_error


class PullStatus(Enum):
    """What a pull came to; where to go on is `next_offset` in every case."""

    FOUND = "FOUND"  # there are messages
    NO_NEW = "NO_NEW"  # the queue ends at the offset
    NO_MATCH = "NO_MATCH"  # nothing before the next offset is wanted: ask again at once
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # no such offset; the next one is the nearest there is
    OFFSET_RESET = "OFFSET_RESET"  # an administrator moved the group (5.x); told once


class PullResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages of one queue; *min_offset* and *max_offset* are those of the queue."""

    status: PullStatus
    messages: list[MessageExt]  # only with FOUND, and at least one then
    next_offset: int
    min_offset: int
    max_offset: int


class RawPull(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The same, not decoded.

    The broker compares tags by their hashes: *body* may hold messages of other tags, and messages
    before the offset that was asked for, where a batch is stored as one.
    """

    status: PullStatus
    body: bytes  # stored messages, back to back
    offset_delta: int  # to be added to the offsets in the body (static topics)
    next_offset: int
    min_offset: int
    max_offset: int


class Answer(NamedTuple):
    """What a broker said to a pull."""

    status: PullStatus
    fields: PullMessageResponse
    body: bytes


STATUSES: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}


def status_of(command: Command) -> PullStatus:
    """Return what *command*, whose code is one of `STATUSES`, came to."""
    status = STATUSES[command.code]
    if status is PullStatus.OFFSET_ILLEGAL and RESET_REMARK in (command.remark or ""):
        return PullStatus.OFFSET_RESET
    return status


def read_answer(command: Command, address: str) -> Answer:
    """Return what the broker at *address* says to a pull.

    :raises BrokerError: it refuses
    """
    if command.code not in STATUSES:
        raise broker_error(command, address)
    fields = read_header(command, PullMessageResponse)
    return Answer(status_of(command), fields, command.body)


def raw(answer: Answer) -> RawPull:
    """Return *answer* as it is."""
    fields = answer.fields
    return RawPull(
        status=answer.status,
        body=answer.body,
        offset_delta=fields.offset_delta or 0,
        next_offset=fields.next_begin_offset,
        min_offset=fields.min_offset,
        max_offset=fields.max_offset,
    )


def result_of(
    answer: Answer, decoded: Decoded | None, offset: int, wanted: Subscription
) -> PullResult:
    """Return the messages of *answer* that are wanted.

    :param decoded: of an answer that found messages
    :raises CodecError: the one at *offset* cannot be read
    """
    status, fields, _ = answer
    messages: list[MessageExt] = []
    next_offset = fields.next_begin_offset
    if decoded is not None:
        messages, next_offset, fault = read_pulled(decoded, fields, offset, wanted)
        if fault is not None and next_offset == offset:
            raise fault
        if not messages:
            status = PullStatus.NO_MATCH
    return PullResult(
        status=status,
        messages=messages,
        next_offset=next_offset,
        min_offset=fields.min_offset,
        max_offset=fields.max_offset,
    )
