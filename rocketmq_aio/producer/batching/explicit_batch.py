"""Explicit batches: splits the messages of `send_batch` into requests, and sends these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import chain, count, repeat
from time import time_ns
from typing import Any, Final

import msgspec

from rocketmq_aio.config.producer import MAX_BATCH_MESSAGES, ProducerConfig
from rocketmq_aio.core import core
from rocketmq_aio.errors import BatchError, ConfigError, InvalidMessageError, RocketMQError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import LIGHT, PRIORITY, WAIT
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.queue_selection import routing_to
from rocketmq_aio.producer.retry import never_sent
from rocketmq_aio.producer.send_request import (
    MAX_OWN_PROPERTIES,
    SendRequest,
    encode_with_id,
    not_a_message,
    too_large,
)
from rocketmq_aio.producer.sender import Sender
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.protocol.record import encode_batch_entry
from rocketmq_aio.remoting.gather import gather_limited

ENTRY_BYTES: Final = 22  # of an entry, without body and properties
MAX_OFFSET: Final = 2**62  # the compiled core counts on from less
MAX_CONCURRENT: Final = 4  # requests of one `send_batch` in flight at a time


class Batch(msgspec.Struct, gc=False):
    """Messages of one topic in one request, with their positions in the caller's list."""

    topic: str
    wait: str
    positions: list[int]
    ids: list[str]
    parts: list[bytes]
    size: int = 0

    def request(self, target: SendTarget, born_ms: int, *, fixed: bool) -> SendRequest:
        properties = f"{WAIT}\x01{self.wait}\x02".encode()
        body = b"".join(self.parts)
        return SendRequest(
            target, self.topic, self.ids[0], body, properties, 0, 0, born_ms, True, fixed
        )

    def results(self, whole: SendResult) -> Iterable[tuple[int, SendResult]]:
        """Yield (position, result) of every message."""
        return zip(self.positions, results_of(whole, self.ids), strict=True)


async def send_batch(
    sender: Sender, messages: Sequence[Message], queue: MessageQueue | None, deadline: float
) -> list[SendResult]:
    """Send *messages*; see `Producer.send_batch`."""
    now_ms = time_ns() // 1_000_000
    made = batches(messages, sender.ids, now_ms, sender.config, in_order=queue is not None)
    check_targets(messages, made, queue)

    routing = routing_to(queue)

    def send_one(index: int) -> Coroutine[Any, Any, SendResult]:
        batch = made[index]

        def send(publish: TopicPublishInfo, target: SendTarget) -> Coroutine[Any, Any, SendResult]:
            request = batch.request(target, now_ms, fixed=routing.fixed)
            return sender.attempts.run(request, publish, deadline)

        return sender.with_target(batch.topic, batch.size, routing.select_target, deadline, send)

    if len(made) == 1:
        return results_of(await send_one(0), made[0].ids)
    if queue is None:
        gathered = await gather_limited(send_one, range(len(made)), MAX_CONCURRENT)
        outcomes = gathered.results | gathered.failures
    else:
        outcomes = await _send_in_order(send_one, made)
    by_position: dict[int, SendResult | RocketMQError] = {}
    for index, outcome in outcomes.items():
        if isinstance(outcome, RocketMQError):
            by_position |= dict.fromkeys(made[index].positions, outcome)
        else:
            by_position |= made[index].results(outcome)
    in_order = [by_position[position] for position in range(len(messages))]
    results = [each for each in in_order if isinstance(each, SendResult)]
    if len(results) < len(in_order):
        raise BatchError(in_order)
    return results


async def _send_in_order(
    send_one: Callable[[int], Awaitable[SendResult]], made: Sequence[Batch]
) -> dict[int, SendResult | RocketMQError]:
    """Return the outcomes of batches that are sent one after another, until one fails."""
    outcomes: dict[int, SendResult | RocketMQError] = {}
    failed = False
    for index, batch in enumerate(made):
        if failed:
            outcomes[index] = never_sent(batch.topic, "an earlier request of the batch failed")
            continue
        try:
            outcomes[index] = await send_one(index)
        except RocketMQError as error:
            outcomes[index], failed = error, True
    return outcomes


