"""Sends that go through the automatic batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from copy import copy
from time import monotonic

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import BackpressureError
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import SHARDING_KEY
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.careful import (
    ANY_QUEUE,
    CarefulSender,
    QueueChoice,
    Routing,
    chosen_target,
)
from rocketmq_aio.producer.topic_publish_info import QueueSelector


class TogetherSender(CarefulSender):
    """Base of producers: messages that travel with others."""

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None,
        client: MQClientInstance | ClientConfig | None,
        config: ProducerConfig | None,
        hooks: Iterable[object],
    ) -> None:
        super().__init__(group, namesrv=namesrv, client=client, config=config, hooks=hooks)
        # Chosen once, so that messages pay for hooks only where there are some.
        self._send_off = self._send_told if self._hooked else self._send_chosen
        self._add = self._add_hooked if self._hooked else self._add_now

    async def flush(self) -> None:
        """Send what waits for company, and return when all of it has its outcome.

        Errors go to those who sent.
        """
        self._check_running()
        await self._together.flush()

    def _add_now(self, message: Message, queue: MessageQueue | None) -> asyncio.Future[SendResult]:
        if not self._room.try_take(len(message.body)):
            raise BackpressureError(message.topic, self._room.count, self._room.bytes)
        seconds = self._config.send_timeout_seconds
        alone = not self._together.takes(message)
        return self._together.add(message, queue, seconds, monotonic() + seconds, alone=alone)

    async def _send_together(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        seconds: float,
        deadline: float,
    ) -> SendResult:
        topic, size, alone = message.topic, len(message.body), False
        if queue is not None or selector is not None:
            publish = self._topics.get(topic) or await self._publish(topic, deadline)
            queue = chosen_target(publish, message, queue, selector).queue
            alone = not self._together.takes(message)
        if not self._room.try_take(size):
            await self._wait_for_room(size, deadline, topic)
        return await self._together.add(message, queue, seconds, deadline, alone=alone)

    async def _send_in_turn(
        self, message: Message, way: Routing, seconds: float, deadline: float
    ) -> SendResult:
        """Send *message*, which has a key, with others to its queue: in the order of the calls."""
        topic, size = message.topic, len(message.body)
        lane = topic, way.key
        if not self._turns.try_take(lane):
            await self._wait_for_turn(lane, deadline)
        try:
            publish = self._topics.get(topic) or await self._publish(topic, deadline)
            queue = way.aim(publish).queue
            if not self._room.try_take(size):
                await self._wait_for_room(size, deadline, topic)
            alone = not self._together.takes(message)
            sent = self._together.add(message, queue, seconds, deadline, alone=alone)
        finally:
            self._turns.give(lane)
        return await sent

    # --- with hooks around it -------------------------------------------------------------------

    async def _send_told(
        self, message: Message, chosen: QueueChoice, seconds: float, deadline: float
    ) -> SendResult:
        # What `SendHooks.around` does, with a coroutine and a function less.
        context, hooks = self._context("send", message, chosen.queue), self._hooks
        hooks.before(context)
        started = monotonic()
        try:
            result = await self._send_chosen(context.messages[0], chosen, seconds, deadline)
        except BaseException as error:
            hooks.after(context, started, error)
            raise
        context.outcomes = (result,)
        hooks.after(context, started)
        return result

    def _send_chosen(
        self, message: Message, chosen: QueueChoice, seconds: float, deadline: float
    ) -> Awaitable[SendResult]:
        # Not awaited here: a coroutine less, or two.
        if not self._batching or message.timed:
            return self._send_by(self._way(message, chosen), message, deadline)
        queue, selector = chosen.queue, chosen.selector
        if chosen.sharding_key is not None or (message.sharding_key and not (queue or selector)):
            way = self._way(message, chosen)
            return self._send_in_turn(keyed(message, way), way, seconds, deadline)
        if queue or selector:
            return self._send_together(message, queue, selector, seconds, deadline)
        if not self._together.takes(message):
            return self._send_by(ANY_QUEUE, message, deadline)
        if self._room.try_take(len(message.body)):
            return self._together.add(message, None, seconds, deadline)
        return self._send_together(message, None, None, seconds, deadline)

    def _add_hooked(
        self, message: Message, queue: MessageQueue | None
    ) -> asyncio.Future[SendResult]:
        context = self._context("send_nowait", message, queue)
        return self._hooks.around_future(context, lambda: self._add_now(context.message, queue))


def keyed(message: Message, way: Routing) -> Message:
    """Return *message* with the key that an argument gave, if that is how it goes."""
    if not way.extra:
        return message
    changed = copy(message)
    changed.sharding_key = way.key
    changed.properties = message.properties | {SHARDING_KEY: str(way.key)}
    changed.encoded_properties += way.extra
    return changed
