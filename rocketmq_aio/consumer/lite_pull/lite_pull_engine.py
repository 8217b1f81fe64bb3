"""Engine of `LitePullConsumer`: makes its parts and connects them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.config.validation import QUEUE_FORM, is_queue
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.listeners import AssignmentListeners, TopicQueuesListener
from rocketmq_aio.consumer.group.group_engine import GroupEngine
from rocketmq_aio.consumer.group.running_info import running_info
from rocketmq_aio.consumer.lite_pull.delivery_fence import DeliveryFence
from rocketmq_aio.consumer.lite_pull.manual_commit import ManualCommits
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.lite_pull.ready_queues import ReadyQueues
from rocketmq_aio.consumer.pull_loop.flow_control import Cache, CacheFlowControl
from rocketmq_aio.consumer.pull_loop.puller import Puller
from rocketmq_aio.consumer.rebalance.apply_assignment import DRAIN_SECONDS, Assignments
from rocketmq_aio.consumer.rebalance.topic_queue_listener import TopicQueueListeners
from rocketmq_aio.errors import ConfigError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.bodies import ConsumerRunningInfo
from rocketmq_aio.protocol.subscription import ALL, Subscription

logger = get_logger(__name__)

Selector: TypeAlias = str | MessageSelector

EXCLUSIVE: Final = "subscribe() and assign() exclude each other in one consumer"


class LitePullEngine(GroupEngine[PolledQueue]):
    """Engine of `LitePullConsumer`, which delegates to it."""

    config: LitePullConfig
    _drain_seconds = DRAIN_SECONDS

    def __init__(
        self, context: ConsumerContext[LitePullConfig], listeners: AssignmentListeners
    ) -> None:
        super().__init__(context)
        config = context.config
        self._manual: frozenset[MessageQueue] | None = None  # the queues of `assign`
        self.revoking = False  # closing, and the queues can still be committed
        self.fence = None
        if not self.is_broadcasting:
            self.fence = DeliveryFence(
                self.store,
                self.table,
                self._tasks,
                rejoin=self._rejoin,
                on_messages=lambda assigned: self.ready.add(assigned),
                connection=self._connection,
            )
        self.commits = self.manual_commits = ManualCommits(
            self.store,
            self.table,
            automatic=config.auto_commit,
            fence=self.fence,
            on_event=self.publish,
        )
        self._cache = Cache()
        check = (lambda: None) if self.fence is None else self.fence.check_stall
        self.ready = ReadyQueues(self._cache, check)
        flow_control = CacheFlowControl(config, self._cache)
        self._puller = Puller(
            context, self, self.starts, flow_control, on_messages=self.ready.add, lite=True
        )
        self._assignments = Assignments(self, self.commits, listeners)
        self._watch = TopicQueueListeners(self.instance.routes, self._tasks)

    async def _rejoin(self) -> bool:
        """Return when the group has its members again, and whether it distributes the queues."""
        if self._manual is not None:
            return False
        await self.rebalance()
        return True

    def make_queue(self, queue: MessageQueue) -> PolledQueue:
        return PolledQueue(queue, self._cache, auto_commit=self.config.auto_commit)

    async def open(self) -> None:
        await super().open()
        check = self.config.topic_check_interval_seconds
        self._tasks.spawn(self._watch.keep_watching, check, name="queue-watch")

    async def _prepare_all(self) -> None:
        for topic in self._watch.topics():  # a change is one from now on
            await self.know_route(topic)
            self._watch.check(topic)
        manual = self._manual is not None
        for wanted in list(self._subscriptions.values()):
            await self._prepare(wanted, note=not manual)
        if manual:
            await self._assignments.change(None, lambda: self._manual or ())

    async def shut(self, *, last_batch_done: bool) -> None:
        self._running = False
        self.ready.close()
        self.rebalancer.end()
        if last_batch_done:
            self.ready.mark_processed()
        try:
            await self._tasks.close()
            self.revoking = True
            await self._assignments.revoke_all()
        finally:  # also when that took too long
            self.revoking = False
            await self._leave()

    def fail(self) -> None:
        self.ready.close()
        super().fail()

    async def subscribe(self, topic: str, selector: str | MessageSelector) -> None:
        self._check_mode("topic", topic, manual=False)
        await super().subscribe(topic, selector)

    async def assign(
        self, queues: Collection[MessageQueue], selector: Selector | Mapping[str, Selector]
    ) -> None:
        self._check_mode("queues", queues, manual=True)
        chosen = _checked_queues(queues)
        selectors = _selectors({queue.topic for queue in chosen}, selector)
        wanted = [self.context.new_subscription(*each) for each in selectors.items()]
        if not self._running:
            self._assign(chosen, wanted)
            return
        for each in wanted:
            await self._prepare(each, note=False)

        def assign() -> Iterable[MessageQueue]:
            self._check_mode("queues", queues, manual=True)
            self._assign(chosen, wanted)
            return chosen

        async def later() -> None:
            try:
                await self._assignments.change(None, assign)
            except RocketMQError as error:
                logger.warning("subscription_change_failed", group=self.group, reason=str(error))

        if self._may_wait_for_caller():
            self._tasks.spawn(later, name="change")
        else:
            # Chosen together with the change of the table: a cancelled call changes nothing.
            await self._assignments.change(None, assign)

    def _check_mode(self, setting: str, value: object, *, manual: bool) -> None:
        if self._subscriptions and manual != (self._manual is not None):
            raise ConfigError(setting, value, EXCLUSIVE)

    async def _prepare(self, wanted: Subscription, *, note: bool = True) -> None:
        await super()._prepare(wanted, note=note)
        # Another task may have chosen the other mode in the meantime.
        self._check_mode("topic", wanted.topic, manual=not note)

    def _assign(self, chosen: frozenset[MessageQueue], wanted: Iterable[Subscription]) -> None:
        self._manual = chosen
        for each in wanted:
            self._choose(each)
        for topic in set(self._subscriptions) - {queue.topic for queue in chosen}:
            super()._forget(topic)

    def _forget(self, topic: str) -> tuple[MessageQueue, ...]:
        self._watch.forget(topic)
        if self._manual is not None:  # without any queue left, `subscribe` is allowed again
            self._manual = frozenset(q for q in self._manual if q.topic != topic) or None
        return super()._forget(topic)

    async def listen(self, topic: str, listener: TopicQueuesListener) -> None:
        self._watch.add(topic, listener)
        self.instance.use_topic(self, topic)
        if self._running:
            await self.know_route(topic)

    def _shared_topics(self) -> Collection[str]:
        return () if self._manual is not None else self._subscriptions

    def _wanted(self, shares: Mapping[str, Collection[MessageQueue]]) -> Iterable[MessageQueue]:
        # In the meantime all topics may have been unsubscribed and queues assigned instead.
        if self._manual is not None:
            return [queue for queue in self._manual if queue.topic in shares]
        return super()._wanted(shares)

    async def wait_until_ready(self) -> None:
        if self._manual is None:
            await super().wait_until_ready()
        await self._wait_until_all_started()

    def topics(self) -> set[str]:
        return {*super().topics(), *self._watch.topics()}

    def on_route_changed(self, topic: str) -> None:
        super().on_route_changed(topic)
        self._watch.check(topic)

    def _group_subscriptions(self) -> Iterable[Subscription]:
        """Manually assigned queues are not announced to brokers."""
        return super()._group_subscriptions() if self._manual is None else ()

    def _running_info(self) -> ConsumerRunningInfo:
        return running_info(self.context, self._group_subscriptions(), self.table.values())


def _checked_queues(queues: object) -> frozenset[MessageQueue]:
    chosen = list(queues) if isinstance(queues, Collection) else []
    if not chosen or not all(map(is_queue, chosen)):
        raise ConfigError("queues", queues, f"expected at least one {QUEUE_FORM}")
    return frozenset(
        MessageQueue(
            check_topic(each.topic, setting="queues"), str.__str__(each.broker_name), each.queue_id
        )
        for each in chosen
    )


def _selectors(
    topics: Collection[str], selector: Selector | Mapping[str, Selector]
) -> dict[str, Selector]:
    """Return the selector of each topic; *selector* is that of all, or a mapping by topic."""
    if not isinstance(selector, Mapping):
        return dict.fromkeys(topics, selector)
    for topic in selector:
        if topic not in topics:
            raise ConfigError("selector", selector, f"topic {topic!r} has no queue in the list")
    return {topic: selector.get(topic, ALL) for topic in topics}
