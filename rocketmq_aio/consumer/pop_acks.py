"""Acknowledging in the background: what is done while a request is under way shares the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rocketmq_aio.consumer.events import AckFailed
from rocketmq_aio.consumer.leases import Leases
from rocketmq_aio.consumer.popped import Fate, PoppedMessage
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.remoting.tasks import TaskHost

logger = get_logger(__name__)

MAX_UNCONFIRMED: Final = 256  # of one broker; more would be done twice after a crash


class PopAcks:
    """Takes messages that are done, and tells *on_lost* of those that come again all the same."""

    def __init__(
        self,
        leases: Leases,
        host: TaskHost,
        *,
        on_lost: Callable[[PoppedMessage, RocketMQError], None],
    ) -> None:
        self._leases = leases
        self._host = host
        self._on_lost = on_lost
        self._waiting: dict[str, list[PoppedMessage]] = {}  # by broker, while one is served
        self._unconfirmed = 0
        self._room = asyncio.Event()

    def add(self, message: PoppedMessage) -> None:
        """*message* is done; the broker will hear of it soon."""
        if message.fate is not Fate.HELD:
            return
        message.fate = Fate.ACKED
        self._unconfirmed += 1
        broker_name = message.receipt.broker_name
        waiting = self._waiting.get(broker_name)
        if waiting is not None:
            waiting.append(message)
            return
        self._waiting[broker_name] = [message]
        self._host.spawn(self._serve, broker_name, name=f"acks-{broker_name}")

    async def until_at_most(self, unconfirmed: int) -> None:
        """Return when no more than so many messages are not confirmed yet."""
        while self._unconfirmed > unconfirmed:
            self._room.clear()
            await self._room.wait()

    async def _serve(self, broker_name: str) -> None:
        while messages := self._waiting[broker_name]:
            self._waiting[broker_name] = []
            lost = await self._leases.confirm(messages)
            self._unconfirmed -= len(messages)
            self._room.set()
            for message, error in lost.items():
                self._on_lost(message, error)
        del self._waiting[broker_name]


def ack_failed(message: PoppedMessage, error: RocketMQError) -> AckFailed:
    """Return the event that tells of *message*, and log it: the group gets it again."""
    logger.warning("ack_failed", queue=str(message.queue), reason=str(error))
    return AckFailed(
        queue=message.queue,
        offset=message.queue_offset,
        message_id=message.message_id,
        reason=str(error),
    )
