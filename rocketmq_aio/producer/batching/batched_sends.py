"""Batched sends: sends of a producer with ``auto_batch``, and `Producer.send_nowait`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from copy import copy
from time import monotonic

from rocketmq_aio.config.producer import AutoBatch
from rocketmq_aio.errors import BackpressureError, RouteNotFoundError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import SHARDING_KEY
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.batching.accumulator import BatchAccumulator
from rocketmq_aio.producer.queue_selection import ANY_QUEUE, NO_CHOICE, QueueChoice, Routing
from rocketmq_aio.producer.sender import Sender


class BatchedSends:
    """Puts messages into the batches of an accumulator, in flight and in the order of their key."""

    def __init__(self, settings: AutoBatch, sender: Sender) -> None:
        self.accumulator = BatchAccumulator(settings, sender)
        self._sender = sender
        self._in_flight = sender.in_flight
        self._infos = sender.table.infos

    def send(
        self, message: Message, choice: QueueChoice, seconds: float, deadline: float
    ) -> Awaitable[SendResult]:
        """Send *message* in a batch, or by itself where it may not be part of one.

        This is no coroutine: a message that finds its route and room is added at once.
        """
        if choice is NO_CHOICE and message.sharding_key is None and self.accumulator.takes(message):
            if self._in_flight.try_acquire(len(message.body)):
                return self.accumulator.add(message, None, seconds, deadline)
            return self._wait_and_add(message, ANY_QUEUE, seconds, deadline, alone=False)
        return self._send_routed(message, choice, seconds, deadline)

    def _send_routed(
        self, message: Message, choice: QueueChoice, seconds: float, deadline: float
    ) -> Awaitable[SendResult]:
        """Send *message* to its queue or with its key; alone, if it may not be part of a batch."""
        sender, accumulator = self._sender, self.accumulator
        takes = accumulator.takes(message)
        routing, queue, may_add = ANY_QUEUE, None, True
        if choice.queue is not None or choice.selector is not None:
            routing, may_add = sender.selection.routing(message, choice), False
        elif choice.sharding_key is not None or message.sharding_key is not None:
            routing = sender.selection.routing_by_key(message, choice.sharding_key)
        if message.timed or routing is ANY_QUEUE:
            return sender.send(message, routing, deadline)
        if routing.key is not None:
            if routing.extra:
                message = _with_key(message, routing)
            queue = self._queue_now(message.topic, routing)
            may_add = queue is not None
        if may_add and self._in_flight.try_acquire(len(message.body)):
            return accumulator.add(message, queue, seconds, deadline, alone=not takes)
        return self._wait_and_add(message, routing, seconds, deadline, alone=not takes)

    def _queue_now(self, topic: str, routing: Routing) -> MessageQueue | None:
        """Return the queue of a key; None while its turn or the route has to be waited for."""
        publish = self._infos.get(topic)
        if publish is None or (topic, routing.key) in self._sender.order:
            return None
        try:
            return routing.select_target(publish).queue
        except RouteNotFoundError:  # another request for the route may find the queue writable
            return None

    def send_nowait(
        self, message: Message, queue: MessageQueue | None, seconds: float
    ) -> asyncio.Future[SendResult]:
        """Add *message* without waiting.

        :raises BackpressureError: the in-flight limit is reached
        """
        limiter = self._in_flight
        if not limiter.try_acquire(len(message.body)):
            raise BackpressureError(message.topic, limiter.count, limiter.bytes)
        alone = not self.accumulator.takes(message)
        return self.accumulator.add(message, queue, seconds, monotonic() + seconds, alone=alone)

    async def _wait_and_add(
        self, message: Message, routing: Routing, seconds: float, deadline: float, *, alone: bool
    ) -> SendResult:
        """Add *message* behind those of its key that wait for a route or for room.

        Those whose callers choose the queue have one key per topic.
        """
        message = copy(message)  # the caller may use it again while this waits
        sender, topic, size, queue = self._sender, message.topic, len(message.body), None
        order_key = topic, routing.key
        in_order = routing is not ANY_QUEUE
        if in_order and not sender.order.try_acquire(order_key):
            await sender.wait_for_order(order_key, deadline)
        try:
            if in_order:
                _, target = await sender.find_target(topic, routing.select_target, deadline)
                queue = target.queue
            if not self._in_flight.try_acquire(size):
                await sender.wait_for_room(size, deadline, topic)
            sent = self.accumulator.add(message, queue, seconds, deadline, alone=alone)
        finally:
            if in_order:
                sender.order.release(order_key)
        return await sent


def _with_key(message: Message, routing: Routing) -> Message:
    changed = copy(message)
    changed.sharding_key = routing.key
    changed.properties = message.properties | {SHARDING_KEY: str(routing.key)}
    changed.encoded_properties += routing.extra
    return changed
