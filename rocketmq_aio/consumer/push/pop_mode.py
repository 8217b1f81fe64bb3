"""Popping on behalf of a push consumer: for the queues that the brokers want to be popped (5.x)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import anyio

from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.common.events import ConsumerEvent, MessageUnreadable, PullFailed
from rocketmq_aio.consumer.common.hooks import FilterHooks
from rocketmq_aio.consumer.common.send_back import SendBack
from rocketmq_aio.consumer.pop.ack_service import AckService, dead_lettered
from rocketmq_aio.consumer.pop.acks import PopAcks, ack_failed
from rocketmq_aio.consumer.pop.client import PopClient, Popped, PopRequest
from rocketmq_aio.consumer.pop.loop import PopLoop
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.consumer.pop.renewal import Renewal
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue, InFlight
from rocketmq_aio.consumer.push.handlers import DEAD_LETTER
from rocketmq_aio.errors import AckError, ReceiptError, RocketMQError
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import PopProcessQueueInfo
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

logger = get_logger(__name__)

# What the brokers' delay levels 1 to 18 mean unless they are configured otherwise.
LEVEL_SECONDS: Final = (
    *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200),
)
CONFIRM_SECONDS: Final = 3.0  # for acknowledgements when a queue is given up
LOOK_SECONDS: Final = 1.0


class PoppedQueue(DispatchQueue):
    """A queue whose messages are the handlers' for a time, and acknowledged one by one."""

    __slots__ = ("_acks", "_give_back", "loop", "unwanted")

    def __init__(
        self,
        queue: MessageQueue,
        in_flight: InFlight,
        acks: PopAcks,
        give_back: Callable[[list[PoppedMessage]], None],
    ) -> None:
        super().__init__(queue, in_flight)
        self._acks = acks
        self._give_back = give_back
        self.loop: PopLoop | None = None
        self.unwanted: list[PoppedMessage] = []  # taken here, but for others to handle

    @property
    def unacknowledged(self) -> int:
        """How many messages wait for a handler or its end."""
        return len(self.waiting) + self.active

    def put(self, messages: list[MessageExt]) -> None:
        """Keep what a pop brought."""
        self.waiting.extend(messages)

    def settle(self, message: MessageExt) -> None:
        """One message is done."""
        if isinstance(message, PoppedMessage):
            self._acks.add(message)

    def complete(self, messages: list[MessageExt]) -> None:
        """A handler has done all of *messages*."""
        for message in messages:
            self.settle(message)
        self.hand_back(len(messages))

    def hand_back(self, count: int) -> None:
        """So many messages are not in a handler's hands any more."""
        super().hand_back(count)
        self.wake_puller()

    def put_back(self, messages: list[MessageExt]) -> None:
        """Cache messages for a local retry, without those that the group may have by now."""
        now = asyncio.get_running_loop().time()
        super().put_back([each for each in messages if not _is_expired(each, now)])

    def restart(self, offset: int) -> int:
        """Positions are the broker's business."""
        return 0

    def refetch(self) -> None:
        """Give back cached messages, which an old expression selected, and pop again."""
        self._stop_delivery()
        unwanted, self.unwanted = self.unwanted, []
        self._give_back(unwanted)
        self.wake_puller()

    def wake_puller(self) -> None:
        """Something changed that the pop loop may be waiting for."""
        if self.loop is not None:
            self.loop.wake()

    def drop(self) -> None:
        """The queue is given up."""
        super().drop()
        if self.loop is not None:
            self.loop.stop()

    def forget_expired(self, now: float) -> None:
        """Drop cached messages that the group may have by now, and pop again."""
        waiting = self.waiting
        kept = [each for each in waiting if not _is_expired(each, now)]
        if len(kept) < len(waiting):
            waiting.clear()  # the same deque: workers hold on to it
            waiting.extend(kept)
            self.wake_puller()

    def _stop_delivery(self) -> None:
        self.unwanted += [each for each in self.waiting if isinstance(each, PoppedMessage)]
        self.waiting.clear()


def _is_expired(message: MessageExt, now: float) -> bool:
    return isinstance(message, PoppedMessage) and message.is_expired(now)


