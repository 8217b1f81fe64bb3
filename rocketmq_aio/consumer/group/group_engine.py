"""Group engine: join a consumer group, subscribe, rebalance, pull, commit, leave."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final, Generic, TypeVar

import anyio

from rocketmq_aio.config.consumer import LitePullConfig, OffsetStore, PushConfig
from rocketmq_aio.consumer.checks.missing_topics import MissingTopics
from rocketmq_aio.consumer.checks.subscription_check import SubscriptionCheck
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.group.running_info import heartbeat_data
from rocketmq_aio.consumer.offsets.commit_fence import CommitFence
from rocketmq_aio.consumer.offsets.commits import Commits
from rocketmq_aio.consumer.offsets.local_file import LocalFileOffsetStore
from rocketmq_aio.consumer.offsets.remote_store import RemoteOffsetStore
from rocketmq_aio.consumer.offsets.start_position import StartPositions
from rocketmq_aio.consumer.pull_loop.log_check import stored_by
from rocketmq_aio.consumer.pull_loop.puller import Puller
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN, QueueState, Start
from rocketmq_aio.consumer.rebalance.apply_assignment import Assignments
from rocketmq_aio.consumer.rebalance.broker_assignment import BrokerAssignment
from rocketmq_aio.consumer.rebalance.rebalancer import Rebalancer
from rocketmq_aio.errors import (
    BrokerError,
    ConfigError,
    NotConnectedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.heartbeats import check_accepted
from rocketmq_aio.model.timestamps import millis_of
from rocketmq_aio.model.values import MessageModel, MessageQueue, MessageSelector
from rocketmq_aio.protocol.bodies import ConsumerData, ConsumerRunningInfo
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.static_topics import is_logical
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.remoting.gather import gather_limited

DEFAULT_INSTANCE: Final = "DEFAULT"  # in the path of the offset file, which has to be found again
QUERIES_AT_ONCE: Final = 16
FILE_SECONDS: Final = 5.0  # for unlocking the offset file
TAKEOVER_DELAY_SECONDS: Final = 0.3  # enough for a notified member to commit
# Of failing pulls, behind one that timed out: brokers drop a silent member after two minutes.
EXPIRED_SECONDS: Final = 60.0

Q = TypeVar("Q", bound=QueueState)


class GroupEngine(Generic[Q]):
    """A member of a consumer group; subclasses add the processing of messages.

    :param assignment: lets brokers assign the queues; None: every member computes its own share
    """

    commits: Commits[Q]
    fence: CommitFence[Q] | None  # None in broadcasting, and if locks decide what may be committed
    _assignments: Assignments[Q]
    _puller: Puller[Q]
    _drain_seconds: float  # for messages in flight when a queue is revoked
    consume_type: str = "CONSUME_ACTIVELY"

    def __init__(
        self,
        context: ConsumerContext[LitePullConfig] | ConsumerContext[PushConfig],
        *,
        assignment: BrokerAssignment | None = None,
        orderly: bool = False,
    ) -> None:
        self.context = context
        self.instance = context.instance
        self.group = context.group
        self.config = context.config
        self.events = context.events
        self.publish = context.publish
        self.statistics = context.statistics
        self._subscriptions = context.subscriptions
        self._tasks = context.tasks
        self.table: dict[MessageQueue, Q] = {}
        store: OffsetStore | None = context.config.offset_store
        if store is None and self.is_broadcasting:
            store = LocalFileOffsetStore()
        self.store = store or RemoteOffsetStore(context.instance.broker, context.group)
        self._file: LocalFileOffsetStore | None = None  # once it is open
        self._running = False
        self.starts = StartPositions(context.instance, context.config, self.store)
        self.rebalancer = Rebalancer(
            context, assignment=assignment, topics=self._shared_topics, apply=self._apply
        )
        self.checks = SubscriptionCheck(
            context,
            subscriptions=self._group_subscriptions,
            message_model=context.config.message_model,
            orderly=orderly,
        )
        self._missing = MissingTopics(context)

    @property
    def is_broadcasting(self) -> bool:
        return self.config.message_model is MessageModel.BROADCASTING

    def make_queue(self, queue: MessageQueue) -> Q:
        raise NotImplementedError

    def begin_pulling(self, assigned: Q) -> None:
        self.starts.note_assigned(assigned.queue)
        delay = self._takeover_delay
        self._tasks.spawn(self._puller.run, assigned, delay, name=f"pull-{assigned.queue}")

    @property
    def _takeover_delay(self) -> float:
        """The time until the previous owner has seen the change and committed."""
        return TAKEOVER_DELAY_SECONDS if self.rebalancer.has_other_members else 0.0

    async def rebalance(self) -> None:
        """Return after a complete round, when the previous owners of queues have committed."""
        self.rebalancer.expect_more()
        await self.rebalancer.wait_until_complete()
        await anyio.sleep(self._takeover_delay)

    async def admit(self, queues: tuple[MessageQueue, ...]) -> Collection[MessageQueue]:
        """Return the queues that may be assigned now."""
        return queues

    def keep_progress(self, assigned: Q) -> None:
        """Keep the progress of a revoked queue if its broker is away, which may lack it."""
        queue, offset, last = assigned.queue, assigned.committable, assigned.last_message
        if is_logical(queue) or not self._is_away(assigned):
            self.starts.forget(queue)
            return
        furthest = assigned.furthest if assigned.furthest_may_return else UNKNOWN
        has_progress = offset != UNKNOWN and (last is not None or furthest != UNKNOWN)
        if has_progress and self.commits.may_be_lost:
            self.starts.keep(queue, Start(offset, last_message=last), furthest)

    def _is_away(self, assigned: Q) -> bool:
        """Whether the broker of a queue does not respond."""
        try:
            address = self.instance.routes.master_of(assigned.queue)
        except NotConnectedError:
            return True
        if not self.instance.remoting.is_connected(address):
            return True
        return assigned.failing_since is not None and not self.commits.is_stored(assigned)

    async def on_released(self, released: list[Q]) -> None:
        """Clean up after the last commit of revoked queues."""
        for topic in {each.queue.topic for each in released} - self._subscriptions.keys():
            self.statistics.forget(topic)

    def on_pulled(self, assigned: Q, messages: int, passed: int) -> None:
        """Note a pull with progress: messages kept, and offsets passed."""
        topic = assigned.queue.topic
        if messages:
            self.statistics.note_pull(topic, messages, monotonic() - assigned.last_pull)
        if (wanted := self._subscriptions.get(topic)) and wanted.expression != "*":
            self.checks.matches.note(topic, passed, messages)

    def on_started(self, assigned: Q, *, new: bool) -> None:
        """Commit a *new* start position, which is not committed yet, unless it is the earliest."""
        # "latest" must mean the same after a crash: messages that arrive now are for the group.
        # The former offset of a topic that was created again must not come back.
        created_again = self.starts.was_gone(assigned.queue.topic)
        if self.fence is not None:
            self.fence.note_connection(assigned)
        if new and (self.config.start_from != "earliest" or created_again):
            assigned.trust()
            assigned.commit_due = True
            self._tasks.spawn(self.commits.commit_progress, (assigned,), name="start-position")

    async def on_corrected(self, assigned: Q) -> None:
        """Commit the position: pulling goes on at an earlier or reset offset."""
        self.commits.invalidate(assigned)  # a broker that lost messages may have lost commits, too
        # Also below a committed offset that the log does not reach any more.
        assigned.trust()
        assigned.commit_due = True
        await self.commits.commit_progress((assigned,))

    def on_cut_off(self, assigned: Q) -> None:
        """Commit no less than other members, who may have the queue by now."""
        assigned.invalidate_commits()
        now = asyncio.get_running_loop().time()
        since = now if assigned.failing_since is None else assigned.failing_since
        assigned.pull_expired |= now - since > EXPIRED_SECONDS

    def _connection(self, queue: MessageQueue) -> int:
        """Return the number of the connection to the master of *queue*; 0: there is none now."""
        return self.instance.current_connection(self.instance.routes.named_master(queue))

    def on_recovered(self, assigned: Q) -> None:
        """Commit again: the queue is pulled after failures."""
        self.commits.invalidate(assigned)
        master = self.instance.routes.named_master(assigned.queue)
        if self.fence is not None and master and self.instance.remoting.is_connected(master):
            self.fence.on_recovered(assigned)

    async def open(self) -> None:
        if isinstance(self.store, LocalFileOffsetStore):
            self._bind(self.store)
            self._file = self.store
        await self.store.load()
        await self._tasks.start()
        self.instance.register_consumer(self)
        self._running = True
        if self.fence is not None:
            self.fence.start()  # before any commit
        await self._prepare_all()
        check_accepted(await self.instance.heartbeats.send_all(self.group))
        self._tasks.spawn(self.rebalancer.run, name="rebalance")
        self._tasks.spawn(self.checks.keep_checking, name="group-check")
        interval = self.config.commit_interval_seconds
        self._tasks.spawn(self.commits.keep_committing, interval, name="commits")
        for topic in self._subscriptions:
            self._missing.check(topic)  # a shared instance may have looked for it already

    def _bind(self, store: LocalFileOffsetStore) -> None:
        """Give *store* its file: that of the group in its namespace."""
        config, namespace = self.instance.config, self.instance.remoting.namespace
        client_id = config.instance_name or DEFAULT_INSTANCE
        if namespace is not None:
            store.bind(client_id, namespace.outer(self.group), inner=namespace.inner)
        elif config.namespace is not None:  # version 2
            store.bind(client_id, f"{config.namespace}%{self.group}")
        else:
            store.bind(client_id, self.group)
        store.on_corrupt = self.publish

    async def _prepare_all(self) -> None:
        for wanted in list(self._subscriptions.values()):
            await self._prepare(wanted)

    def is_calling(self) -> bool:
        """Whether the current task is that of application code whose end a close waits for."""
        return self._assignments.is_in_listener()

    def stop_calling(self) -> None:
        """Start no more calls of application code: the consumer closes after the current ones."""

    async def _leave(self) -> None:
        self.events.close()
        self._puller.close()
        if self.fence is not None:
            self.fence.stop()
        try:
            await self.instance.unregister_consumer(self)
        finally:
            if self._file is not None:
                # Shielded: otherwise the file stays locked.  With a limit: a disk may hang.
                with anyio.move_on_after(FILE_SECONDS, shield=True):
                    await self._file.close()

    def fail(self) -> None:
        """Wake all waiting callers and leave the group: the instance has failed."""
        self._running = False
        self.rebalancer.end()
        for assigned in self.table.values():
            assigned.started.set()
        self.events.close()
        if self.fence is not None:
            self.fence.stop()
            self.fence.invalidate()  # others work on until this consumer is closed
        self.instance.drop_consumer(self)

    async def subscribe(self, topic: str, selector: str | MessageSelector) -> None:
        await self.context.subscribe(topic, selector, self._replace if self._running else None)

    async def _replace(self, wanted: Subscription) -> None:
        topic = wanted.topic
        await self._prepare(wanted)
        before = self._subscriptions.get(topic)
        self._choose(wanted)
        self.rebalancer.expect_more()
        try:
            check_accepted(await self.instance.heartbeats.send_all(self.group))
        except (BrokerError, asyncio.CancelledError):
            # Kept, it would be in heartbeats, which brokers reject as a whole, maybe later.
            self._withdraw(wanted, before)
            raise
        self.rebalancer.wake()
        self.checks.wake()

    def _withdraw(self, refused: Subscription, before: Subscription | None) -> None:
        """Return to *before*, unless a later call has replaced *refused*."""
        topic = refused.topic
        if self._subscriptions.get(topic) is not refused:
            return
        if before is None:
            self._end_delivery(topic)
        else:  # newer than *refused*, which some brokers may have accepted
            self._choose(before.after(refused))
            self._tasks.spawn(self.instance.heartbeats.send_all, self.group, name=f"undo-{topic}")

    async def unsubscribe(self, topic: str, *, drain_seconds: float = 0.0) -> None:
        """Stop reading *topic*; messages in flight may finish within *drain_seconds*.

        If a change may wait for the caller, only the delivery has ended when this returns.
        """
        ended = self._subscriptions.get(topic)
        if not self._running or ended is None:
            self._forget(topic)
        elif self._may_wait_for_caller():
            self._end_delivery(topic, drain_seconds)
        else:
            # Removed together with its queues: a cancelled call changes nothing.
            await self._assignments.change(
                {topic}, partial(self._end, ended), drain_seconds=drain_seconds
            )
            await self.instance.heartbeats.send_all(self.group)

    def _end_delivery(self, topic: str, drain_seconds: float = 0.0) -> None:
        """Forget the subscription now, and revoke the queues in the background."""
        self._forget(topic)
        for assigned in self._of_topic(topic):
            assigned.drop()
        self._tasks.spawn(self._leave_topic, topic, drain_seconds, name=f"leave-{topic}")

    def _end(self, subscription: Subscription) -> Iterable[MessageQueue]:
        """Forget *subscription*, unless a later call has replaced it; return the queues to keep."""
        topic = subscription.topic
        if self._subscriptions.get(topic) is subscription:
            return self._forget(topic)
        return [each.queue for each in self._of_topic(topic)]

    async def _leave_topic(self, topic: str, drain_seconds: float) -> None:
        """Revoke the queues of *topic*; after another subscription only the dropped ones."""

        def wanted() -> Iterable[MessageQueue]:
            kept = [each.queue for each in self._of_topic(topic) if not each.dropped]
            return kept if topic in self._subscriptions else ()

        await self._assignments.change({topic}, wanted, drain_seconds=drain_seconds)
        if topic in self._subscriptions:
            self.rebalancer.expect_more()
        await self.instance.heartbeats.send_all(self.group)

    def _of_topic(self, topic: str) -> list[Q]:
        return [assigned for queue, assigned in self.table.items() if queue.topic == topic]

    def _may_wait_for_caller(self) -> bool:
        """Whether a change of the assignment may wait for the current task."""
        return self._assignments.is_changing_here()

    def _forget(self, topic: str) -> tuple[MessageQueue, ...]:
        self._subscriptions.pop(topic, None)
        self.starts.forget_topic(topic)
        self._missing.forget(topic)
        return ()

    def _choose(self, wanted: Subscription) -> None:
        known = self._subscriptions.get(wanted.topic)
        self._subscriptions[wanted.topic] = wanted
        self.instance.use_topic(self, wanted.topic)
        if self._running:
            self._missing.check(wanted.topic)
        if known is None or known.selects_same(wanted):
            return
        for assigned in self._of_topic(wanted.topic):
            assigned.refetch()  # the cache was selected by the old expression

    async def _prepare(self, wanted: Subscription, *, note: bool = True) -> None:
        """Get the route, check the filter and note the topic, before heartbeats announce it."""
        await self.know_route(wanted.topic)
        if wanted.is_sql:
            client_id = self.instance.client_id
            await self.instance.broker.check_filter(client_id, self.group, wanted)
        if note:
            await self.starts.note_topic(wanted.topic)

    async def know_route(self, topic: str) -> None:
        """Get the route; a missing topic is looked up again in the background."""
        with suppress(RouteNotFoundError):
            await self.instance.routes.get(topic)

    def _shared_topics(self) -> Collection[str]:
        return self._subscriptions

    def _wanted(self, shares: Mapping[str, Collection[MessageQueue]]) -> Iterable[MessageQueue]:
        """Return the queues to hold; evaluated at the change, as topics may have changed."""
        if not self._running:
            return ()
        return [q for t, share in shares.items() if t in self._subscriptions for q in share]

    async def _apply(self, shares: dict[str, frozenset[MessageQueue]]) -> bool:
        self.starts.note_shares(shares)
        return await self._assignments.change(
            shares, lambda: self._wanted(shares), drain_seconds=self._drain_seconds
        )

    async def wait_until_ready(self) -> None:
        """Return when queues are assigned and the start offset of each is known.

        :raises PermissionDeniedError: the account may not read offsets
        :raises AuthError: brokers do not know the account (any more)
        """
        await self.rebalancer.wait_until_complete()
        await self._wait_until_all_started()

    def why_not_ready(self) -> str:
        """Return what `wait_until_ready` waits for."""
        for assigned in self.table.values():
            if not assigned.started.is_set():
                cause = assigned.start_error or "brokers have not responded"
                return f"the start offset of {assigned.queue} is not known: {cause}"
        if not self._subscriptions:
            return "it has no subscription"
        unassigned = self._subscriptions.keys() - {queue.topic for queue in self.table}
        topics = sorted(unassigned or self._subscriptions)
        return f"no complete assignment yet of {', '.join(topics)}"

    async def _wait_until_all_started(self) -> None:
        for assigned in list(self.table.values()):
            await assigned.started.wait()
            if not assigned.started.is_set() and assigned.start_error is not None:
                raise assigned.start_error  # `fail_start` woke this caller

    async def wait_until_started(self, assigned: QueueState) -> None:
        """Return when the queue is started or dropped.

        :raises RocketMQError: its start offset cannot be determined now
        """
        seconds = self.instance.config.request_timeout_seconds
        with anyio.move_on_after(seconds):
            await assigned.started.wait()
        if not assigned.started.is_set():
            code, broker = RequestCode.QUERY_CONSUMER_OFFSET, assigned.queue.broker_name
            raise assigned.start_error or RequestTimeoutError(broker, code, seconds)

    def _pulled(self) -> Collection[Q]:
        """Return the queues that are pulled; others have no position here."""
        return self.table.values()

    async def lag(self) -> dict[MessageQueue, int]:
        """Return the distance from the position to the end of each pulled queue.

        :raises RocketMQError: a broker did not respond, or the start of a queue is unknown
        """
        lag: dict[MessageQueue, int] = {}

        async def fetch(assigned: QueueState) -> None:
            await self.wait_until_started(assigned)
            end = await self.instance.broker.max_offset(assigned.queue)
            if not assigned.dropped:
                lag[assigned.queue] = max(0, end - assigned.position)

        (await gather_limited(fetch, self._pulled(), QUERIES_AT_ONCE)).complete()
        return dict(sorted(lag.items()))

    def on_failed(self, cause: BaseException) -> None:
        """Fail the consumer; it calls `fail`."""
        self.context.on_failed(cause)

    def topics(self) -> set[str]:
        return {*self._subscriptions, *(queue.topic for queue in self.table)}

    def on_route_changed(self, topic: str) -> None:
        """Rebalance after queues were added, removed or moved; pull from new masters at once."""
        held = self._of_topic(topic)  # also queues that are being revoked
        if topic not in self._subscriptions and not held:
            return
        self._missing.check(topic)
        if self.instance.routes.is_gone(topic):
            self.starts.note_gone(topic, self._latest_store_times(topic))
        elif self.instance.routes.known(topic) is not None:
            self.starts.note_back(topic)
        if topic in self._shared_topics():
            self.rebalancer.wake()
        for assigned in held:
            master = self.instance.routes.master(assigned.queue.broker_name)
            has_new_master = master is not None and assigned.master not in (None, master)
            if is_logical(assigned.queue) or has_new_master:
                assigned.interrupt()  # the former broker still holds the pull

    def _latest_store_times(self, topic: str) -> dict[str, int]:
        """Return the newest store time that was pulled from each broker, in milliseconds."""
        latest: dict[str, int] = {}
        for assigned in self._of_topic(topic):
            if (last := stored_by(assigned.queue, assigned.last_message)) is not None:
                name, millis = assigned.queue.broker_name, millis_of(last.store_time)
                latest[name] = max(millis, latest.get(name, millis))
        return latest

    def on_members_changed(self) -> None:
        self.commits.wake()  # before the next owners, which may not wait, read the offsets
        self.rebalancer.wake()
        self.checks.wake()

    def on_own_id_queried(self, check_id: str) -> None:
        self.checks.on_own_id_queried(check_id)

    async def check_in_range(self, queue: MessageQueue, offset: int) -> None:
        """Validate the offset of a seek.  Raises ConfigError: *queue* has no such offset."""
        least = await self.instance.broker.min_offset(queue)
        largest = await self.instance.broker.max_offset(queue)
        if not least <= offset <= largest:
            reason = f"the queue has offsets from {least} to {largest}"
            raise ConfigError("offset", offset, reason)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        for queue in offsets:
            self.starts.forget(queue)
        mine = {self.table[q]: o for q, o in offsets.items() if q in self.table}
        for assigned, offset in mine.items():
            assigned.move(offset)
            assigned.commit_due = True
        await self.commits.commit_progress(mine)

    async def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        held = self._of_topic(topic)
        return {each.queue: each.position for each in held if each.position != UNKNOWN}

    def heartbeat_data(self) -> ConsumerData:
        return heartbeat_data(self.context, self.consume_type, self._group_subscriptions())

    def running_info(self) -> ConsumerRunningInfo:
        return self.checks.describe(self._running_info(), leaving=not self._running)

    def _running_info(self) -> ConsumerRunningInfo:
        raise NotImplementedError

    def _group_subscriptions(self) -> Iterable[Subscription]:
        return self._subscriptions.values()
