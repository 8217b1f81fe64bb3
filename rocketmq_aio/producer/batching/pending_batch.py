"""Messages that gather to travel in one request, and what becomes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import SendError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import WAIT
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.batching.explicit_batch import Batch, results_of
from rocketmq_aio.producer.send_request import SendRequest, outgoing
from rocketmq_aio.producer.topic_publish_info import SendTarget
from rocketmq_aio.protocol.record import encode_batch_entry

SPREAD_SECONDS = 0.1  # between the deadlines of those who travel together: the earliest counts

# Who waits, the message, its id, its properties as they are sent
Entry = tuple["asyncio.Future[SendResult]", Message, str, bytes]


class PendingBatch:
    """Messages of one topic, or of one queue if that is chosen."""

    __slots__ = ("bodies", "deadline", "entries", "key", "left", "queue", "size", "timer")

    def __init__(self, key: object, queue: MessageQueue | None, deadline: float) -> None:
        self.key = key
        self.queue = queue
        self.deadline = deadline
        self.entries: list[Entry] = []
        self.size = 0  # bytes of the request's body
        self.bodies = 0  # bytes as they count among the unanswered
        self.left = False  # it may be on the wire
        self.timer: asyncio.Handle | None = None

    @property
    def waiting(self) -> list[Entry]:
        """Those whose callers have not gone away."""
        return [entry for entry in self.entries if not entry[0].done()]


def request_of(
    entries: Sequence[Entry],
    target: SendTarget,
    born_ms: int,
    config: ProducerConfig,
    *,
    fixed: bool,
) -> SendRequest:
    """Return the request that carries *entries*; a message that is alone travels as such."""
    if len(entries) > 1:
        batch = _batch(entries)
        for _, message, _, properties in entries:
            batch.parts += encode_batch_entry(message.body, properties, message.flag)
        return batch.outgoing(target, born_ms, fixed=fixed)
    ((_, message, message_id, _),) = entries
    sent = outgoing(message, target, message_id, born_ms, config)
    sent.fixed = fixed
    return sent


def settle(entries: Sequence[Entry], whole: SendResult) -> None:
    """Give each caller its result."""
    ids = [entry[2] for entry in entries]
    results = results_of(whole, ids) if len(entries) > 1 else (whole,)
    for entry, result in zip(entries, results, strict=True):
        reply = entry[0]
        if not reply.done():
            reply.set_result(result)


def refuse(entries: Sequence[Entry], error: Exception) -> None:
    """Give each caller an error of its own: raising one changes it."""
    for reply, message, message_id, _ in entries:
        if not reply.done():
            reply.set_exception(_own(error, message.topic, message_id))


def _batch(entries: Sequence[Entry]) -> Batch:
    _, first, _, _ = entries[0]
    places, ids = list(range(len(entries))), [message_id for _, _, message_id, _ in entries]
    return Batch(first.topic, first.properties[WAIT], places, ids, [])


def _own(error: Exception, topic: str, message_id: str) -> Exception:
    if isinstance(error, SendError):
        return type(error)(topic, message_id, error.attempts)
    return copy(error)
