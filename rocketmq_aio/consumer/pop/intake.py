"""Intake of popped messages: from the response of a pop to the messages to deliver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import anyio

from rocketmq_aio.config.consumer import PopConfig
from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import (
    AckFailed,
    MessageUnreadable,
    PullFailed,
    dead_lettered,
    message_event,
)
from rocketmq_aio.consumer.pop.ack_service import AckService, BackgroundAcks
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.consumer.pop.pop_client import PopClient, Popped
from rocketmq_aio.consumer.pop.renewal import Renewal
from rocketmq_aio.errors import AckError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)

DEAD_LETTERS_AT_ONCE: Final = 32  # of one response
FINISH_SECONDS: Final = 3.0  # when the consumer is closed, or a queue is revoked


class PopIntake:
    """Sorts popped messages: delivers, acknowledges, gives back, or sends them to the DLQ."""

    def __init__(
        self,
        context: ConsumerContext[object],
        settings: PopConfig[Any],
        *,
        in_use: Callable[[], Iterable[PoppedMessage]],
        on_confirmed: Callable[[str], None] | None = None,
    ) -> None:
        instance, tasks = context.instance, context.tasks
        self._instance = instance
        self._settings = settings
        self.is_orderly = settings.orderly
        self._tasks = tasks
        self._filters = context.filters
        self._publish = context.publish
        self.subscription_of = context.subscriptions.get
        self.client = PopClient(instance, context.group, start_from=settings.start_from)
        self.service = AckService(self.client, max_reconsume_times=settings.max_reconsume_times)
        self.acks = BackgroundAcks(
            self.service, tasks, on_lost=self._on_lost, on_confirmed=on_confirmed
        )
        self._renewal = Renewal(self.service, in_use, invisible_seconds=settings.invisible_seconds)

    def start(self) -> None:
        self._tasks.spawn(self._renewal.run, name="renewal")

    def close(self) -> None:
        self.client.close()

    def accept(
        self, source: MessageQueue, wanted: Subscription, popped: Popped, *, stopped: bool
    ) -> tuple[list[PoppedMessage], list[PoppedMessage]]:
        """Return the messages of *popped* to deliver, and those without retries left.

        Without the subscription *wanted*, or when the loop was *stopped*, all are given back.
        """
        if popped.fault is not None:
            offset = popped.messages[-1].queue_offset + 1 if popped.messages else 0
            logger.warning("pop_unreadable", source=str(source), reason=str(popped.fault))
            self._publish(MessageUnreadable(queue=source, offset=offset, reason=str(popped.fault)))
        current = self.subscription_of(source.topic)
        if current is None or stopped or not current.selects_same(wanted):
            self.give_back(popped.messages)
            return [], []
        accepted, exhausted = self._select(popped.messages, wanted)
        if self._filters and accepted:
            unfiltered, accepted = accepted, self._filters.filter(accepted)
            for message in unfiltered:
                if message not in accepted:
                    self.acks.add(message)
        return accepted, exhausted

    async def finish(self, messages: Iterable[PoppedMessage]) -> None:
        """Wait for acknowledgements, and give *messages* back, which nobody has processed."""
        with anyio.move_on_after(FINISH_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.acks.flush)
                tasks.start_soon(self.service.give_back, messages)

    async def send_to_dlq(self, messages: list[PoppedMessage]) -> None:
        """Send *messages* to the dead-letter queue; failures are logged."""
        await gather_limited(self._send_to_dlq, messages, DEAD_LETTERS_AT_ONCE)

    def _select(
        self, messages: Iterable[PoppedMessage], wanted: Subscription
    ) -> tuple[list[PoppedMessage], list[PoppedMessage]]:
        """Acknowledge messages of other tags; return the others, and those without retries left."""
        accepted: list[PoppedMessage] = []
        exhausted: list[PoppedMessage] = []
        heads: set[MessageQueue] = set()  # queues whose first message was seen
        most, now = self._settings.max_reconsume_times, boottime()
        for message in messages:
            message.codec = self._settings.codec
            # In order the broker also counts deliveries of messages behind one that failed.
            is_behind = self.is_orderly and message.queue in heads
            heads.add(message.queue)
            if wanted.tags and message.tags not in wanted.tags:  # a tag of equal hash
                self.acks.add(message)
            elif message.reconsume_times > most and not is_behind and not message.is_expired(now):
                exhausted.append(message)
            else:
                accepted.append(message)
        return accepted, exhausted

    def give_back(self, messages: list[PoppedMessage]) -> None:
        # A task of the instance: the last pop may end after the consumer.
        self._instance.tasks.spawn(self.service.give_back, messages, name="give-back")

    def on_dead_letter(self, message: PoppedMessage) -> None:
        self._publish(dead_lettered(message, "it was tried too often"))

    def on_pop_failed(self, source: MessageQueue, error: RocketMQError) -> None:
        logger.warning("pop_failed", source=str(source), reason=str(error))
        self._publish(PullFailed(queue=source, reason=str(error)))

    async def _send_to_dlq(self, message: PoppedMessage) -> None:
        try:
            await self.service.send_to_dlq(message, self.on_dead_letter)
        except AckError as error:  # it is in the dead-letter queue all the same
            logger.info("pop_not_returned", queue=str(message.queue), reason=str(error))
        except RocketMQError as error:  # redelivered after its invisible time, then tried again
            logger.warning("dead_letter_failed", queue=str(message.queue), reason=str(error))

    def _on_lost(self, message: PoppedMessage, error: RocketMQError) -> None:
        """Log and publish that *message* is, or may be, redelivered."""
        logger.warning("ack_failed", queue=str(message.queue), reason=str(error))
        self._publish(message_event(AckFailed, message, reason=str(error)))
