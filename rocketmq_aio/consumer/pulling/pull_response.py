"""What the answer to a pull brings: the messages that are wanted, and where to go on."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.decoding import Decoded
from rocketmq_aio.protocol.requests.pull import PullMessageResponse
from rocketmq_aio.protocol.subscription import Subscription

# A broker answers an empty long poll at the first 5 s tick after the hold time (seen live).
HOLD_SLACK_SECONDS: Final = 15.0
RESET_REMARK: Final = "OFFSET_RESET"  # an administrator moved the group (5.x)


def read_pulled(
    decoded: Decoded, answer: PullMessageResponse, offset: int, subscription: Subscription
) -> tuple[list[MessageExt], int, CodecError | None]:
    """Return the wanted messages from *offset* on, where to go on, and what cannot be read there.

    With an error, going on at the next offset meets it again: nothing is ever skipped.

    :raises CodecError: the broker sends the reader backwards
    """
    messages, fault = decoded
    if delta := answer.offset_delta:  # static topics: the broker's own offsets differ
        for message in messages:
            message.queue_offset += delta
    if messages and messages[0].queue_offset < offset:
        # A batch that is stored as one record comes whole, also for an offset inside it.
        messages = [each for each in messages if each.queue_offset >= offset]
    next_offset = answer.next_begin_offset
    if fault is not None:
        next_offset = messages[-1].queue_offset + 1 if messages else offset
    if next_offset < offset:
        raise CodecError("nextBeginOffset", 0, f"{next_offset} after a pull at {offset}")
    return _wanted(messages, subscription), next_offset, fault


def _wanted(messages: list[MessageExt], subscription: Subscription) -> list[MessageExt]:
    """Return the messages whose tag is asked for: the broker compares hashes only."""
    tags = subscription.tags
    if not tags:
        return messages
    return [message for message in messages if message.tags in tags]
