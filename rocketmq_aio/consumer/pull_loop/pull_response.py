"""Pull responses: selection of the messages that match, and the offset of the next pull."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.decoding import Decoded
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.pull import PullMessageResponse
from rocketmq_aio.protocol.subscription import Subscription

# A broker responds to an empty long poll at the first 5 s tick after the hold time (seen live).
HOLD_SLACK_SECONDS: Final = 15.0


def is_reset(remark: str | None) -> bool:
    """Whether the remark of a response means that an administrator reset the offset (5.x)."""
    return "OFFSET_RESET" in (remark or "")


def read_response(command: Command) -> PullMessageResponse:
    """Return the header of the response to a pull.

    :raises CodecError: it cannot be read, or has no offset to continue at
    """
    header = read_header(command, PullMessageResponse)
    if not 0 <= header.next_begin_offset < 2**63:
        raise CodecError("nextBeginOffset", 0, f"{header.next_begin_offset} is not an offset")
    return header


def select_messages(
    decoded: Decoded, delta: int, next_offset: int, offset: int, subscription: Subscription
) -> tuple[list[MessageExt], int, CodecError | None]:
    """Return the matching messages from *offset* on, the next offset, and the decoding error.

    After an error the next offset is that of the undecodable message: nothing is skipped.

    :param delta: added to the offsets (static topics: the broker's own offsets differ)
    :raises CodecError: *next_offset* is before *offset*
    """
    messages, fault = decoded
    if delta:
        for message in messages:
            message.queue_offset += delta
    if messages and messages[0].queue_offset < offset:
        # A batch stored as one record is returned whole, also for an offset inside it.
        messages = [each for each in messages if each.queue_offset >= offset]
    if fault is not None:
        next_offset = messages[-1].queue_offset + 1 if messages else offset
    if next_offset < offset:
        raise CodecError("nextBeginOffset", 0, f"{next_offset} after a pull at {offset}")
    if tags := subscription.tags:  # the broker compares hashes only
        messages = [message for message in messages if message.tags in tags]
    return messages, next_offset, fault
