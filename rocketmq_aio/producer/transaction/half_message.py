"""Half messages: what may be one, what makes one of a message, where it lies."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import MAX_PROPERTIES
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer.send_request import PROPERTIES_SPARE, SendRequest, not_a_message
from rocketmq_aio.producer.transaction.transaction_log import HalfMessageLocation
from rocketmq_aio.protocol.codes import TRANSACTION_PREPARED

# The broker adds more to a half message than to others: its topic, its queue, counters.
HALF_SPARE: Final = 400
DELAYED: Final = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
OFFSET_DIGITS: Final = 16  # of an offset id, its last ones: the position in the commit log


def check_transactional(message: object) -> Message:
    """Return *message*, which can be part of a transaction.

    :raises InvalidMessageError: it cannot
    """
    if not isinstance(message, Message):
        raise not_a_message(message)
    if not DELAYED.isdisjoint(message.properties):
        raise InvalidMessageError(message.topic, "a delayed message cannot be in a transaction")
    if message.topic.startswith(RETRY_PREFIX):
        raise InvalidMessageError(message.topic, "a retry topic takes no transactions")
    return message


def make_half(sent: SendRequest, group: str) -> None:
    """Make *sent* a message that nobody sees before *group* says so.

    :raises InvalidMessageError: its properties do not fit any more
    """
    sent.properties += f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02".encode()
    sent.sys_flag |= TRANSACTION_PREPARED
    most = MAX_PROPERTIES - PROPERTIES_SPARE - HALF_SPARE
    if len(sent.properties) > most:
        reason = f"its properties take {len(sent.properties)} bytes, of a half message {most} fit"
        raise InvalidMessageError(sent.topic, reason)


def place_of(sent: SendRequest, result: SendResult) -> HalfMessageLocation:
    """Return where the broker has put a half message."""
    log_offset = int(result.offset_message_id[-OFFSET_DIGITS:], 16)
    target = sent.target
    return HalfMessageLocation(target.master, target.broker_name, result.queue_offset, log_offset)
