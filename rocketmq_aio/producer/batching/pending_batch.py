"""Pending batch: messages that will share one request, and how their futures get results."""

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
from rocketmq_aio.producer.send_request import SendRequest, make_request
from rocketmq_aio.producer.topic_publish_info import SendTarget
from rocketmq_aio.protocol.record import encode_batch_entry

SPREAD_SECONDS = 0.1  # most between the deadlines within a batch, whose own is the earliest

# The future, the message, its id, and its properties in wire form
Entry = tuple["asyncio.Future[SendResult]", Message, str, bytes]


class PendingBatch:
    """Messages of one *kind* (topic, wait flag, timeout), to *queue* if one was chosen."""

    __slots__ = (
        "body_bytes",
        "deadline",
        "entries",
        "is_lined_up",
        "key",
        "kind",
        "may_be_sent",
        "queue",
        "size",
        "timer",
    )

    def __init__(
        self, key: object, kind: object, queue: MessageQueue | None, deadline: float
    ) -> None:
        self.key = key
        self.kind = kind
        self.queue = queue
        self.deadline = deadline
        self.entries: list[Entry] = []
        self.size = 0  # bytes of the request's body
        self.body_bytes = 0  # bytes as the in-flight limiter counts them
        self.is_lined_up = False
        self.may_be_sent = False
        self.timer: asyncio.Handle | None = None

    @property
    def unresolved(self) -> list[Entry]:
        """The entries without a result whose callers were not cancelled."""
        return [entry for entry in self.entries if not entry[0].done()]


def request_of(
    entries: Sequence[Entry],
    target: SendTarget,
    born_ms: int,
    config: ProducerConfig,
    *,
    fixed: bool,
) -> SendRequest:
    """Return the request that carries *entries*; a single message is not sent as a batch."""
    if len(entries) > 1:
        _, first, _, _ = entries[0]
        ids = [message_id for _, _, message_id, _ in entries]
        batch = Batch(first.topic, first.properties[WAIT], list(range(len(ids))), ids, [])
        for _, message, _, properties in entries:
            batch.parts += encode_batch_entry(message.body, properties, message.flag)
        return batch.request(target, born_ms, fixed=fixed)
    ((_, message, message_id, _),) = entries
    request = make_request(message, target, message_id, born_ms, config)
    request.fixed = fixed
    return request


def set_results(entries: Sequence[Entry], whole: SendResult) -> None:
    """Give the future of each entry its result."""
    ids = [entry[2] for entry in entries]
    results = results_of(whole, ids) if len(entries) > 1 else (whole,)
    for entry, result in zip(entries, results, strict=True):
        future = entry[0]
        if not future.done():
            future.set_result(result)


def fail(entries: Sequence[Entry], error: Exception) -> None:
    """Give the future of each entry an error of its own, because raising changes an error."""
    for future, message, message_id, _ in entries:
        if future.done():
            continue
        if isinstance(error, SendError):
            future.set_exception(type(error)(message.topic, message_id, error.attempts))
        else:
            future.set_exception(copy(error))
