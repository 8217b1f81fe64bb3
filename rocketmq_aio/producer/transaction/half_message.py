"""Half messages: properties, location and state."""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

from rocketmq_aio.errors import CodecError, InvalidMessageError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import LIGHT, PRIORITY
from rocketmq_aio.model.values import SendResult, TransactionState
from rocketmq_aio.producer.send_request import MAX_OWN_PROPERTIES, SendRequest, not_a_message
from rocketmq_aio.protocol.codes import TRANSACTION_PREPARED

# The broker adds more to a half message than to others: its topic, its queue, counters.
HALF_SPARE: Final = 400
DELAYED: Final = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
OFFSET_DIGITS: Final = 16  # of an offset message id: its end is the position in the commit log


class HalfMessageLocation(msgspec.Struct, frozen=True, gc=False):
    """Where a half message is stored; before each check the broker stores it again elsewhere."""

    address: str
    broker_name: str | None
    table_offset: int
    log_offset: int


class HalfMessage(msgspec.Struct, gc=False, eq=False):
    """A half message and the state of its transaction.

    :ivar location: from the send or a later check; None before both
    :ivar state: None while the local transaction runs
    :ivar confirmed: the address that last confirmed the decision, and the number of the connection
    :ivar confirmed_by: the name of that broker, if it is known
    :ivar unanswered_by: the name of a broker that may have executed a commit without confirming it
    :ivar unanswered_over: the number of the connection over which it may still respond
    :ivar committed_at: when the last commit that may have been executed, or the rollback, ended, by
        `monotonic`
    :ivar is_ending: END_TRANSACTION is in flight
    :ivar checked_at: the location in the last check
    :ivar message: for hooks; None when the transaction is over here
    """

    message_id: str
    topic: str
    transaction_id: str = ""
    location: HalfMessageLocation | None = None
    state: TransactionState | None = None
    confirmed: tuple[str, int] | None = None
    confirmed_by: str | None = None
    unanswered_by: str | None = None
    unanswered_over: int = 0
    committed_at: float = -inf
    is_ending: bool = False
    checked_at: HalfMessageLocation | None = None
    message: Message | MessageExt | None = None

    def on_stored(self, location: HalfMessageLocation, transaction_id: str) -> None:
        """Record the response of the send; a check that arrived before has a newer location."""
        self.transaction_id = transaction_id
        if self.checked_at is not None and self.checked_at.address == location.address:
            location = self.checked_at
        self.location = location

    def on_check(self, location: HalfMessageLocation) -> None:
        """Record a check: the message has moved to *location*.

        A broker other than the one that accepted it has the copy of another attempt.
        """
        self.checked_at = location
        if self.location is not None and self.location.address == location.address:
            self.location = location

    def decision(self) -> TransactionState:
        """Return the decision; UNKNOWN while there is none or its request is in flight."""
        return TransactionState.UNKNOWN if self.state is None or self.is_ending else self.state


class PendingCheck(msgspec.Struct, gc=False, eq=False):
    """The latest check of a message by a broker."""

    message: MessageExt
    location: HalfMessageLocation
    transaction_id: str
    received_at: float  # by `monotonic`


def check_transactional(message: object) -> Message:
    """Return *message*.

    :raises InvalidMessageError: it cannot be part of a transaction
    """
    if not isinstance(message, Message):
        raise not_a_message(message)
    if not DELAYED.isdisjoint(message.properties):
        raise InvalidMessageError(message.topic, "a delayed message cannot be in a transaction")
    if PRIORITY in message.properties:
        raise InvalidMessageError(message.topic, "brokers drop the priority of a transaction")
    if not LIGHT.isdisjoint(message.properties):
        reason = "brokers put it into its light message queues before the transaction ends"
        raise InvalidMessageError(message.topic, reason)
    if message.topic.startswith(RETRY_PREFIX):
        raise InvalidMessageError(message.topic, "a retry topic takes no transactions")
    return message


def half_properties(group: str) -> bytes:
    """Return the properties, in wire form, that make a message a half message of *group*."""
    return f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02".encode()


def make_half(request: SendRequest, properties: bytes) -> None:
    """Make *request* that of a half message.

    :param properties: see `half_properties`
    :raises InvalidMessageError: its properties are too long for a half message
    """
    request.properties += properties
    request.sys_flag |= TRANSACTION_PREPARED
    size, max_size = len(request.properties), MAX_OWN_PROPERTIES - HALF_SPARE
    if size > max_size:
        reason = f"its properties take {size} bytes, of a half message {max_size} fit"
        raise InvalidMessageError(request.topic, reason)


def location_of(request: SendRequest, result: SendResult) -> HalfMessageLocation:
    """Return where the broker stored a half message; CodecError if its id does not say it."""
    message_id, target = result.offset_message_id, request.target
    try:
        log_offset = int(message_id[-OFFSET_DIGITS:], 16)
    except ValueError:
        raise CodecError("offset message id", 0, f"{message_id!r} is not hexadecimal") from None
    return HalfMessageLocation(target.master, target.broker_name, result.queue_offset, log_offset)
