"""Events of an embedded cluster, for callbacks that show or record what happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocketmq_aio.embedded.broker.store import StoredMessage


@dataclass(frozen=True, slots=True)
class MessageStored:
    """A broker stored a message."""

    broker: str
    message: StoredMessage


@dataclass(frozen=True, slots=True)
class MessagesDelivered:
    """A broker returned messages of one queue to a member of a group."""

    broker: str
    group: str
    messages: Sequence[StoredMessage]


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """A member of a group committed another offset than before; *offset* is the next to consume."""

    broker: str
    group: str
    topic: str
    queue_id: int
    offset: int


Event = MessageStored | MessagesDelivered | OffsetCommitted
EventCallback = Callable[[Event], object]
