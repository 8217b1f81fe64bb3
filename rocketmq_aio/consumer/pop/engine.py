"""The parts of a pop consumer, put together: who tells whom, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakSet

import anyio

from rocketmq_aio.config.consumer import PopConfig
from rocketmq_aio.consumer.common.events import EventStreams, MessageUnreadable, PullFailed
from rocketmq_aio.consumer.pop.ack_service import AckService, dead_lettered
from rocketmq_aio.consumer.pop.acks import PopAcks, ack_failed
from rocketmq_aio.consumer.pop.buffer import PopBuffer
from rocketmq_aio.consumer.pop.client import PopClient, Popped, PopRequest
from rocketmq_aio.consumer.pop.loop import PopLoop
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.consumer.pop.renewal import Renewal
from rocketmq_aio.consumer.pop.scheduler import PopScheduler
from rocketmq_aio.consumer.rebalance.missing_topics import MissingTopics
from rocketmq_aio.consumer.rebalance.subscription_check import SubscriptionCheck
from rocketmq_aio.errors import RocketMQError, RouteNotFoundError
from rocketmq_aio.instance.heartbeats import check_accepted
from rocketmq_aio.instance.inner_clients import InnerConsumer
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.subscription import Subscription, subscription
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

logger = get_logger(__name__)

ALL_QUEUES: Final = -1
LOOP_WAIT_SECONDS: Final = 15.0  # of loops where receive() is not to wait
CLOSE_SECONDS: Final = 3.0  # for acknowledging what is done and giving back the rest


class Worker:
    """Somebody who takes messages one by one and works on `current`."""

    def __init__(self) -> None:
        self.current: PoppedMessage | None = None


class PopEngine:
    """Everything behind the public face of `PopConsumer`."""

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        config: PopConfig,
        *,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self.instance = instance
        self.group = group
        self.config = config
        self.events = EventStreams()
        self.subscriptions: dict[str, Subscription] = {}
        self.loops: dict[MessageQueue, PopLoop] = {}
        self.workers: WeakSet[Worker] = WeakSet()
        self.running = False
        self.stock = PopBuffer(orderly=config.orderly, give_back=self._give_back)
        self._calls = PopClient(instance, group, start_from=config.start_from)
        self.leases = AckService(
            self._calls,
            max_reconsume_times=config.max_reconsume_times,
            on_buried=self._buried,
        )
        self._host = BackgroundTasks(f"rocketmq:{group}", on_failure=on_failed)
        self.checks = SubscriptionCheck(
            instance,
            group,
            subscriptions=self.subscriptions.values,
            on_event=self.events.publish,
            unique_ids=False,  # brokers share messages out, not queues by client id
        )
        self._missing = MissingTopics(
            instance,
            group,
            self._host,
            subscribed=self.subscriptions.keys,
            on_event=self.events.publish,
        )
        self._acks = PopAcks(self.leases, self._host, on_lost=self._ack_lost)
        self._renewal = Renewal(
            self.leases,
            self._in_use,
            invisible_seconds=config.invisible_seconds,
            longest_seconds=config.renew_seconds,
        )
        self.rounds = PopScheduler(
            self.loops, self.stock, slack_seconds=instance.config.request_timeout_seconds
        )

    # --- life -----------------------------------------------------------------------------------

    async def open(self, owner: InnerConsumer) -> None:
        """Join with what was prepared, and begin to work."""
        await self._host.start()
        self.instance.register_consumer(owner)
        for wanted in list(self.subscriptions.values()):
            await self._prepare(wanted)
        check_accepted(await self.instance.heartbeats.send_all(anew=True))
        for topic in list(self.subscriptions):
            self._check_brokers(topic)
        self.running = True
        for topic in list(self.subscriptions):
            self.on_route_changed(topic)
        self._host.spawn(self._renewal.run, name="renewal")
        self._host.spawn(self.checks.keep_checking, name="group-check")

    async def shut(self, owner: InnerConsumer) -> None:
        """Confirm what is done, give back what nobody took, leave the group."""
        self.running = False
        self._stop_loops()
        try:
            with anyio.move_on_after(CLOSE_SECONDS):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._acks.flush)
                    tasks.start_soon(self.leases.give_back, self.stock.remove(lambda _: True))
            await self._host.close()
        finally:
            self.events.close()
            self._calls.close()
            await self.instance.unregister_consumer(owner)

    def fail(self) -> None:
        """Nothing works any more: let go of everybody who waits for something."""
        self.running = False
        self._stop_loops()
        self.events.close()

    def _stop_loops(self) -> None:
        for loop in self.loops.values():
            loop.stop()
        self.stock.notify()

    # --- what to read ---------------------------------------------------------------------------

    async def subscribe(self, topic: str, selector: str | MessageSelector, version: int) -> None:
        """Take messages of *topic* from now on."""
        wanted = subscription(topic, selector, version)
        if not self.running:
            self.subscriptions[topic] = wanted
            return
        await self._prepare(wanted)
        before = self.subscriptions.get(topic)
        self.subscriptions[topic] = wanted
        try:
            check_accepted(await self.instance.heartbeats.send_all(anew=True))
            self._check_brokers(topic)
        except BaseException:
            if before is None:
                del self.subscriptions[topic]
            else:
                self.subscriptions[topic] = before
            raise
        self.on_route_changed(topic)
        self.checks.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Take no more; what nobody took yet is given back."""
        self.subscriptions.pop(topic, None)
        self._missing.forget(topic)
        if not self.running:
            return
        self.on_route_changed(topic)
        await self.leases.give_back(self.stock.remove(lambda message: message.topic == topic))
        await self.instance.heartbeats.send_all(anew=True)

    async def _prepare(self, wanted: Subscription) -> None:
        try:
            await self.instance.routes.get(wanted.topic)
        except RouteNotFoundError:  # it is looked for in the background
            return
        if wanted.is_sql:
            client_id = self.instance.client_id
            await self.instance.broker.check_filter(client_id, self.group, wanted)

    def _brokers(self, topic: str) -> set[str]:
        route = self.instance.routes.known(topic)
        return {queue.broker_name for queue in route.subscribe_queues} if route else set()

    def _check_brokers(self, topic: str) -> None:
        for broker_name in self._brokers(topic):
            self._calls.check_version(broker_name)

    def on_route_changed(self, topic: str) -> None:
        """Brokers of *topic* came or went, or it is not subscribed to any more."""
        if not self.running:
            return
        self._missing.check(topic)
        wanted = self._brokers(topic) if topic in self.subscriptions else set[str]()
        sources = {MessageQueue(topic, name, ALL_QUEUES) for name in wanted}
        for source in [each for each in self.loops if each.topic == topic]:
            if source not in sources:
                loop = self.loops.pop(source)
                self.rounds.forget(loop)
                loop.stop()
        for source in sorted(sources - self.loops.keys()):
            loop = self.loops[source] = self._make_loop(source)
            # Of the instance: a request that is under way ends after its consumer, and what it
            # brings is given back.
            self.instance.host.spawn(loop.run, name=f"pop-{source}")
        self.stock.notify()

    def _make_loop(self, source: MessageQueue) -> PopLoop:
        return PopLoop(
            self._calls,
            source,
            wanted=lambda: self.subscriptions.get(source.topic),
            next_wish=self.rounds.next_wish,
            on_popped=self._on_popped,
            on_failed=self._on_failed,
            on_idle=self.stock.notify,
            orderly=self.config.orderly,
        )

    # --- messages -------------------------------------------------------------------------------

    async def next_for(self, worker: Worker, check_running: Callable[[], object]) -> PoppedMessage:
        """Return the next message for *worker*, whose last one is done."""
        done, worker.current = worker.current, None
        if done is not None:
            self._acks.add(done)
            self._on_settled()
            await self._acks.wait_for_room(done.receipt.broker_name)
            check_running()
        config = self.config
        wait = config.wait_seconds or LOOP_WAIT_SECONDS
        wish = PopRequest(config.batch_size, config.invisible_seconds, wait)
        while True:
            if taken := await self.rounds.receive(1, wish, check_running):
                [worker.current] = taken
                self.workers.add(worker)
                return worker.current

    def _in_use(self) -> Iterable[PoppedMessage]:
        """What is to be kept from others: what waits here, and what workers work on."""
        self.stock.drop_expired(asyncio.get_running_loop().time())
        working = [each.current for each in self.workers if each.current is not None]
        return [*self.stock.messages, *working]

    # --- what loops and acks report -------------------------------------------------------------

    def _on_popped(self, loop: PopLoop, popped: Popped) -> None:
        if popped.fault is not None:
            offset = popped.messages[-1].queue_offset + 1 if popped.messages else 0
            event = MessageUnreadable(queue=loop.source, offset=offset, reason=str(popped.fault))
            self.events.publish(event)
            logger.warning("pop_unreadable", source=str(loop.source), reason=str(popped.fault))
        wanted = self.subscriptions.get(loop.source.topic)
        if wanted is None or not self.running or loop.stopped:
            self._give_back(popped.messages)
            return
        self.stock.add(self._accepted(popped.messages, wanted))

    def _accepted(
        self, messages: Iterable[PoppedMessage], wanted: Subscription
    ) -> list[PoppedMessage]:
        """Return what the application is to see; dead letters and wrong tags are dealt with."""
        accepted: list[PoppedMessage] = []
        heads: set[MessageQueue] = set()  # queues whose first message was seen
        for message in messages:
            message.codec = self.config.codec
            # In order the broker also counts deliveries of messages behind one that failed.
            is_behind = self.config.orderly and message.queue in heads
            heads.add(message.queue)
            if wanted.tags and message.tags not in wanted.tags:  # one of equal hash
                self._acks.add(message)
            elif self.leases.is_overdue(message) and not is_behind:
                self._host.spawn(self._bury, message, name="bury")
            else:
                accepted.append(message)
        return accepted

    def _on_failed(self, loop: PopLoop, error: RocketMQError, first: bool) -> None:
        if first and self.running:  # closing ends requests that are under way
            logger.warning("pop_failed", source=str(loop.source), reason=str(error))
            self.events.publish(PullFailed(queue=loop.source, reason=str(error)))
        self.stock.notify()

    def _ack_lost(self, message: PoppedMessage, error: RocketMQError) -> None:
        self.events.publish(ack_failed(message, error))

    # --- giving back and burying ----------------------------------------------------------------

    async def ack(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge; errors as those of `AckService.ack`."""
        try:
            await self.leases.ack(messages)
        finally:
            self._on_settled()

    async def retry(self, message: PoppedMessage, delay_seconds: float | None) -> None:
        """Give *message* back, with what comes behind it where the order matters."""
        try:
            await self.leases.retry(message, delay_seconds)
        finally:
            behind: list[PoppedMessage] = []
            if self.config.orderly and message.fate is AckState.RETURNED:
                behind = self.stock.remove(lambda each: each.queue == message.queue)
            self._on_settled()
        await self.leases.give_back(behind)

    def _on_settled(self) -> None:
        if self.config.orderly:  # messages behind are free: callers may wait for them
            self.stock.notify()

    def _give_back(self, messages: list[PoppedMessage]) -> None:
        # Of the instance: it outlives the consumer, whose last pop may end after it.
        self.instance.host.spawn(self.leases.give_back, messages, name="give-back")

    def _buried(self, message: PoppedMessage) -> None:
        self.events.publish(dead_lettered(message))

    async def _bury(self, message: PoppedMessage) -> None:
        try:
            await self.leases.bury(message)
        except RocketMQError as error:  # it comes again, and this is tried again
            logger.warning("not_buried", queue=str(message.queue), reason=str(error))
