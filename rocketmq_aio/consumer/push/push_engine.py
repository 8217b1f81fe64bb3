"""Push engine: pulls or pops assigned queues and dispatches their messages to handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from time import monotonic
from weakref import WeakValueDictionary

import anyio

from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.config.validation import checked_queue
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.listeners import AssignmentListeners
from rocketmq_aio.consumer.common.redelivery import RetryTopics, SendBack
from rocketmq_aio.consumer.group.group_engine import GroupEngine
from rocketmq_aio.consumer.group.running_info import PASSIVELY, running_info
from rocketmq_aio.consumer.offsets.commit_fence import StallRecovery
from rocketmq_aio.consumer.offsets.commits import Commits
from rocketmq_aio.consumer.offsets.remote_store import check_offset
from rocketmq_aio.consumer.pull_loop.flow_control import TopicFlowControl
from rocketmq_aio.consumer.pull_loop.puller import Puller
from rocketmq_aio.consumer.push.concurrent import ConcurrentService
from rocketmq_aio.consumer.push.consume_service import (
    ConsumeService,
    max_reconsume_times,
    reason_of,
)
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue, InFlight, RetryQueue
from rocketmq_aio.consumer.push.handlers import (
    BatchContext,
    Handler,
    RetryRequest,
    is_retry_request,
)
from rocketmq_aio.consumer.push.locks import DeferredUnlocks, QueueLocks
from rocketmq_aio.consumer.push.lost_locks import LostLocks
from rocketmq_aio.consumer.push.orderly import OrderlyService
from rocketmq_aio.consumer.push.pop_mode import PoppedQueue, PopSendBack, PushPops
from rocketmq_aio.consumer.push.workers import Workers
from rocketmq_aio.consumer.rebalance.apply_assignment import Assignments
from rocketmq_aio.consumer.rebalance.broker_assignment import BrokerAssignment
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import ConsumeDirectlyResult, ConsumerRunningInfo, DirectOutcome
from rocketmq_aio.protocol.subscription import subscription
from rocketmq_aio.remoting.background_tasks import call_isolated, in_background_task


class PushEngine(GroupEngine[DispatchQueue]):
    """Engine of `PushConsumer`, which delegates to it."""

    config: PushConfig
    consume_type = PASSIVELY

    def __init__(
        self,
        context: ConsumerContext[PushConfig],
        handler: Handler,
        listeners: AssignmentListeners,
        *,
        orderly: bool,
    ) -> None:
        instance, group, config = context.instance, context.group, context.config
        assignment = None if config.client_rebalance else BrokerAssignment(instance, group)
        super().__init__(context, assignment=assignment, orderly=orderly)
        self.orderly = orderly
        self._call = handler.call
        self.stopped = asyncio.Event()  # set by a stop signal, `shut` or `fail`
        self._drain_seconds = config.close_timeout_seconds
        self._retry_topics = RetryTopics(group, instance.remoting.namespace)
        self._pop_retries: set[str] = set()  # the subscribed retry topics of popped messages
        self._threads = handler.threads
        # What detects that another member may own the queues; in broadcasting none does.
        self.locks: QueueLocks | None = None
        self.fence = None
        if orderly and not self.is_broadcasting:
            lost = LostLocks(
                self.table,
                self.store,
                self._tasks,
                publish=self.publish,
                revoke=self._revoke_and_rebalance,
                on_resumed=lambda assigned: self._service.add(assigned),
            )
            self.locks = QueueLocks(instance, group, lost)
        elif not self.is_broadcasting:
            self.fence = StallRecovery(
                self.store,
                self.table,
                self._tasks,
                revoke=self._revoke_and_rebalance,
                connection=self._connection,
            )
        self.commits = Commits(
            self.store,
            self.table,
            fence=self.fence,
            holds_lock=None if self.locks is None else self.locks.holds,
            on_event=self.publish,
        )
        self._pops: PushPops | None = None
        send_back: SendBack | None = None  # none in broadcasting
        limit = max_reconsume_times(config)
        if not config.client_rebalance:
            self._pops = PushPops(
                context,
                can_start=lambda: self.workers.can_start,
                in_flight=lambda: self.workers.messages_in_flight(),
                on_messages=lambda assigned: self._service.add(assigned),
            )
            send_back = PopSendBack(self._pops.acks, instance, group, max_reconsume_times=limit)
        elif not self.is_broadcasting:
            send_back = SendBack(instance, group, max_reconsume_times=limit)
        self._service: ConsumeService
        if orderly:
            self._service = OrderlyService(context, send_back, holds=self._holds_lock)
        else:
            self._service = ConcurrentService(context, send_back)
        self.workers = Workers(context, self._service, handler)
        # Each is kept while an assignment or a handler refers to it.
        self._in_flight: WeakValueDictionary[MessageQueue, InFlight] = WeakValueDictionary()
        self._puller = Puller(
            context,
            self,
            self.starts,
            TopicFlowControl(config, self.table, orderly=orderly),
            on_messages=self._service.add,
            interval_seconds=config.pull_interval_seconds,
        )
        self._assignments = Assignments(self, self.commits, listeners)
        self._unlocks: DeferredUnlocks | None = None
        if self.locks is not None:
            self._unlocks = DeferredUnlocks(
                self.locks, self._tasks, self.table, self._assignments.changing
            )

    def make_queue(self, queue: MessageQueue) -> DispatchQueue:
        assigned: DispatchQueue
        new = InFlight(None if self.orderly else self._service.add)
        in_flight = self._in_flight.setdefault(queue, new)
        if self._pops is not None and queue in self.rebalancer.popped.get(queue.topic, ()):
            assigned = self._pops.make(queue, in_flight)
        elif queue.topic.startswith(RETRY_PREFIX):
            assigned = RetryQueue(queue, self._retry_topics, in_flight)
        else:
            assigned = DispatchQueue(queue, in_flight)
        assigned.paused = self._service.suspended
        return assigned

    def begin_pulling(self, assigned: DispatchQueue) -> None:
        if self._pops is not None and isinstance(assigned, PoppedQueue):
            self._pops.begin(assigned)
        else:
            super().begin_pulling(assigned)

    async def open(self) -> None:
        if not self.is_broadcasting:
            topic = self._retry_topics.name
            self._subscriptions[topic] = subscription(topic, "*", self.instance.started_ms)
        await super().open()
        self.workers.start()
        if self._pops is not None:
            self._pops.start()
        if self.locks is not None:
            self._tasks.spawn(self.locks.keep_renewing, name="locks")

    def is_calling(self) -> bool:
        return self.workers.is_calling() or super().is_calling()

    def stop_calling(self) -> None:
        self._service.suspended = True

    def _may_wait_for_caller(self) -> bool:
        return in_background_task()  # in a handler or a listener, or a task that one has made

    async def shut(self) -> None:
        # After a failure, and when the program ends, no handler runs any more.
        can_drain = self._running and not self._tasks.is_ending
        drain_seconds = self.config.close_timeout_seconds if can_drain else 0.0
        self._running = False
        self.stopped.set()
        self.rebalancer.end()
        try:
            await self._assignments.revoke_all(drain_seconds=drain_seconds)
        finally:
            # Shielded: a member that does not leave would keep its queues.  Each step is bounded.
            with anyio.CancelScope(shield=True):
                await self._release_all()

    async def _release_all(self) -> None:
        await self._tasks.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._pops is not None:
            self._pops.close()
        if self._unlocks is not None:
            # A thread cannot be cancelled: its queue stays locked until the lock expires.
            ended = self._threads is None and not self.workers.busy
            await self._unlocks.release_rest(ended=ended)
        await self._leave()

    def fail(self) -> None:
        super().fail()
        if self._pops is not None:
            self._pops.fail()
        self.stopped.set()

    async def _apply(self, shares: dict[str, frozenset[MessageQueue]]) -> bool:
        # Before others are assigned: a pop may return what handlers of pulled queues still have.
        switched = [each for each in self.table.values() if self._is_switched(each, shares)]
        if switched:
            await self._assignments.revoke(switched, drain_seconds=self._drain_seconds)
        if self._pops is not None:
            await self._follow_modes()
        applied = await super()._apply(shares)
        if self._unlocks is not None:
            read = self._subscriptions
            await self._unlocks.release_unwanted(  # a share that is unknown now may have the queue
                lambda queue: queue.topic in read and queue in shares.get(queue.topic, (queue,))
            )
        return applied

    def _is_switched(
        self, assigned: DispatchQueue, shares: Mapping[str, Collection[MessageQueue]]
    ) -> bool:
        """Whether the queue, or its topic instead, is popped and was pulled, or the reverse."""
        queue = assigned.queue
        popped, share = self.rebalancer.popped.get(queue.topic, ()), shares.get(queue.topic)
        if share is None:
            return False
        is_popped = queue in popped if queue in share else bool(popped)
        return isinstance(assigned, PoppedQueue) != is_popped

    async def _follow_modes(self) -> None:
        """Subscribe to the pop retry topics of topics that are pulled now.

        A pop also returns messages of these topics, a pull does not.
        """
        pulled = {
            topic
            for topic, popped in self.rebalancer.popped.items()
            if not popped and topic in self._subscriptions and not topic.startswith(RETRY_PREFIX)
        }
        wanted = {retries for topic in pulled for retries in self._retry_topics.of_popped(topic)}
        read = self._pop_retries
        ended, added = read - wanted, wanted - read
        for topic in ended:
            await self._assignments.change({topic}, partial(self._forget, topic))
            read.discard(topic)
        for topic in added:
            self._subscriptions[topic] = subscription(topic, "*", self.instance.started_ms)
            self.instance.use_topic(self, topic)
            read.add(topic)
        if ended or added:
            await self.instance.heartbeats.send_all(self.group)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        check_offset(offset)
        self._check_pulled(queue)
        await self.check_in_range(queue, offset)
        self._check_pulled(queue)
        await self.reset_offsets(queue.topic, {queue: offset})

    def _check_pulled(self, queue: MessageQueue) -> None:
        assigned = self.table.get(checked_queue(queue))
        if assigned is None or assigned.dropped:
            raise ConfigError("queue", queue, "it is not assigned to this consumer")
        if isinstance(assigned, PoppedQueue):
            raise ConfigError("queue", queue, "it is popped: the broker keeps its offsets")

    def suspend(self) -> None:
        self._service.suspended = True
        for assigned in self.table.values():
            assigned.paused = True

    def resume(self) -> None:
        self._service.suspended = False
        for assigned in self.table.values():
            assigned.paused = False
            assigned.wake_puller()
        self._service.idle.wake_all()

    @property
    def suspended(self) -> bool:
        return self._service.suspended

    def _holds_lock(self, queue: MessageQueue) -> bool:
        return self.locks is None or self.locks.holds(queue)

    async def _revoke_and_rebalance(self, held: Collection[DispatchQueue]) -> None:
        # Without the lock, results of running handlers could not be committed.
        drain_seconds = self._drain_seconds if self.locks is None else 0.0
        await self._assignments.revoke(held, drain_seconds=drain_seconds)
        self.rebalancer.wake()

    async def admit(self, queues: tuple[MessageQueue, ...]) -> Collection[MessageQueue]:
        return queues if self.locks is None else await self.locks.acquire(queues)

    async def on_released(self, released: list[DispatchQueue]) -> None:
        await super().on_released(released)
        if self._pops is not None:
            await self._pops.release(each for each in released if isinstance(each, PoppedQueue))
        if self._unlocks is not None:
            await self._unlocks.release(released)

    def _pulled(self) -> list[DispatchQueue]:
        return [each for each in self.table.values() if not isinstance(each, PoppedQueue)]

    def _running_info(self) -> ConsumerRunningInfo:
        return running_info(
            self.context,
            self._subscriptions.values(),
            self._pulled(),
            consume_type=self.consume_type,
            orderly=self.orderly,
            concurrency=self.workers.size,
            popped=self._pops.info() if self._pops is not None else None,
            is_locked=self.locks.holds if self.locks else lambda queue: False,
        )

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeDirectlyResult:
        """Call the handler with one message for an administrator."""
        self._retry_topics.restore_topic(message)
        started = monotonic()
        outcome, remark = await self._try(message)
        return ConsumeDirectlyResult(
            consume_result=outcome,
            order=self.orderly,
            remark=remark,
            spent_time_mills=int((monotonic() - started) * 1000),
        )

    async def _try(self, message: MessageExt) -> tuple[DirectOutcome, str | None]:
        """Call the handler; return the outcome and the reason."""
        try:
            result = await call_isolated(self._call, [message])
            if is_retry_request(result):
                raise result
            if type(result) is BatchContext and result.error is not None:
                raise result.error
            if type(result) is BatchContext and not result.done(1):
                return DirectOutcome.LATER, None
        except RetryRequest as later:
            return DirectOutcome.LATER, str(later)
        except Exception as error:  # noqa: BLE001 - the application's code
            return DirectOutcome.RAISED, reason_of(error)
        return DirectOutcome.SUCCESS, None