class PopSendBack:
    """Returns messages in the way that they came."""

    def __init__(self, pulled: SendBack, pops: PushPops) -> None:
        self._pulled = pulled
        self._pops = pops

    async def send_back(self, message: MessageExt, delay_level: int = 0) -> None:
        """Let the group have *message* again later, or make it a dead letter."""
        if isinstance(message, PoppedMessage):
            await self._pops.retry(message, delay_level)
        else:
            await self._pulled.send_back(message, delay_level)

    async def dead_letter(self, message: MessageExt, reason: str) -> None:
        """Make *message* a dead letter."""
        if isinstance(message, PoppedMessage):
            await self._pops.retry(message, DEAD_LETTER)
        else:
            await self._pulled.dead_letter(message, reason)


class PushPops:
    """Keeps a pop under way for every queue that is popped and has room.

    :param in_flight: the messages that handlers work on now
    :param on_messages: called when a queue has messages to hand out
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        config: PushConfig,
        host: BackgroundTasks,
        *,
        max_reconsume_times: int,
        filters: FilterHooks,
        subscription_of: Callable[[str], Subscription | None],
        in_flight: Callable[[], Iterable[MessageExt]],
        on_messages: Callable[[DispatchQueue], None],
        on_event: Callable[[ConsumerEvent], None],
    ) -> None:
        self._instance = instance
        self._config = config
        self._host = host
        self._filters = filters
        self._subscription_of = subscription_of
        self._in_flight = in_flight
        self._on_messages = on_messages
        self._on_event = on_event
        # Brokers can begin at either end only: from an instant on means nothing is left out.
        start = "latest" if config.start_from == "latest" else "earliest"
        self._calls = PopClient(instance, group, start_from=start)
        self._leases = AckService(
            self._calls,
            max_reconsume_times=max_reconsume_times,
            on_buried=lambda message: None,  # told by who asked for it
        )
        self._acks = PopAcks(
            self._leases, host, on_lost=self._ack_lost, on_confirmed=self._on_confirmed
        )
        self._renewal = Renewal(
            self._leases,
            self._in_use,
            invisible_seconds=config.pop_invisible_seconds,
            longest_seconds=config.consume_timeout_seconds,
        )
        self._queues: dict[MessageQueue, PoppedQueue] = {}

    def start(self) -> None:
        """Begin to look after what is popped."""
        self._host.spawn(self._renewal.run, name="renewal")
        self._host.spawn(self._forget_expired, name="expired")

    def fail(self) -> None:
        """No handler will run any more: pop nothing more.

        The loops are tasks of the instance and do not end with the consumer's own.
        """
        for assigned in self._queues.values():
            assigned.drop()

    def close(self) -> None:
        """Release the threads that decode large answers."""
        self._calls.close()

    # --- queues ---------------------------------------------------------------------------------

    def make(self, queue: MessageQueue, in_flight: InFlight) -> PoppedQueue:
        """Return the state of a queue that is taken on."""
        return PoppedQueue(queue, in_flight, self._acks, self._give_back)

    def begin(self, assigned: PoppedQueue) -> None:
        """Pop until the queue is given up."""
        loop = assigned.loop = PopLoop(
            self._calls,
            assigned.queue,
            wanted=lambda: self._subscription_of(assigned.queue.topic),
            next_wish=lambda _: self._next_wish(assigned),
            on_popped=lambda loop, popped: self._on_popped(assigned, popped),
            on_failed=self._on_failed,
            on_idle=lambda: None,
        )
        self._queues[assigned.queue] = assigned
        assigned.started.set()
        # Of the instance: a request that is under way ends after its consumer, and what it brings
        # is given back.
        self._instance.host.spawn(loop.run, name=f"pop-{assigned.queue}")

    async def release(self, released: Iterable[PoppedQueue]) -> None:
        """Confirm what is done, and let others have what no handler began with."""
        leaving = list(released)
        with anyio.move_on_after(CONFIRM_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._acks.flush)
                for assigned in leaving:
                    tasks.start_soon(self._leases.give_back, assigned.unwanted)
        for assigned in leaving:
            if self._queues.get(assigned.queue) is assigned:
                del self._queues[assigned.queue]

    def info(self) -> dict[MessageQueue, PopProcessQueueInfo]:
        """Return the state of the queues, for administration tools."""
        return {
            queue: PopProcessQueueInfo(wait_ack_count=each.unacknowledged, droped=each.dropped)
            for queue, each in self._queues.items()
        }

    # --- messages -------------------------------------------------------------------------------

    async def retry(self, message: PoppedMessage, delay_level: int) -> None:
        """Let the group have *message* again later, or make it a dead letter."""
        try:
            if delay_level == DEAD_LETTER:
                await self._leases.bury(message)
            elif delay_level:
                await self._leases.retry(message, LEVEL_SECONDS[delay_level - 1])
            else:
                await self._leases.retry(message)
        except (ReceiptError, AckError) as error:  # it comes again, sooner or later
            logger.info("pop_not_returned", queue=str(message.queue), reason=str(error))
            message.fate = AckState.RETURNED

    def _next_wish(self, assigned: PoppedQueue) -> PopRequest | None:
        config = self._config
        if assigned.paused or assigned.unacknowledged > config.pop_threshold_per_queue:
            return None
        if not self._acks.has_room(assigned.queue.broker_name):
            return None
        return PopRequest(
            config.pop_batch_size, config.pop_invisible_seconds, config.long_poll_seconds
        )

    def _on_confirmed(self, broker_name: str) -> None:
        for queue, assigned in self._queues.items():
            if queue.broker_name == broker_name:
                assigned.wake_puller()

    def _on_popped(self, assigned: PoppedQueue, popped: Popped) -> None:
        if popped.fault is not None:
            self._report_fault(assigned, popped)
        wanted = self._subscription_of(assigned.queue.topic)
        if wanted is None or assigned.dropped:
            self._give_back(popped.messages)
            return
        if accepted := self._accepted(popped.messages, wanted):
            assigned.put(accepted)
            self._on_messages(assigned)

    def _accepted(
        self, messages: Iterable[PoppedMessage], wanted: Subscription
    ) -> list[MessageExt]:
        """Return what handlers are to see; wrong tags and dead letters are dealt with."""
        accepted: list[MessageExt] = []
        for message in messages:
            message.codec = self._config.codec
            if wanted.tags and message.tags not in wanted.tags:  # one of equal hash
                self._acks.add(message)
            elif self._leases.is_overdue(message):
                self._host.spawn(self._bury, message, name="bury")
            else:
                accepted.append(message)
        if not self._filters or not accepted:
            return accepted
        kept = self._filters.filter(accepted)
        left_out = {id(each) for each in accepted} - {id(each) for each in kept}
        for each in accepted:
            if id(each) in left_out and isinstance(each, PoppedMessage):
                self._acks.add(each)
        return kept

    async def _bury(self, message: PoppedMessage) -> None:
        """Make a dead letter of a message that no handler is to see any more."""
        try:
            await self._leases.bury(message)
        except AckError as error:  # a dead letter all the same
            logger.info("pop_not_returned", queue=str(message.queue), reason=str(error))
        except RocketMQError as error:  # redelivered after its invisible time, then tried again
            logger.warning("not_buried", queue=str(message.queue), reason=str(error))
            return
        self._on_event(dead_lettered(message))

    def _give_back(self, messages: list[PoppedMessage]) -> None:
        # Of the instance: it outlives the consumer, whose last pop may end after it.
        self._instance.host.spawn(self._leases.give_back, messages, name="give-back")

    def _in_use(self) -> Iterable[PoppedMessage]:
        waiting = [each for queue in self._queues.values() for each in queue.waiting]
        return [m for m in (*waiting, *self._in_flight()) if isinstance(m, PoppedMessage)]

    async def _forget_expired(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            for assigned in self._queues.values():
                assigned.forget_expired(now)

    # --- what is reported -----------------------------------------------------------------------

    def _report_fault(self, assigned: PoppedQueue, popped: Popped) -> None:
        offset = popped.messages[-1].queue_offset + 1 if popped.messages else 0
        logger.warning("pop_unreadable", queue=str(assigned.queue), reason=str(popped.fault))
        self._on_event(
            MessageUnreadable(queue=assigned.queue, offset=offset, reason=str(popped.fault))
        )

    def _on_failed(self, loop: PopLoop, error: RocketMQError, first: bool) -> None:
        if first and not loop.stopped:
            logger.warning("pop_failed", source=str(loop.source), reason=str(error))
            self._on_event(PullFailed(queue=loop.source, reason=str(error)))

    def _ack_lost(self, message: PoppedMessage, error: RocketMQError) -> None:
        self._on_event(ack_failed(message, error))
