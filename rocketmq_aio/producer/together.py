"""Sends that go through the automatic batches."""

from __future__ import annotations

import asyncio

from rocketmq_aio.message import Message, MessageQueue, SendResult
from rocketmq_aio.producer.careful import CarefulSender, chosen_target
from rocketmq_aio.producer.publishing import QueueSelector


class TogetherSender(CarefulSender):
    """Base of producers: messages that travel with others."""

    async def flush(self) -> None:
        """Send what waits for company, and return when all of it has its outcome.

        Errors go to those who sent.
        """
        self._check_running()
        await self._together.flush()

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
        reply = self._together.add(message, queue, seconds, deadline, alone=alone)
        try:
            return await reply
        except asyncio.CancelledError:
            if reply.done() and not reply.cancelled():
                reply.exception()  # seen: nobody is left to whom it could be told
            raise
