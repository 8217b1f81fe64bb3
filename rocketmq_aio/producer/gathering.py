"""Messages that gather to travel in one request, and what becomes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from copy import copy

from rocketmq_aio.config import ProducerConfig
from rocketmq_aio.errors import RocketMQError, SendError
from rocketmq_aio.message import Message, MessageQueue, SendResult
from rocketmq_aio.producer.batches import Batch
from rocketmq_aio.producer.outgoing import Outgoing, outgoing
from rocketmq_aio.producer.publishing import Target
from rocketmq_aio.properties import WAIT
from rocketmq_aio.protocol.record import encode_batch_entry

SPREAD_SECONDS = 0.1  # between the deadlines of those who travel together: the earliest counts

# Who waits, the message, its id, its properties as they are sent
Entry = tuple["asyncio.Future[SendResult]", Message, str, bytes]


class Gathering:
    """Messages of one topic, or of one queue if that is chosen."""

    __slots__ = (
        "bodies",
        "deadline",
        "entries",
        "key",
        "left",
        "queue",
        "seconds",
        "size",
        "timer",
    )

    def __init__(
        self, key: object, queue: MessageQueue | None, seconds: float, deadline: float
    ) -> None:
        self.key = key
        self.queue = queue
        self.seconds = seconds  # that each was given in all
        self.deadline = deadline
        self.entries: list[Entry] = []
        self.size = 0  # bytes of the request's body
        self.bodies = 0  # bytes as they count among the unanswered
        self.left = False  # it may be on the wire
        self.timer: asyncio.Handle | None = None

    def suits(self, message: Message, seconds: float, deadline: float) -> bool:
        """Whether *message* may join as far as it is not a matter of size."""
        return (
            abs(deadline - self.deadline) < SPREAD_SECONDS
            and seconds == self.seconds
            and message.properties[WAIT] == self.entries[0][1].properties[WAIT]
        )

    def add(self, entry: Entry, size: int, deadline: float) -> None:
        """Take one more, of *size* bytes."""
        self.entries.append(entry)
        self.size += size
        self.bodies += len(entry[1].body)
        self.deadline = min(self.deadline, deadline)

    @property
    def waiting(self) -> list[Entry]:
        """Those whose callers have not gone away."""
        return [entry for entry in self.entries if not entry[0].done()]


def request_of(
    entries: Sequence[Entry], target: Target, born_ms: int, config: ProducerConfig, *, fixed: bool
) -> Outgoing:
    """Return the request that carries *entries*; a message that is alone travels as such."""
    if len(entries) > 1:
        return _batch(entries).outgoing(target, born_ms, fixed=fixed)
    ((_, message, message_id, _),) = entries
    sent = outgoing(message, target, message_id, born_ms, config)
    sent.fixed = fixed
    return sent


def results_of(entries: Sequence[Entry], whole: SendResult) -> Iterator[SendResult]:
    """Yield the result of each of *entries*."""
    if len(entries) > 1:
        return (result for _, result in _batch(entries).results(whole))
    return iter([whole])


def settle(entries: Sequence[Entry], whole: SendResult) -> None:
    """Give each caller its result."""
    for entry, result in zip(entries, results_of(entries, whole), strict=True):
        if not entry[0].done():
            entry[0].set_result(result)


def refuse(entries: Sequence[Entry], error: RocketMQError) -> None:
    """Give each caller an error of its own: raising one changes it."""
    for reply, message, message_id, _ in entries:
        if not reply.done():
            reply.set_exception(_own(error, message.topic, message_id))


def _batch(entries: Sequence[Entry]) -> Batch:
    _, first, _, _ = entries[0]
    places, ids = list(range(len(entries))), [message_id for _, _, message_id, _ in entries]
    batch = Batch(first.topic, first.properties[WAIT], places, ids, [])
    for _, message, _, properties in entries:
        batch.parts += encode_batch_entry(message.body, properties, message.flag)
    return batch


def _own(error: RocketMQError, topic: str, message_id: str) -> RocketMQError:
    if isinstance(error, SendError):
        return type(error)(topic, message_id, error.attempts)
    return copy(error)