def results_of(whole: SendResult, ids: list[str]) -> list[SendResult]:
    """Return the result of each message of a batch, which brokers store with successive offsets.

    While a logical queue moves there is no offset: all have -1.
    """
    stored = whole.offset_message_id.split(",", len(ids))
    if core is not None and 0 <= whole.queue_offset < MAX_OFFSET:
        return core.batch_results(
            SendResult,
            ids,
            stored,
            whole.queue_offset,
            whole.status,
            whole.queue,
            whole.transaction_id,
            whole.region_id,
            whole.trace_on,
        )
    stored_ids = chain(stored, repeat(stored[0]))
    offsets = count(whole.queue_offset) if whole.queue_offset >= 0 else repeat(-1)
    return [
        SendResult(
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
        for message_id, stored_id, offset in zip(ids, stored_ids, offsets)  # noqa: B905 - no end
    ]


def batches(
    messages: Iterable[Message],
    ids: MessageIdGenerator,
    born_ms: int,
    config: ProducerConfig,
    *,
    in_order: bool = False,
) -> list[Batch]:
    """Group *messages* by topic and ``wait_store_ok``, and split each group by size.

    The order within a topic is kept.

    :param in_order: the batches, sent one after another, keep the order of all messages
    :raises InvalidMessageError: one of them may not be part of a batch
    """
    if (batch := packed(messages, ids, born_ms, config)) is not None:
        return [batch]
    made: list[Batch] = []
    growing: dict[tuple[str, str], Batch] = {}
    for position, message in enumerate(messages):
        check_batchable(message)
        message_id = ids.next_id(born_ms)
        properties = encode_with_id(message, message_id)
        size = ENTRY_BYTES + len(message.body) + len(properties)
        if size > config.max_message_bytes:
            what = f"number {position} of the batch, with properties (also those of hooks),"
            raise too_large(message.topic, what, size, config.max_message_bytes)
        key = (message.topic, message.properties[WAIT])
        batch = growing.get(key)
        if (
            batch is None
            or batch.size + size > config.max_message_bytes
            or len(batch.positions) >= MAX_BATCH_MESSAGES
        ):
            if in_order:
                growing.clear()  # no later message may join an earlier batch
            batch = growing[key] = Batch(*key, [], [], [])
            made.append(batch)
        batch.positions.append(position)
        batch.ids.append(message_id)
        batch.parts += encode_batch_entry(message.body, properties, message.flag)
        batch.size += size
    return made


def packed(
    messages: Iterable[Message], ids: MessageIdGenerator, born_ms: int, config: ProducerConfig
) -> Batch | None:
    """Return *messages* as a single batch of the compiled core; None: only Python makes batches."""
    if core is None or type(messages) is not list or len(messages) > MAX_BATCH_MESSAGES:
        return None
    stamp, number = ids.counter(born_ms, len(messages))
    made = core.pack_batch(
        Message, messages, stamp, number, config.max_message_bytes, MAX_OWN_PROPERTIES
    )
    if made is None or made[0].startswith(RETRY_PREFIX):
        return None
    topic, wait, message_ids, body = made
    ids.skip(len(message_ids))
    positions = list(range(len(message_ids)))
    return Batch(topic, wait, positions, message_ids, [body], len(body))


def message_list(messages: object) -> list[Message]:
    """Return *messages* as a list.

    :raises ConfigError: they are a single message, or not iterable
    """
    if isinstance(messages, Message | str | bytes) or not isinstance(messages, Iterable):
        reason = "expected several messages, for one of them: send_batch([message])"
        raise ConfigError("messages", type(messages).__name__, reason)
    return list(messages)


def check_batchable(message: object) -> None:
    """Validate *message* as part of a batch.

    :raises InvalidMessageError: brokers reject it in a batch, or ignore its delay, priority or
        light message queues
    """
    if not isinstance(message, Message):
        raise not_a_message(message)
    if message.delayed:
        raise InvalidMessageError(message.topic, "a delayed message cannot be part of a batch")
    if PRIORITY in message.properties:
        reason = "brokers ignore the priority of a message in a batch: send it by itself"
        raise InvalidMessageError(message.topic, reason)
    if not LIGHT.isdisjoint(message.properties):
        reason = "brokers put no batch into a light message queue: send the message by itself"
        raise InvalidMessageError(message.topic, reason)
    if message.topic.startswith(RETRY_PREFIX):
        raise InvalidMessageError(message.topic, "a retry topic takes no batches")


def check_targets(
    given: Iterable[Message], made: Iterable[Batch], queue: MessageQueue | None
) -> None:
    """Validate the queue of the batches.

    :raises ConfigError: *queue* does not belong to the topic of every message
    :raises InvalidMessageError: a message has a sharding key, and no *queue* is given
    """
    topic = queue.topic if isinstance(queue, MessageQueue) else None
    if queue is not None and any(batch.topic != topic for batch in made):
        raise ConfigError("queue", queue, "it does not belong to the topic of every message")
    for message in given if queue is None else ():
        if message.sharding_key is not None:
            reason = "a batch goes to any queue: give queue=, or send one with a key by itself"
            raise InvalidMessageError(message.topic, reason)
