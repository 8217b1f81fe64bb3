"""The parts of a push consumer, put together: pulled messages go to handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.common.events import ConsumerEvent, LeaseLost
from rocketmq_aio.consumer.common.hooks import FilterHooks
from rocketmq_aio.consumer.common.listeners import AssignmentListener
from rocketmq_aio.consumer.common.running_info import Kind, running_info
from rocketmq_aio.consumer.common.send_back import SendBack
from rocketmq_aio.consumer.group.assignments import Assignments
from rocketmq_aio.consumer.group.engine import GroupEngine
from rocketmq_aio.consumer.group.stall_recovery import StallRecovery
from rocketmq_aio.consumer.offsets.commits import Commits
from rocketmq_aio.consumer.offsets.lag import fetch_lag
from rocketmq_aio.consumer.offsets.store import RemoteOffsetStore, check_offset
from rocketmq_aio.consumer.pulling.flow_control import TopicLimits
from rocketmq_aio.consumer.pulling.queue_state import QueueState
from rocketmq_aio.consumer.push.concurrent import ConcurrentService
from rocketmq_aio.consumer.push.dispatch_queue import (
    DispatchQueue,
    InFlight,
    InFlightTable,
    RetryQueue,
)
from rocketmq_aio.consumer.push.handlers import Handler
from rocketmq_aio.consumer.push.locks import QueueLocks
from rocketmq_aio.consumer.push.orderly import OrderlyService
from rocketmq_aio.consumer.push.pop_mode import PoppedQueue, PopSendBack, PushPops
from rocketmq_aio.consumer.push.workers import Workers
from rocketmq_aio.consumer.rebalance.broker_assignment import BrokerAssignment
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.instance.inner_clients import InnerConsumer
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import ConsumerRunningInfo
from rocketmq_aio.protocol.subscription import Subscription, subscription

DEFAULT_RECONSUME_TIMES: Final = 16


class PushEngine(GroupEngine[DispatchQueue]):
    """Everything behind the public face of `PushConsumer`."""

    config: PushConfig
    consume_type = "CONSUME_PASSIVELY"

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        config: PushConfig,
        handler: Handler,
        *,
        orderly: bool,
        filters: FilterHooks,
        on_assigned: AssignmentListener | None,
        on_revoked: AssignmentListener | None,
        on_event: Callable[[ConsumerEvent], object] | None,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(
            instance, group, config, filters=filters, on_event=on_event, on_failed=on_failed
        )
        self.orderly = orderly
        self.stopped = asyncio.Event()  # or asked to stop
        self._in_flight = InFlightTable(withholds=not orderly, on_ready=self._on_messages)
        self._unlocking: set[MessageQueue] = set()  # revoked ones whose handlers still run
        self._drain_seconds = config.close_timeout_seconds
        self._retry_topic = RETRY_PREFIX + group
        self._threads = handler.threads
        self.locks, self.stalls = self._make_watches()
        self.commits = Commits(
            self.store, self.table, may_commit=self._may_commit, on_event=self.events.publish
        )
        if isinstance(self.store, RemoteOffsetStore):
            self.store.may_send = self._may_send
        self._pops = None if config.client_rebalance else self._make_pops()
        self.send_back = None if self.is_broadcasting else self._make_send_back()
        self._service = self._make_service()
        self.workers = self._make_workers(handler)
        limits = TopicLimits(config, self.table, orderly=orderly)
        interval = config.pull_interval_seconds
        self._puller = self._make_puller(
            limits, on_messages=self._service.add, interval_seconds=interval
        )
        self._assignments = Assignments(
            self.table,
            self.commits,
            make=self._make_queue,
            begin=self._begin_pulling,
            admit=self.locks.acquire if self.locks else None,
            on_released=self._on_released,
            on_event=self.events.publish,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )

    def _make_watches(self) -> tuple[QueueLocks | None, StallRecovery[DispatchQueue] | None]:
        """Return what tells that others may have the queues; nobody else in broadcasting."""
        if self.is_broadcasting:
            return None, None
        if self.orderly:
            return QueueLocks(self.instance, self.group, on_lost=self._on_lost), None
        return None, StallRecovery(self._host, self.table, self.store, revoke=self._start_over)

    def _make_workers(self, handler: Handler) -> Workers:
        config, service = self.config, self._service
        return Workers(
            self._host,
            service,
            handler.call,
            self.statistics,
            queues=service if isinstance(service, ConcurrentService) else None,
            one=handler.one,
            size=config.concurrency,
            can_cancel=handler.threads is None,
            timeout_seconds=config.consume_timeout_seconds,
            stuck_seconds=config.stuck_seconds,
            on_event=self.events.publish,
        )

    @property
    def _max_reconsume_times(self) -> int:
        times = self.config.max_reconsume_times
        return DEFAULT_RECONSUME_TIMES if times is None else times

    def _make_assignment(self) -> BrokerAssignment | None:
        if self.config.client_rebalance:
            return None
        return BrokerAssignment(self.instance, self.group, self.config.message_model)

    def _make_send_back(self) -> SendBack | PopSendBack:
        limit = self._max_reconsume_times
        send_back = SendBack(self.instance, self.group, max_reconsume_times=limit)
        return send_back if self._pops is None else PopSendBack(send_back, self._pops)

    def _make_pops(self) -> PushPops:
        return PushPops(
            self.instance,
            self.group,
            self.config,
            self._host,
            max_reconsume_times=self._max_reconsume_times,
            filters=self._filters,
            subscription_of=self._subscriptions.get,
            in_flight=lambda: [m for worker in self.workers.busy for m in worker.messages],
            on_messages=self._on_messages,
            on_event=self.events.publish,
        )

    def _make_service(self) -> ConcurrentService | OrderlyService:
        config, times = self.config, self.config.max_reconsume_times
        if self.orderly:
            return OrderlyService(
                self._host,
                self.send_back,
                batch_size=config.consume_batch_size,
                max_reconsume_times=times,
                suspend_seconds=config.suspend_seconds,
                undecodable=config.undecodable,
                holds=self.locks.holds if self.locks else lambda queue: True,
                wake=lambda: self.workers.wake(),
                on_event=self.events.publish,
            )
        return ConcurrentService(
            self._host,
            self.send_back,
            batch_size=config.consume_batch_size,
            max_reconsume_times=self._max_reconsume_times,
            undecodable=config.undecodable,
            wake=lambda: self.workers.wake(),
            on_event=self.events.publish,
        )

    def _make_queue(self, queue: MessageQueue) -> DispatchQueue:
        assigned: DispatchQueue
        in_flight = self._in_flight.of(queue)
        if self._pops is not None and queue in self.rebalancer.popped.get(queue.topic, ()):
            assigned = self._pops.make(queue, in_flight)
        elif queue.topic.startswith(RETRY_PREFIX):
            assigned = RetryQueue(queue, in_flight)
        else:
            assigned = DispatchQueue(queue, in_flight)
        assigned.paused = self._service.suspended
        return assigned

    def _on_messages(self, assigned: DispatchQueue) -> None:
        self._service.add(assigned)

    def _begin_pulling(self, assigned: DispatchQueue) -> None:
        if self._pops is not None and isinstance(assigned, PoppedQueue):
            self._pops.begin(assigned)
            return
        name = f"pull-{assigned.queue}"
        self._host.spawn(self._puller.run, assigned, self._wait_seconds, name=name)

    # --- life -----------------------------------------------------------------------------------

    async def open(self, owner: InnerConsumer, commit_interval_seconds: float) -> None:
        """Join with what was prepared, and begin to work."""
        if not self.is_broadcasting:
            retries = subscription(self._retry_topic, "*", self.instance.started_ms)
            self._subscriptions[self._retry_topic] = retries
        await super().open(owner, commit_interval_seconds)
        self.workers.start()
        if self._pops is not None:
            self._pops.start()
        if self.locks is not None:
            self._host.spawn(self.locks.keep_renewing, name="locks")
        if self.stalls is not None:
            self._host.spawn(self.stalls.fence.stalls.watch, name="stalls")

    async def shut(self, owner: InnerConsumer) -> None:
        """Stop pulling, let running handlers end, commit, unlock, leave, release everything."""
        # After a failure no handler runs any more.
        drain_seconds = self.config.close_timeout_seconds if self._running else 0.0
        self._running = False
        self.stopped.set()
        self.rebalancer.end()
        try:
            await self._assignments.revoke_all(drain_seconds=drain_seconds)
        finally:  # also when that took too long
            await self._host.close()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
            if self._pops is not None:
                self._pops.close()
            await self._unlock_rest()
            await self._leave(owner)

    def fail(self) -> None:
        """Nothing works any more: let go of everybody who waits for something."""
        super().fail()
        if self._pops is not None:
            self._pops.fail()
        self.stopped.set()

    async def _prepare(self, wanted: Subscription, *, note: bool = True) -> None:
        await super()._prepare(wanted, note=note and wanted.topic != self._retry_topic)

    # --- who reads what, and how ----------------------------------------------------------------

    async def _apply(self, shares: dict[str, frozenset[MessageQueue]]) -> bool:
        popped = {queue for queues in self.rebalancer.popped.values() for queue in queues}
        switched = [
            assigned
            for queue, assigned in self.table.items()
            if isinstance(assigned, PoppedQueue) != (queue in popped)
        ]
        if switched:
            await self._assignments.revoke(switched)
        if self._pops is not None:
            await self._follow_modes()
        return await super()._apply(shares)

    async def _follow_modes(self) -> None:
        """Read the retries of pops of a topic that is pulled now: pops bring them by themselves."""
        popped, known = self.rebalancer.popped, set(self._subscriptions)
        pulled = {t for t in known if not t.startswith(RETRY_PREFIX) and not popped.get(t)}
        wanted = {f"{self._retry_topic}{sign}{topic}" for topic in pulled for sign in "_+"}
        read = {t for t in known if t.startswith(RETRY_PREFIX) and t != self._retry_topic}
        for topic in read - wanted:
            await self._assignments.change({topic}, partial(self._forget, topic))
        for topic in wanted - read:
            self._subscriptions[topic] = subscription(topic, "*", self.instance.started_ms)
        if wanted != read:
            await self.instance.heartbeats.send_all(anew=True)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on where the application says, and commit it."""
        check_offset(offset)
        self._check_pulled(queue)
        await self.check_in_range(queue, offset)
        self._check_pulled(queue)
        await self.reset_offsets({queue: offset})

    def _check_pulled(self, queue: MessageQueue) -> None:
        assigned = self.table.get(queue)
        if assigned is None or assigned.dropped:
            raise ConfigError("queue", queue, "it is not assigned to this consumer")
        if isinstance(assigned, PoppedQueue):
            raise ConfigError("queue", queue, "it is popped: the broker keeps its offsets")

    # --- suspending -----------------------------------------------------------------------------

    def suspend(self) -> None:
        """Begin no handler and no pull."""
        self._service.suspended = True
        for assigned in self.table.values():
            assigned.paused = True

    def resume(self) -> None:
        """Go on."""
        self._service.suspended = False
        for assigned in self.table.values():
            assigned.paused = False
            assigned.wake_puller()
        self.workers.wake_all()

    @property
    def suspended(self) -> bool:
        """Whether `suspend` was called last."""
        return self._service.suspended

    # --- queues that others may have ------------------------------------------------------------

    def _may_commit(self, assigned: QueueState) -> bool:
        if self.locks is not None:
            return self.locks.holds(assigned.queue)
        return self.stalls is None or self.stalls.fence.may_commit(assigned)

    def _may_send(self, queue: MessageQueue) -> bool:
        assigned = self.table.get(queue)
        if assigned is None:  # given up, and its last commit is under way
            return self.locks is None or self.locks.holds(queue)
        return self._may_commit(assigned)

    async def _start_over(self, held: Collection[DispatchQueue]) -> None:
        """Revoke these assignments, and take on anew what is still this member's."""
        await self._assignments.revoke(held, drain_seconds=self._drain_seconds)
        self.rebalancer.wake()

    def _on_lost(self, queue: MessageQueue) -> None:
        if (assigned := self.table.get(queue)) is not None:
            self.events.publish(LeaseLost(queue=queue))
            self._host.spawn(self._revoke, assigned, name=f"lease-lost-{queue}")

    async def _revoke(self, assigned: DispatchQueue) -> None:
        await self._assignments.revoke((assigned,))
        self.rebalancer.wake()

    async def _on_released(self, released: list[DispatchQueue]) -> None:
        if self._pops is not None:
            await self._pops.release(each for each in released if isinstance(each, PoppedQueue))
        if self.locks is not None:
            await self._unlock(self.locks, released)

    async def _unlock(self, locks: QueueLocks, released: list[DispatchQueue]) -> None:
        """Unlock queues; those with running handlers, of any assignment, when these have ended."""
        idle: list[MessageQueue] = []
        for assigned in released:
            queue, in_flight = assigned.queue, assigned.in_flight
            if not in_flight.running:
                idle.append(queue)
            elif queue not in self._unlocking:
                self._unlocking.add(queue)
                name = f"unlock-{queue}"
                self._host.spawn(self._unlock_later, locks, queue, in_flight, name=name)
        await locks.release(idle)

    async def _unlock_later(
        self, locks: QueueLocks, queue: MessageQueue, in_flight: InFlight
    ) -> None:
        while queue in self._unlocking:
            await in_flight.wait_until_idle()
            # Not while the queue is assigned again: that would take the lock from under it.
            await self._assignments.exclusively(partial(self._unlock_idle, locks, queue, in_flight))

    async def _unlock_idle(
        self, locks: QueueLocks, queue: MessageQueue, in_flight: InFlight
    ) -> None:
        if in_flight.running:
            return  # assigned and revoked once more in the meantime
        if queue not in self.table:
            await locks.release([queue])
        self._unlocking.discard(queue)

    async def _unlock_rest(self) -> None:
        """Unlock what handlers were cancelled with.

        A thread cannot be cancelled: its queue stays locked until the broker forgets that.
        """
        ended = self._threads is None and not self.workers.busy
        if self.locks is not None and ended and self._unlocking:
            await self.locks.release(self._unlocking)

    async def lag(self) -> dict[MessageQueue, int]:
        """Ask for the end of every queue that is pulled; popped ones have no position here."""
        pulled = [each for each in self.table.values() if not isinstance(each, PoppedQueue)]
        return await fetch_lag(self.instance, pulled, lambda each: each.committable)

    # --- for the instance -----------------------------------------------------------------------

    def running_info(self) -> ConsumerRunningInfo:
        """The state, for administration tools."""
        kind = Kind(self.consume_type, orderly=self.orderly, concurrency=self.workers.size)
        return running_info(
            self.instance,
            self.config,
            self._subscriptions.values(),
            [each for each in self.table.values() if not isinstance(each, PoppedQueue)],
            self.statistics,
            kind=kind,
            popped=self._pops.info() if self._pops is not None else None,
            is_locked=self.locks.holds if self.locks else lambda queue: False,
        )
