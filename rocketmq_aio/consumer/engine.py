"""The parts of a lite pull consumer, put together: who tells whom, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

import anyio

from rocketmq_aio.config import LitePullConfig
from rocketmq_aio.consumer.assigned import AssignedQueue, Cache
from rocketmq_aio.consumer.callbacks import Listener
from rocketmq_aio.consumer.commits import Commits
from rocketmq_aio.consumer.events import EventStreams
from rocketmq_aio.consumer.line import Line
from rocketmq_aio.consumer.offset_file import LocalFileOffsetStore
from rocketmq_aio.consumer.offsets import OffsetStore, RemoteOffsetStore
from rocketmq_aio.consumer.puller import Puller
from rocketmq_aio.consumer.queue_watch import QueueWatch
from rocketmq_aio.consumer.rebalance import Rebalancer
from rocketmq_aio.consumer.running_info import running_info
from rocketmq_aio.consumer.start_position import StartPositions
from rocketmq_aio.consumer.tenures import DRAIN_SECONDS, Tenures
from rocketmq_aio.errors import (
    ConfigError,
    RequestTimeoutError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.heartbeats import check_accepted
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.instance.owners import ConsumerOwner
from rocketmq_aio.message import MessageModel, MessageQueue, MessageSelector
from rocketmq_aio.protocol.bodies import ConsumerData, ConsumerRunningInfo
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.subscription import Subscription, subscription
from rocketmq_aio.remoting.tasks import TaskHost

QUERIES_AT_ONCE: Final = 16
DEFAULT_INSTANCE: Final = "DEFAULT"  # names the offset file, which has to be found again
HAND_OVER_SECONDS: Final = 0.3  # a member that is told of a change commits well within this time
EXCLUSIVE: Final = "subscribe() and assign() exclude each other in one consumer"


class LitePullEngine:
    """Everything behind the public face of `LitePullConsumer`."""

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        config: LitePullConfig,
        *,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self.instance = instance
        self.group = group
        self.config = config
        self.table: dict[MessageQueue, AssignedQueue] = {}
        self.events = EventStreams()
        self.store = self._make_store()
        self._file: LocalFileOffsetStore | None = None  # once it is open
        self._subscriptions: dict[str, Subscription] = {}
        self._wanted: frozenset[MessageQueue] | None = None  # in assign mode
        self._running = False
        self.giving_up = False  # closing, and the queues can still be committed
        self.commits = Commits(
            self.store, self.table, automatic=config.auto_commit, on_event=self.events.publish
        )
        cache = Cache()
        self.line = Line(cache)
        self._starts = StartPositions(instance, config, self.store)
        self._puller = self._make_puller(cache)
        self._tenures = Tenures(
            self.table,
            cache,
            self.commits,
            begin=self._begin_pulling,
            on_event=self.events.publish,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        self.rebalancer = Rebalancer(
            instance, group, config, topics=self._shared_topics, apply=self._apply
        )
        self._host = TaskHost(f"rocketmq:{group}", on_failure=on_failed)
        self._watch = QueueWatch(instance.routes, self._host)

    # --- life -----------------------------------------------------------------------------------

    async def open(self, owner: ConsumerOwner) -> None:
        """Join with what was prepared, and begin to work."""
        if isinstance(self.store, LocalFileOffsetStore):
            self.store.bind(self.instance.config.instance_name or DEFAULT_INSTANCE, self.group)
            self.store.on_corrupt = self.events.publish
            self._file = self.store
        await self.store.load()
        await self._host.start()
        self.instance.register_consumer(owner)
        self._running = True
        for wanted in list(self._subscriptions.values()):
            await self._prepare(wanted, note=self._wanted is None)
        if self._wanted is not None:
            await self._tenures.change(None, lambda: self._wanted or ())
        check_accepted(await self.instance.heartbeats.beat_all(anew=True))
        if self._wanted is None:
            self._host.spawn(self.rebalancer.run, name="rebalance")
        interval = self.config.commit_interval_seconds
        self._host.spawn(self.commits.keep_committing, interval, name="commits")
        check = self.config.topic_check_interval_seconds
        self._host.spawn(self._watch.keep_watching, check, name="queue-watch")

    async def shut(self, owner: ConsumerOwner, *, last_batch_done: bool) -> None:
        """Stop pulling, commit what is settled, leave the group, release everything."""
        self._running = False
        self.line.end()
        self.rebalancer.end()
        if last_batch_done:
            self.line.settle_handed()
        try:
            await self._host.close()
            self.giving_up = True
            await self._tenures.release_all()
        finally:  # also when that took too long
            self.giving_up = False
            self.events.close()
            try:
                await self.instance.unregister_consumer(owner)
            finally:
                await self._close_file()

    def fail(self) -> None:
        """Nothing works any more: let go of everybody who waits for something."""
        self._running = False
        self.line.end()
        self.rebalancer.end()
        for assigned in self.table.values():
            assigned.started.set()
        self.events.close()

    async def _close_file(self) -> None:
        if self._file is not None:
            with anyio.CancelScope(shield=True):  # else nobody could use the file again
                await self._file.close()

    def _make_puller(self, cache: Cache) -> Puller:
        return Puller(
            self.instance,
            self.group,
            self.config,
            self._starts,
            cache,
            subscription_of=self._subscriptions.get,
            on_messages=self.line.add,
            on_start=self._note_start,
            on_corrected=self._note_correction,
            on_recovered=self.commits.doubt,
            on_event=self.events.publish,
        )

    def _make_store(self) -> OffsetStore:
        store: OffsetStore | None = self.config.offset_store
        if store is None and self.config.message_model is MessageModel.BROADCASTING:
            store = LocalFileOffsetStore()
        return store or RemoteOffsetStore(self.instance.broker, self.group)

    # --- what to read ---------------------------------------------------------------------------

    async def subscribe(self, topic: str, selector: str | MessageSelector, version: int) -> None:
        """Read *topic* as a member of the group."""
        self._check_mode("topic", topic, by_hand=False)
        wanted = subscription(topic, selector, version)
        if not self._running:
            self._subscriptions[topic] = wanted
            return
        await self._prepare(wanted, note=True)
        self._check_mode("topic", topic, by_hand=False)
        self._choose(wanted)
        self.rebalancer.expect_more()
        check_accepted(await self.instance.heartbeats.beat_all(anew=True))
        self.rebalancer.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading *topic*."""
        if self._running and topic in self._subscriptions:
            # Forgotten with its queues: a caller who is cancelled before leaves it as it was.
            await self._tenures.change({topic}, lambda: self._forget(topic))
            await self.instance.heartbeats.beat_all(anew=True)
        else:
            self._forget(topic)

    def _forget(self, topic: str) -> tuple[MessageQueue, ...]:
        self._subscriptions.pop(topic, None)
        self._starts.forget_topic(topic)
        self._watch.forget(topic)
        return ()

    async def assign(
        self, queues: Collection[MessageQueue], selector: str | MessageSelector, version: int
    ) -> None:
        """Read exactly *queues*."""
        self._check_mode("queues", queues, by_hand=True)
        chosen = _checked_queues(queues)
        wanted = [subscription(t, selector, version) for t in {q.topic for q in chosen}]
        if not self._running:
            self._assign(chosen, wanted)
            return
        for each in wanted:
            await self._prepare(each, note=False)
        self._check_mode("queues", queues, by_hand=True)
        self._assign(chosen, wanted)
        await self._tenures.change(None, lambda: self._wanted or ())
        await self.instance.heartbeats.beat_all(anew=True)

    def _check_mode(self, setting: str, value: object, *, by_hand: bool) -> None:
        if self._subscriptions and by_hand != (self._wanted is not None):
            raise ConfigError(setting, value, EXCLUSIVE)

    def _assign(self, chosen: frozenset[MessageQueue], wanted: Iterable[Subscription]) -> None:
        self._wanted = chosen
        for each in wanted:
            self._choose(each)
        for topic in set(self._subscriptions) - {queue.topic for queue in chosen}:
            del self._subscriptions[topic]

    def _choose(self, wanted: Subscription) -> None:
        """Pull with another expression from now on."""
        known = self._subscriptions.get(wanted.topic)
        self._subscriptions[wanted.topic] = wanted
        if known is None or (known.kind, known.expression) == (wanted.kind, wanted.expression):
            return
        for queue, assigned in self.table.items():
            if queue.topic == wanted.topic:
                assigned.refetch()  # what is cached was chosen by the old expression

    async def listen(self, topic: str, listener: Listener) -> None:
        """Tell *listener* when the queues of *topic* change."""
        self._watch.add(topic, listener)
        if self._running:
            await self.know_route(topic)

    async def _prepare(self, wanted: Subscription, *, note: bool) -> None:
        """Learn what has to be known of a topic before the group hears of the subscription."""
        await self.know_route(wanted.topic)
        if wanted.is_sql:
            client_id = self.instance.client_id
            await self.instance.broker.check_filter(client_id, self.group, wanted)
        if note:
            await self._starts.note_topic(wanted.topic)

    async def know_route(self, topic: str) -> None:
        """Ask for the route; a topic that does not exist yet is waited for in the background."""
        try:
            await self.instance.routes.get(topic)
        except RouteNotFoundError:
            return

    def _shared_topics(self) -> Collection[str]:
        """Topics whose queues are shared out among the group; none in assign mode."""
        return () if self._wanted is not None else self._subscriptions

    async def _apply(self, shares: dict[str, frozenset[MessageQueue]]) -> None:
        def wanted() -> Iterable[MessageQueue]:
            # Asked under the lock: in the meantime a topic may have been left, or all of them
            # and queues been assigned instead.
            if self._wanted is not None:
                return [queue for queue in self._wanted if queue.topic in shares]
            return [q for t, share in shares.items() if t in self._subscriptions for q in share]

        await self._tenures.change(shares, wanted, drain_seconds=DRAIN_SECONDS)

    def _begin_pulling(self, assigned: AssignedQueue) -> None:
        # Who had the queue before learns of the change at the same time, and is to commit first.
        wait = HAND_OVER_SECONDS if self.rebalancer.in_company else 0.0
        self._host.spawn(self._puller.run, assigned, wait, name=f"pull-{assigned.queue}")

    def _note_start(self, assigned: AssignedQueue, chosen: bool) -> None:
        # "latest" must mean the same after a crash: messages that come now belong to the group.
        if chosen and self.config.start_from != "earliest":
            self._host.spawn(self._note_correction, assigned, name="start-position")

    async def _note_correction(self, assigned: AssignedQueue) -> None:
        """Store where a queue stands, whoever commits otherwise: nobody has read before it."""
        if not assigned.dropped:
            await self.commits.store_offsets({assigned.queue: assigned.settled})

    # --- questions ------------------------------------------------------------------------------

    async def wait_until_ready(self) -> None:
        """Return when an assignment stands and all its queues know where to begin."""
        if self._wanted is None:
            await self.rebalancer.wait_until_settled()
        for assigned in list(self.table.values()):
            await assigned.started.wait()

    async def wait_until_started(self, assigned: AssignedQueue) -> None:
        """Return when it is known where the queue begins, or that it is not read any more.

        :raises RocketMQError: that cannot be known now
        """
        seconds = self.instance.config.request_timeout_seconds
        with anyio.move_on_after(seconds):
            await assigned.started.wait()
        if not assigned.started.is_set():
            code, broker = RequestCode.QUERY_CONSUMER_OFFSET, assigned.queue.broker_name
            raise assigned.trouble or RequestTimeoutError(broker, code, seconds)

    async def lag(self) -> dict[MessageQueue, int]:
        """Ask for the end of every assigned queue."""
        found: dict[MessageQueue, int] = {}
        failures: list[RocketMQError] = []
        limit = anyio.CapacityLimiter(QUERIES_AT_ONCE)

        async def ask(assigned: AssignedQueue) -> None:
            async with limit:
                try:
                    await self.wait_until_started(assigned)
                    end = await self.instance.broker.max_offset(assigned.queue)
                except RocketMQError as error:
                    failures.append(error)
                    return
            if not assigned.dropped:
                found[assigned.queue] = max(0, end - assigned.delivered)

        async with anyio.create_task_group() as tasks:
            for assigned in list(self.table.values()):
                tasks.start_soon(ask, assigned)
        if failures:
            raise failures[0]
        return dict(sorted(found.items()))

    async def offset_range(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the smallest and largest offset that a seek may go to."""
        least = await self.instance.broker.min_offset(queue)
        return least, await self.instance.broker.max_offset(queue)

    async def start_of(self, queue: MessageQueue, start: str | datetime) -> int:
        """Return the offset of the beginning, the end or an instant."""
        return await self._starts.offset_of(queue, start)

    # --- for the instance -----------------------------------------------------------------------

    def topics_in_use(self) -> set[str]:
        """Topics whose routes must be fresh."""
        return {*self._subscriptions, *self._watch.topics(), *(q.topic for q in self.table)}

    def on_route_changed(self, topic: str) -> None:
        """Queues came or went."""
        self.rebalancer.wake()
        self._watch.check(topic)

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on where an administrator says, and commit it."""
        mine = {q: o for q, o in offsets.items() if q in self.table}
        for queue, offset in mine.items():
            self.table[queue].move(offset)
        await self.commits.store_offsets(mine)

    def heartbeat_data(self) -> ConsumerData:
        """What heartbeats tell; queues assigned by hand are nobody's business."""
        subscribed = self._subscriptions.values() if self._wanted is None else ()
        start = self.config.start_from
        kind = {"latest": "LAST_OFFSET", "earliest": "FIRST_OFFSET"}.get(str(start), "TIMESTAMP")
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            message_model=self.config.message_model.value,
            consume_from_where=f"CONSUME_FROM_{kind}",
            subscription_data_set=[each.to_body() for each in subscribed],
        )

    def running_info(self) -> ConsumerRunningInfo:
        """The state, for administration tools."""
        known = {
            "PROP_NAMESERVER_ADDR": ";".join(self.instance.name_servers.addresses),
            "PROP_CONSUMER_START_TIMESTAMP": str(self.instance.started_ms),
        }
        return running_info(self.config, self._subscriptions.values(), self.table.values(), known)


def _checked_queues(queues: object) -> frozenset[MessageQueue]:
    chosen = frozenset(queues) if isinstance(queues, Collection) else frozenset()
    if not chosen or not all(isinstance(each, MessageQueue) for each in chosen):
        raise ConfigError("queues", queues, "expected at least one MessageQueue")
    return chosen
