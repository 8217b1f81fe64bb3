"""Engine of `PopConsumer`: makes its parts and connects them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final
from weakref import WeakSet

from rocketmq_aio.config.consumer import PopConfig
from rocketmq_aio.consumer.checks.missing_topics import MissingTopics
from rocketmq_aio.consumer.checks.subscription_check import SubscriptionCheck
from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.group.running_info import PASSIVELY, heartbeat_data, running_info
from rocketmq_aio.consumer.pop.buffer import PopBuffer
from rocketmq_aio.consumer.pop.intake import PopIntake
from rocketmq_aio.consumer.pop.loop import PopLoop
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.consumer.pop.pop_client import PopRequest
from rocketmq_aio.consumer.pop.scheduler import PopAhead, PopScheduler
from rocketmq_aio.consumer.rebalance.broker_assignment import ALL_QUEUES
from rocketmq_aio.errors import RouteNotFoundError
from rocketmq_aio.instance.heartbeats import check_accepted
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.bodies import ConsumerData, ConsumerRunningInfo, PopProcessQueueInfo
from rocketmq_aio.protocol.subscription import Subscription

logger = get_logger(__name__)

LOOP_WAIT_SECONDS: Final = 15.0  # of ``async for``, where receive() does not wait


class Worker:
    """One ``async for``, which processes the message *current* since a time of `boottime`."""

    def __init__(self) -> None:
        self.current: PoppedMessage | None = None
        self.since = 0.0


class PopEngine:
    """Engine of `PopConsumer`, which delegates to it."""

    def __init__(self, context: ConsumerContext[PopConfig]) -> None:
        config = context.config
        self.context = context
        self.instance = context.instance
        self.group = context.group
        self.config = config
        self.events = context.events
        self.subscriptions = context.subscriptions
        self.loops: dict[MessageQueue, PopLoop] = {}
        self.workers: WeakSet[Worker] = WeakSet()
        self.running = False
        self._tasks = context.tasks
        # Brokers assign messages, not queues by client id: ids need not be unique.
        self.checks = SubscriptionCheck(context, orderly=config.orderly, unique_ids=False)
        self._missing = MissingTopics(context)
        self._intake = PopIntake(context, config, in_use=self._in_use)
        self.change_invisible = self._intake.service.change
        self._buffer = PopBuffer(orderly=config.orderly, give_back=self._intake.give_back)
        self._ahead = PopAhead(context.instance, self.loops, self._buffer, self.workers)
        self.scheduler = PopScheduler(
            self.loops, self._buffer, slack_seconds=context.instance.config.request_timeout_seconds
        )

    async def open(self) -> None:
        await self._tasks.start()
        self.instance.register_consumer(self)
        for wanted in list(self.subscriptions.values()):
            await self._prepare(wanted)
        check_accepted(await self.instance.heartbeats.send_all(self.group))
        for topic in list(self.subscriptions):
            self._check_brokers(topic)
        self.running = True
        for topic in list(self.subscriptions):
            self.instance.use_topic(self, topic)
            self.on_route_changed(topic)
        self._intake.start()
        self._tasks.spawn(self.checks.keep_checking, name="group-check")

    async def shut(self) -> None:
        self.running = False
        self._stop_loops()
        try:
            await self._intake.finish(self._buffer.remove(lambda _: True))
            await self._tasks.close()
        finally:
            self.events.close()
            self._intake.close()
            await self.instance.unregister_consumer(self)

    def fail(self) -> None:
        self.running = False
        self._stop_loops()
        self.events.close()
        self.instance.drop_consumer(self)

    def _stop_loops(self) -> None:
        for loop in self.loops.values():
            loop.stop()
        self._buffer.notify()

    async def subscribe(self, topic: str, selector: str | MessageSelector) -> None:
        await self.context.subscribe(topic, selector, self._replace if self.running else None)

    async def _replace(self, wanted: Subscription) -> None:
        topic = wanted.topic
        await self._prepare(wanted)
        before = self.subscriptions.get(topic)
        self.subscriptions[topic] = wanted
        self.instance.use_topic(self, topic)
        try:
            check_accepted(await self.instance.heartbeats.send_all(self.group))
            self._check_brokers(topic)
        except BaseException:
            if self.subscriptions.get(topic) is wanted:  # no later call has changed it
                if before is None:
                    self._end(topic)
                else:
                    self.subscriptions[topic] = before.after(wanted)
                self._intake.give_back(self._remove_cached(topic))  # popped meanwhile
                # Some brokers may have accepted it.
                self._tasks.spawn(self.instance.heartbeats.send_all, self.group, name="withdraw")
            raise
        if before is not None and not before.selects_same(wanted):
            self._intake.give_back(self._remove_cached(topic))
        self.on_route_changed(topic)
        self.checks.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Stop receiving; messages that no caller took are given back."""
        self._end(topic)
        if not self.running:
            return
        await self._intake.service.give_back(self._remove_cached(topic))
        await self.instance.heartbeats.send_all(self.group)

    def _end(self, topic: str) -> None:
        """Forget the subscription of *topic*, and stop its loops."""
        self.subscriptions.pop(topic, None)
        self._missing.forget(topic)
        self.on_route_changed(topic)

    def _remove_cached(self, topic: str) -> list[PoppedMessage]:
        return self._buffer.remove(lambda message: message.topic == topic)

    async def _prepare(self, wanted: Subscription) -> None:
        try:
            await self.instance.routes.get(wanted.topic)
        except RouteNotFoundError:  # retried in the background
            return
        if wanted.is_sql:
            client_id = self.instance.client_id
            await self.instance.broker.check_filter(client_id, self.group, wanted)

    def _brokers(self, topic: str) -> set[str]:
        route = self.instance.routes.known(topic)
        if route is None:
            return set()
        if route.owners:  # a pop reads physical queues, also those that logical ones have left
            return set(route.brokers)
        return {queue.broker_name for queue in route.subscribe_queues}

    def _check_brokers(self, topic: str) -> None:
        for broker_name in self._brokers(topic):
            self._intake.client.check_version(broker_name)

    def on_route_changed(self, topic: str) -> None:
        """Start and stop loops after a change of the route or subscription."""
        if not self.running:
            return
        if topic not in self.subscriptions and all(each.topic != topic for each in self.loops):
            return
        self._missing.check(topic)
        wanted = self._brokers(topic) if topic in self.subscriptions else set[str]()
        sources = {MessageQueue(topic, name, ALL_QUEUES) for name in wanted}
        for source in [each for each in self.loops if each.topic == topic]:
            if source not in sources:
                loop = self.loops.pop(source)
                self.scheduler.forget(loop)
                loop.stop()
        for source in sorted(sources - self.loops.keys()):
            loop = self.loops[source] = PopLoop(
                self._intake,
                source,
                next_request=self.scheduler.next_request,
                deliver=self._buffer.add,
                on_idle=self._buffer.notify,
                on_full=None if self.config.orderly else self._ahead.on_full,
            )
            # A task of the instance: a request may end after the consumer, and its messages are
            # given back.
            self.instance.tasks.spawn(loop.run, name=f"pop-{source}")
        self._buffer.notify()

    def on_failed(self, cause: BaseException) -> None:
        """Fail the consumer; it calls `fail`."""
        self.context.on_failed(cause)

    def topics(self) -> Iterable[str]:
        return self.subscriptions.keys()

    def heartbeat_data(self) -> ConsumerData:
        return heartbeat_data(self.context, PASSIVELY, self.subscriptions.values())

    def running_info(self) -> ConsumerRunningInfo:
        popped = {q: PopProcessQueueInfo(droped=loop.stopped) for q, loop in self.loops.items()}
        info = running_info(
            self.context,
            self.subscriptions.values(),
            consume_type=PASSIVELY,
            orderly=self.config.orderly,
            popped=popped,
        )
        return self.checks.describe(info, leaving=not self.running)

    def on_members_changed(self) -> None:
        self.checks.wake()

    def on_own_id_queried(self, check_id: str) -> None:
        """Do nothing: brokers do not allocate queues by client id."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: the broker keeps the offsets."""

    async def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return nothing: the broker keeps the offsets."""
        return {}

    async def next_for(self, worker: Worker, check_running: Callable[[], object]) -> PoppedMessage:
        """Return the next message for *worker*, whose last one is processed."""
        done, worker.current = worker.current, None
        if done is not None:
            self._ahead.note_processed(boottime() - worker.since)
            self._intake.acks.add(done)
            self._notify_if_orderly()
            await self._intake.acks.wait_for_room(done.receipt.broker_name)
            check_running()
        config = self.config
        wait = config.wait_seconds or LOOP_WAIT_SECONDS
        request = PopRequest(config.batch_size, config.invisible_seconds, wait)
        while True:
            if taken := await self.scheduler.receive(1, request, check_running):
                [worker.current] = taken
                worker.since = boottime()
                self.workers.add(worker)
                return worker.current

    def _in_use(self) -> Iterable[PoppedMessage]:
        now = boottime()
        self._buffer.drop_expired(now)
        since = now - self.config.renew_seconds
        working = [each.current for each in self.workers if each.current and each.since > since]
        # A message that expires in the buffer counts as tried: all are renewed while a loop runs.
        waiting = [each for each in self._buffer.messages if working or each.received_at > since]
        return [*waiting, *working]

    async def ack(self, messages: Iterable[PoppedMessage]) -> None:
        try:
            await self._intake.service.ack(messages)
        finally:
            self._notify_if_orderly()

    async def retry(
        self, message: PoppedMessage, delay_seconds: float | None, *, suspend: bool
    ) -> None:
        """Have *message* redelivered; in order, also the messages behind it."""
        try:
            await self._intake.service.retry(
                message, delay_seconds, self._intake.on_dead_letter, suspend=suspend
            )
        finally:
            behind: list[PoppedMessage] = []
            if self.config.orderly and message.ack_state is AckState.RETURNED:
                behind = self._buffer.remove(lambda each: each.queue == message.queue)
            self._notify_if_orderly()
        await self._intake.service.give_back(behind)

    def _notify_if_orderly(self) -> None:
        if self.config.orderly:  # callers may take the messages behind it
            self._buffer.notify()
