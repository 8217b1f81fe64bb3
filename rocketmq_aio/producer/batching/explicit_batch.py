"""Explicit batches: which messages may travel together, and how they are laid out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count, repeat

import msgspec

from rocketmq_aio.config.producer import MAX_BATCH_MESSAGES, ProducerConfig
from rocketmq_aio.errors import ConfigError, InvalidMessageError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import WAIT
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.send_request import SendRequest, encode_properties, not_a_message
from rocketmq_aio.producer.topic_publish_info import SendTarget
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.protocol.record import encode_batch_entry

ENTRY_BYTES = 22  # of an entry besides body and properties


class Batch(msgspec.Struct, gc=False):
    """Messages of one topic that travel in one request, with their places in the caller's list."""

    topic: str
    wait: str
    places: list[int]
    ids: list[str]
    parts: list[bytes]
    size: int = 0

    def outgoing(self, target: SendTarget, born_ms: int, *, fixed: bool) -> SendRequest:
        """Return the request; its id stands for all, each entry has its own."""
        properties = f"{WAIT}\x01{self.wait}\x02".encode()
        body = b"".join(self.parts)
        return SendRequest(
            target, self.topic, self.ids[0], body, properties, 0, 0, born_ms, True, fixed
        )

    def results(self, whole: SendResult) -> Iterable[tuple[int, SendResult]]:
        """Yield (place, result) of every message."""
        return zip(self.places, results_of(whole, self.ids), strict=True)


def results_of(whole: SendResult, ids: Iterable[str]) -> Iterator[SendResult]:
    """Yield the result of every message of a batch: the broker stores them one after another."""
    stored = whole.offset_message_id.split(",")
    stored_ids = chain(stored, repeat(stored[0]))
    offsets = count(whole.queue_offset)
    for message_id, stored_id, offset in zip(ids, stored_ids, offsets):  # noqa: B905 - no end
        yield SendResult(
            whole.status,
            message_id,
            stored_id,
            whole.queue,
            offset,
            whole.transaction_id,
            whole.region_id,
            None,
            whole.trace_on,
        )


def batches(
    messages: Iterable[Message],
    ids: MessageIdGenerator,
    born_ms: int,
    config: ProducerConfig,
    *,
    in_order: bool = False,
) -> list[Batch]:
    """Group *messages* by topic and split each group by size; the order within a topic is kept.

    Messages with another ``wait_store_ok`` go to other batches.

    :param in_order: the batches, sent one after another, keep the order of all messages

    :raises InvalidMessageError: one of them may not be batched (nothing was sent)
    """
    made: list[Batch] = []
    growing: dict[tuple[str, str], Batch] = {}
    for place, message in enumerate(messages):
        check_batchable(message)
        message_id = ids.next_id(born_ms)
        properties = encode_properties(message, message_id)
        size = ENTRY_BYTES + len(message.body) + len(properties)
        if size > config.max_message_bytes:
            reason = f"{size} bytes with its properties, max_message_bytes is"
            raise InvalidMessageError(message.topic, f"{reason} {config.max_message_bytes}")
        key = (message.topic, message.properties[WAIT])
        batch = growing.get(key)
        if batch is None or _is_full(batch, size, config):
            if in_order:
                growing.clear()  # no later message may join an earlier batch
            batch = growing[key] = Batch(*key, [], [], [])
            made.append(batch)
        batch.places.append(place)
        batch.ids.append(message_id)
        batch.parts += encode_batch_entry(message.body, properties, message.flag)
        batch.size += size
    return made


def _is_full(batch: Batch, size: int, config: ProducerConfig) -> bool:
    return batch.size + size > config.max_message_bytes or len(batch.places) >= MAX_BATCH_MESSAGES


def several(messages: object) -> list[Message]:
    """Return *messages* as a list.

    :raises ConfigError: they are one, or nothing to iterate over
    """
    if isinstance(messages, Message | str | bytes) or not isinstance(messages, Iterable):
        reason = "expected several messages, for one of them: send_batch([message])"
        raise ConfigError("messages", messages, reason)
    return list(messages)


def check_batchable(message: object) -> None:
    """Refuse what the broker would refuse, or store as something else."""
    if not isinstance(message, Message):
        raise not_a_message(message)
    if message.delayed:
        raise InvalidMessageError(message.topic, "a delayed message cannot be part of a batch")
    if message.topic.startswith(RETRY_PREFIX):
        raise InvalidMessageError(message.topic, "a retry topic takes no batches")


def check_places(
    given: Iterable[Message], made: Iterable[Batch], queue: MessageQueue | None
) -> None:
    """Refuse batches that do not go where their messages have to.

    :raises ConfigError: *queue* is not one of every message's topic
    :raises InvalidMessageError: a message has a sharding key, and no *queue* is given
    """
    topic = queue.topic if isinstance(queue, MessageQueue) else None
    if queue is not None and any(batch.topic != topic for batch in made):
        raise ConfigError("queue", queue, "it does not belong to the topic of every message")
    for message in given if queue is None else ():
        if message.sharding_key is not None:
            reason = "a batch goes to any queue: give queue=, or send one with a key by itself"
            raise InvalidMessageError(message.topic, reason)
