"""Start positions: the committed offset of a queue, or the one that ``start_from`` means."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from time import monotonic, time_ns
from typing import Any, Final

import anyio

from rocketmq_aio.config.consumer import ConsumerConfig, OffsetStore
from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.offsets.remote_store import RemoteOffsetStore
from rocketmq_aio.consumer.pull_loop.queue_state import Start
from rocketmq_aio.errors import (
    NotConnectedError,
    NotSupportedError,
    PermissionDeniedError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.timestamps import millis_of
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)

READS_AT_ONCE: Final = 16
NOTING_SECONDS: Final = 0.5
FIRST_ASSIGNMENT_SECONDS: Final = 5.0  # after a broker has a topic that was created again
# How much the clock of a broker may differ from ours, if it can be told from pulled messages.
SKEW_MS: Final = 600_000
# Name servers that were away may know a slave first, and slaves copy offsets every 10 s.
COPIED_SECONDS: Final = 10.0
GET_IS_MISSING: Final = (
    "to begin at {start} the account has to know where queues end: give it the action Get on "
    "Topic:{topic} (access control 2.0), or begin at the earliest message"
)


@dataclass(eq=False)
class _Gone:
    """A topic that no name server knew."""

    latest_ms: Mapping[str, int]  # the newest store time that was pulled before, by broker name
    since_ms: int = field(default_factory=lambda: time_ns() // 1_000_000)  # when that was noticed
    # When it was known again, by `boottime` and by broker name: brokers can create it one after
    # another.
    back_at: dict[str, float] = field(default_factory=dict)
    assigned: set[MessageQueue] = field(default_factory=set)  # queues that this member had since
    deleted: dict[str, bool] = field(default_factory=dict)  # by broker name
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    def is_older(self, stored_ms: int, broker_name: str) -> bool:
        """Whether a message of *broker_name* was stored before, or may have been."""
        latest = self.latest_ms.get(broker_name)
        if latest is None:
            return 0 <= stored_ms < self.since_ms
        return 0 <= stored_ms <= max(latest, self.since_ms - SKEW_MS)


class StartPositions:
    """Finds the start offset once per assignment of a queue; never guesses one.

    ``start_from`` applies to a group that is new to a topic.  A queue that is added to the topic
    later holds only messages that are new to the group, so it is read from its beginning.
    """

    def __init__(
        self, instance: MQClientInstance, config: ConsumerConfig, store: OffsetStore
    ) -> None:
        self._broker = instance.broker
        self._routes = instance.routes
        self._start_from = config.start_from
        self._store = store
        self._first_seen: dict[str, frozenset[MessageQueue]] = {}  # queues start_from applies to
        self._ends: dict[MessageQueue, int] = {}  # of them, when they were noted
        self._gone: dict[str, _Gone] = {}
        # Queues of topics that were created again: committed offsets may be older (brokers of
        # 4.9.7 keep those of a deleted topic).
        self._created_again: dict[MessageQueue, _Gone] = {}
        self._lacking: dict[MessageQueue, float] = {}  # since when a slave has no offset of them
        # Of queues that were revoked while their brokers were away, see `keep`.
        self._kept: dict[MessageQueue, tuple[Start, int]] = {}

    async def note_topic(self, topic: str) -> None:
        """Note the queues of the topic before this consumer joins the group.

        If the group has an offset in any of them, it is not new to the topic.

        :raises RocketMQError: the route or offsets cannot be read now
        """
        if self._start_from == "earliest" or topic in self._first_seen:
            return
        if topic.startswith(RETRY_PREFIX):  # it is read from its beginning
            return
        try:
            route = await self._routes.get(topic)
        except RouteNotFoundError:
            self._first_seen[topic] = frozenset()
            return
        queues = route.subscribe_queues
        known = await self._count_known(queues)
        if 0 < known < len(queues):
            # Or the members of a new group start together: let the others note the topic.
            await anyio.sleep(NOTING_SECONDS)
        if not known and self._start_from == "latest":
            # What is sent from now on is read, however long the first assignment takes.
            ends, _ = await gather_limited(self._broker.max_offset, queues, READS_AT_ONCE)
            self._ends.update(ends)
        self._first_seen[topic] = frozenset(() if known else queues)

    def note_gone(self, topic: str, latest_ms: Mapping[str, int]) -> None:
        """Note that *topic* was deleted: if it is created again, all its messages are new.

        :param latest_ms: the newest store time that was pulled, by broker name
        """
        self._gone[topic] = _Gone(latest_ms)
        _discard_topic(self._kept, topic)
        if topic in self._first_seen:
            self._first_seen[topic] = frozenset()

    def was_gone(self, topic: str) -> bool:
        """Whether *topic* was deleted since the subscription, as far as is known."""
        return topic in self._gone

    def note_back(self, topic: str) -> None:
        """Note who has *topic* now: what is committed after the first assignment is right."""
        gone, route = self._gone.get(topic), self._routes.known(topic)
        if gone is not None and route is not None:
            for queue in route.subscribe_queues:
                gone.back_at.setdefault(queue.broker_name, boottime())

    def note_assigned(self, queue: MessageQueue) -> None:
        """Note an assignment, before `find` is called."""
        self._created_again.pop(queue, None)
        self._lacking.pop(queue, None)
        gone = self._gone.get(queue.topic)
        if gone is None or queue in gone.assigned:
            return
        since = boottime() - FIRST_ASSIGNMENT_SECONDS
        if gone.back_at.get(queue.broker_name, since) > since:
            gone.assigned.add(queue)
            self._created_again[queue] = gone

    def keep(self, queue: MessageQueue, progress: Start, furthest: int) -> None:
        """Keep the progress of a queue that is revoked because its broker is away.

        The broker may have lost the last commits: what was processed since would be repeated.

        :param furthest: a committed offset up to there does not count: the position was set back
        """
        self._kept[queue] = progress, furthest

    def forget(self, queue: MessageQueue) -> None:
        """Forget the progress of *queue*: the offset at its broker is right."""
        self._kept.pop(queue, None)

    def note_shares(self, shares: Mapping[str, Collection[MessageQueue]]) -> None:
        """Forget the progress in queues of returned brokers that other members have now."""
        for queue in list(self._kept):
            route = self._routes.known(queue.topic)
            is_back = route is not None and queue in route.subscribe_queues
            if is_back and queue not in shares.get(queue.topic, (queue,)):
                del self._kept[queue]

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is unsubscribed."""
        self._first_seen.pop(topic, None)
        self._gone.pop(topic, None)
        tables: tuple[dict[MessageQueue, Any], ...]
        tables = self._created_again, self._ends, self._lacking, self._kept
        for table in tables:
            _discard_topic(table, topic)

    async def find(self, queue: MessageQueue) -> Start:
        """Return the committed offset, the kept one if that is later or was set, or a new one.

        :raises RocketMQError: it cannot be determined now
        """
        new_group = queue in self._first_seen.get(queue.topic, frozenset({queue}))
        # All messages of a retry topic are for the group.
        is_earliest = not new_group or queue.topic.startswith(RETRY_PREFIX)
        start = "earliest" if is_earliest else self._start_from
        stored = await self._stored(queue, may_lack=start == "earliest")
        if stored and await self._is_outdated(queue):
            logger.warning("offset_older_than_topic", queue=str(queue), offset=stored)
            stored, start = None, "earliest"
            self.forget(queue)
        self._created_again.pop(queue, None)
        if queue in self._kept:
            kept, furthest = self._kept[queue]
            if stored is None or stored < kept.offset or stored <= furthest:
                offset = kept.offset
                logger.info("progress_resumed", queue=str(queue), offset=offset, committed=stored)
                return kept
        if stored is not None:
            return Start(stored)
        noted = self._ends.get(queue) if start == "latest" else None
        offset = await self.offset_of(queue, start) if noted is None else noted
        logger.debug("start_position", queue=str(queue), start_from=str(start), offset=offset)
        return Start(offset, is_new=True)

    async def _is_outdated(self, queue: MessageQueue) -> bool:
        """Whether the committed offset is one of a former topic of that name."""
        gone = self._created_again.get(queue)
        if gone is None:
            return False
        broker_name = queue.broker_name
        async with gone.lock:
            if broker_name not in gone.deleted:
                route = await self._routes.get(queue.topic)
                queues = [q for q in route.subscribe_queues if q.broker_name == broker_name]
                if not queues:  # its broker, which may be restarting, is not registered again yet
                    raise RouteNotFoundError(queue.topic, f"no route names {broker_name}")
                gone.deleted[broker_name] = not await self._has_older(queues, gone)
        return gone.deleted[broker_name]

    async def _has_older(self, queues: list[MessageQueue], gone: _Gone) -> bool:
        """Whether any of *queues* has messages from before the topic was gone, or may have.

        A topic that name servers did not know for a while need not have been deleted: messages
        can have been stored and committed all the time.
        """

        async def has_older(queue: MessageQueue) -> bool:
            stored_ms = await self._broker.earliest_store_time(queue)
            return gone.is_older(stored_ms, queue.broker_name)

        try:
            answers = await gather_limited(has_older, queues, READS_AT_ONCE)
            # One is enough: failures matter only without it.
            return any(answers.results.values()) or any(answers.complete().values())
        except (PermissionDeniedError, NotSupportedError):
            return True  # an account that may pull need not be allowed to query, and a proxy cannot

    async def offset_of(self, queue: MessageQueue, start: str | datetime) -> int:
        """Return the offset of a start position in *queue* now.

        :raises PermissionDeniedError: the account may not query it
        """
        try:
            if isinstance(start, datetime):
                return await self._broker.offset_for_time(queue, millis_of(start))
            if start == "latest":
                return await self._broker.max_offset(queue)
            return await self._broker.min_offset(queue)
        except PermissionDeniedError as error:
            if start == "earliest":
                # An account that may pull need not be allowed to query (access control 2.0):
                # the response to the first pull has the first offset.
                return 0
            error.add_note(GET_IS_MISSING.format(start=start, topic=queue.topic))
            raise

    async def _stored(self, queue: MessageQueue, *, may_lack: bool) -> int | None:
        """Return the committed offset; without a master the one that a slave has copied.

        :param may_lack: None if the slave has none for a while: it may not have copied it yet, so
            only the beginning of the queue is a safe start then
        """
        try:
            return await self._store.read(queue)
        except NotConnectedError as error:
            if not isinstance(self._store, RemoteOffsetStore) or self._routes.named_master(queue):
                raise
            copied = await self._store.read_copy(queue)
            if copied is None:
                now = monotonic()
                since = self._lacking.setdefault(queue, now)
                if not may_lack or now - since < COPIED_SECONDS:
                    raise error from None
            return copied

    async def _count_known(self, queues: tuple[MessageQueue, ...]) -> int:
        """Return in how many of *queues* the group has an offset.

        :raises RocketMQError: none was found, and the offset of a queue could not be read
        """
        stored = partial(self._stored, may_lack=False)
        offsets = await gather_limited(stored, queues, READS_AT_ONCE)
        known = sum(offset is not None for offset in offsets.results.values())
        if not known:
            offsets.complete()
        return known


def _discard_topic(table: dict[MessageQueue, Any], topic: str) -> None:
    for queue in [each for each in table if each.topic == topic]:
        del table[queue]
