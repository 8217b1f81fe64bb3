"""Pop mode: pops the queues of a push consumer that brokers (5.x) assign to be popped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final

from rocketmq_aio.config.consumer import PopConfig, PushConfig, StartFrom
from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.redelivery import DEAD_LETTER, LEVEL_SECONDS, SendBack
from rocketmq_aio.consumer.pop.ack_service import AckService, BackgroundAcks
from rocketmq_aio.consumer.pop.intake import PopIntake
from rocketmq_aio.consumer.pop.loop import PopLoop
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.consumer.pop.pop_client import PopRequest
from rocketmq_aio.consumer.push.consume_service import max_reconsume_times
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue, InFlight
from rocketmq_aio.errors import AckError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import PopProcessQueueInfo

logger = get_logger(__name__)

CHECK_SECONDS: Final = 1.0


class PoppedQueue(DispatchQueue):
    """A queue whose messages are popped, and acknowledged one by one."""

    __slots__ = ("_acks", "_give_back", "loop", "unwanted")

    def __init__(
        self,
        queue: MessageQueue,
        in_flight: InFlight,
        acks: BackgroundAcks,
        give_back: Callable[[list[PoppedMessage]], None],
    ) -> None:
        super().__init__(queue, in_flight)
        self._acks = acks
        self._give_back = give_back
        self.loop: PopLoop | None = None
        self.unwanted: list[PoppedMessage] = []  # popped, but to be given back

    @property
    def unacknowledged(self) -> int:
        """How many messages wait for a handler or are in flight."""
        return len(self.waiting) + self.active

    def put(self, messages: list[MessageExt]) -> None:
        self.waiting.extend(messages)

    def mark_done(self, message: MessageExt) -> None:
        if isinstance(message, PoppedMessage):
            self._acks.add(message)

    def mark_all_done(self, messages: list[MessageExt]) -> None:
        for message in messages:
            self.mark_done(message)

    def end_flight(self, count: int) -> None:
        super().end_flight(count)
        self.wake_puller()

    def put_back(self, messages: list[MessageExt]) -> None:
        """Add messages for a local retry, except expired ones."""
        now = boottime()
        super().put_back([each for each in messages if not _is_expired(each, now)])

    def restart(self, offset: int) -> int:
        """Do nothing: the broker keeps the position."""
        return 0

    def refetch(self) -> None:
        """Give back the waiting messages, which an old expression selected, and pop again."""
        self._stop_delivery()
        unwanted, self.unwanted = self.unwanted, []
        self._give_back(unwanted)
        self.wake_puller()

    def wake_puller(self) -> None:
        if self.loop is not None:
            self.loop.wake()

    def drop(self) -> None:
        super().drop()
        if self.loop is not None:
            self.loop.stop()

    def forget_expired(self, now: float) -> None:
        """Drop waiting messages that the broker may redeliver by now, and pop again."""
        waiting = self.waiting
        kept = [each for each in waiting if not _is_expired(each, now)]
        if len(kept) < len(waiting):
            waiting.clear()  # the same deque: workers keep a reference
            waiting.extend(kept)
            self.wake_puller()

    def _stop_delivery(self) -> None:
        self.unwanted += [each for each in self.waiting if isinstance(each, PoppedMessage)]
        self.waiting.clear()


def _is_expired(message: MessageExt, now: float) -> bool:
    return isinstance(message, PoppedMessage) and message.is_expired(now)


class PopSendBack(SendBack):
    """Sends failed messages back: popped ones by receipt, pulled ones as `SendBack` does."""

    def __init__(
        self, acks: AckService, instance: MQClientInstance, group: str, *, max_reconsume_times: int
    ) -> None:
        super().__init__(instance, group, max_reconsume_times=max_reconsume_times)
        self._acks = acks

    async def send_back(self, message: MessageExt, delay_level: int = 0) -> None:
        if not isinstance(message, PoppedMessage):
            await super().send_back(message, delay_level)
            return
        level = min(delay_level, len(LEVEL_SECONDS))
        try:
            if delay_level == DEAD_LETTER:
                await self._acks.send_to_dlq(message)
            else:
                await self._acks.retry(message, LEVEL_SECONDS[level - 1] if level else None)
        except AckError as error:  # it is in the dead-letter queue, and redelivered all the same
            logger.info("pop_not_returned", queue=str(message.queue), reason=str(error))


class PushPops:
    """Keeps one pop under way for every popped queue that has room.

    :param can_start: whether messages that wait will have a handler
    """

    def __init__(
        self,
        context: ConsumerContext[PushConfig],
        *,
        can_start: Callable[[], bool],
        in_flight: Callable[[], Iterable[MessageExt]],
        on_messages: Callable[[DispatchQueue], None],
    ) -> None:
        config = self._config = context.config
        self._instance = context.instance
        self._tasks = context.tasks
        self._can_start = can_start
        self._in_flight = in_flight
        self._on_messages = on_messages
        # Brokers can start at either end only; the earliest skips no message of a timestamp.
        start: StartFrom = "latest" if config.start_from == "latest" else "earliest"
        settings: PopConfig[Any] = PopConfig(
            start_from=start,
            invisible_seconds=config.pop_invisible_seconds,
            max_reconsume_times=max_reconsume_times(config),
            codec=config.codec,
        )
        self._intake = PopIntake(
            context, settings, in_use=self._in_use, on_confirmed=self._on_confirmed
        )
        self.acks = self._intake.service
        self._queues: dict[MessageQueue, PoppedQueue] = {}

    def start(self) -> None:
        """Start renewals and the removal of expired messages."""
        self._intake.start()
        self._tasks.spawn(self._forget_expired, name="expired")

    def fail(self) -> None:
        """Stop popping: no handler will run any more.

        The loops are tasks of the instance and do not end with the consumer's own.
        """
        for assigned in self._queues.values():
            assigned.drop()

    def close(self) -> None:
        self._intake.close()

    def make(self, queue: MessageQueue, in_flight: InFlight) -> PoppedQueue:
        return PoppedQueue(queue, in_flight, self._intake.acks, self._intake.give_back)

    def begin(self, assigned: PoppedQueue) -> None:
        """Pop until the queue is revoked."""

        def deliver(messages: list[PoppedMessage]) -> None:
            assigned.put(list(messages))
            self._on_messages(assigned)

        loop = assigned.loop = PopLoop(
            self._intake,
            assigned.queue,
            next_request=lambda _: self._next_request(assigned),
            deliver=deliver,
        )
        self._queues[assigned.queue] = assigned
        assigned.started.set()
        # A task of the instance: a pop may end after the consumer; its messages are given back.
        self._instance.tasks.spawn(loop.run, name=f"pop-{assigned.queue}")

    async def release(self, released: Iterable[PoppedQueue]) -> None:
        """Wait for acknowledgements and give back messages that no handler started."""
        leaving = list(released)
        for assigned in leaving:
            del self._queues[assigned.queue]
        await self._intake.finish([each for assigned in leaving for each in assigned.unwanted])

    def info(self) -> dict[MessageQueue, PopProcessQueueInfo]:
        return {
            queue: PopProcessQueueInfo(wait_ack_count=each.unacknowledged, droped=each.dropped)
            for queue, each in self._queues.items()
        }

    def _next_request(self, assigned: PoppedQueue) -> PopRequest | None:
        config = self._config
        if assigned.paused or assigned.unacknowledged > config.pop_threshold_per_queue:
            return None
        if not self._intake.acks.has_room(assigned.queue.broker_name):
            return None
        return PopRequest(
            config.pop_batch_size, config.pop_invisible_seconds, config.long_poll_seconds
        )

    def _on_confirmed(self, broker_name: str) -> None:
        for queue, assigned in self._queues.items():
            if queue.broker_name == broker_name:
                assigned.wake_puller()

    def _in_use(self) -> Iterable[PoppedMessage]:
        # A message that expires here counts as tried.  So all are renewed while handlers end in
        # time, however slow they are; else others may have them after the time of a handler.
        seconds = inf if self._can_start() else self._config.consume_timeout_seconds
        since = boottime() - seconds
        waiting = (each for queue in self._queues.values() for each in queue.waiting)
        popped = (each for each in waiting if isinstance(each, PoppedMessage))
        yield from (each for each in popped if each.received_at > since)
        yield from (each for each in self._in_flight() if isinstance(each, PoppedMessage))

    async def _forget_expired(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = boottime()
            for assigned in self._queues.values():
                assigned.forget_expired(now)
