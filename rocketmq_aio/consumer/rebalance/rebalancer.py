"""Rebalancer: computes the queues of this member whenever topics or members change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import anyio

from rocketmq_aio.config.consumer import AllocateStrategy, ConsumerConfig
from rocketmq_aio.consumer.checks.missing_group import MissingGroup
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.rebalance.broker_assignment import BrokerAssignment
from rocketmq_aio.consumer.rebalance.strategies.allocation import (
    allocate,
    in_namespace,
    strategy_for,
)
from rocketmq_aio.errors import ConfigError, NotSupportedError, RocketMQError, RouteNotFoundError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageModel, MessageQueue
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)

TOPICS_AT_ONCE: Final = 16  # a broker that does not respond must not delay every topic in turn
INCOMPLETE_SECONDS: Final = 0.5  # until the next round after an incomplete one
LEAST_SECONDS: Final = 0.1  # between rounds: a flood of notifications is one round
# Each member that joins or leaves wakes all others: in large groups rounds are less frequent, or
# brokers and members would have time for nothing else while many members start or stop.
MEMBER_SECONDS: Final = 0.01  # between rounds, per member
MOST_SECONDS: Final = 1.0  # between rounds when woken, as in the Java client
# A broker that has restarted lists only the members that have reconnected: for this long after the
# reconnection of this member, those that it listed before count as missing, not as gone.
RECONNECTION_SECONDS: Final = 5.0
MAX_BROKERS: Final = 4096  # whose member lists are remembered


class _MemberList(NamedTuple):
    """The members that a broker listed over a connection.

    *expected* are those of the connection before, for which to wait *until* a time.
    """

    members: frozenset[str]
    connection: int
    expected: frozenset[str] = frozenset()
    until: float = 0.0


class Rebalancer:
    """Computes the assignment in rounds; a topic whose share is unknown keeps its queues.

    :param apply: assigns and revokes queues of the given topics; returns False when some cannot be
        assigned yet; one call at a time
    """

    def __init__(
        self,
        context: ConsumerContext[ConsumerConfig],
        *,
        assignment: BrokerAssignment | None = None,
        topics: Callable[[], Collection[str]],
        apply: Callable[[dict[str, frozenset[MessageQueue]]], Awaitable[bool]],
    ) -> None:
        config = context.config
        self._instance = context.instance
        self._namespace = context.instance.remoting.namespace
        self._group = context.group
        self._interval = config.rebalance_interval_seconds
        self._clustering = config.message_model is MessageModel.CLUSTERING
        self._allocate = config.allocate
        self._assignment = assignment
        self._topics = topics
        self._apply = apply
        self._missing_group = MissingGroup(context)
        self._wake = asyncio.Event()
        self._complete = asyncio.Event()
        self._changes = 0  # of the subscribed topics
        # In this round, by topic: the broker asked; its members, None if it may not know all yet,
        # or why they are unknown.
        self._asked: dict[str, str] = {}
        self._members: dict[str, list[str] | RocketMQError | None] = {}
        self._listed: dict[str, _MemberList] = {}  # by broker name
        self._ended = False
        self._refused: dict[str, str] = {}  # by topic: why its strategy failed in the last round
        self.popped: dict[str, frozenset[MessageQueue]] = {}  # by topic: the queues to pop
        self._group_size = 0  # in the last round

    @property
    def has_other_members(self) -> bool:
        """Whether the group had other members in the last round."""
        return self._group_size > 1

    def wake(self) -> None:
        self._wake.set()

    def expect_more(self) -> None:
        """Note that topics changed: the assignment is incomplete until the next round."""
        self._changes += 1
        if not self._ended:
            self._complete.clear()
        self._wake.set()

    def end(self) -> None:
        """Wake the callers of `wait_until_complete`: there will be no further round."""
        self._ended = True
        self._complete.set()

    async def wait_until_complete(self) -> None:
        """Return when a round has assigned the queues of every topic, or after `end`."""
        while not self._complete.is_set():
            await self._complete.wait()

    async def run(self) -> None:
        """Rebalance until cancelled: when woken, and regularly."""
        while True:
            self._wake.clear()
            if not self._topics():
                await self._wake.wait()
                continue
            changes = self._changes
            complete = await self.round()
            if complete and changes == self._changes:
                self._complete.set()
            wait = self._interval if complete else INCOMPLETE_SECONDS
            pause = min(max(LEAST_SECONDS, MEMBER_SECONDS * self._group_size), MOST_SECONDS)
            await anyio.sleep(pause)
            with anyio.move_on_after(wait - pause):
                await self._wake.wait()

    async def round(self) -> bool:
        """Compute and apply the assignment once; return False if it is incomplete."""
        wanted: dict[str, frozenset[MessageQueue]] = {}
        complete = True
        topics = list(self._topics())
        for topic in self.popped.keys() - topics:
            del self.popped[topic]
        for topic in self._refused.keys() - topics:
            del self._refused[topic]
        self._missing_group.retain(topics)
        await self._query_members(topics)
        if self._assignment is None:  # no requests: tasks would cost more than everything else
            shares = {topic: await self._known_share(topic) for topic in topics}
        else:
            shares = (await gather_limited(self._known_share, topics, TOPICS_AT_ONCE)).results
        for topic, share in shares.items():
            if share is None:
                # Brokers create the retry topic after the first heartbeat of the group.
                awaited = not topic.startswith(RETRY_PREFIX)
                if awaited or self._instance.routes.known(topic) is not None:
                    complete = False
            else:
                wanted[topic] = share
        applied = await self._apply(wanted)
        return complete and applied

    async def _known_share(self, topic: str) -> frozenset[MessageQueue] | None:
        """Return the result of `_share`, None also after an error, which is logged."""
        refused = self._refused.pop(topic, None)
        try:
            return await self._share(topic)
        except ConfigError as error:  # the strategy of the application
            self._refused[topic] = reason = str(error)
            if reason != refused:  # rounds that fail follow each other quickly
                logger.warning("allocation_failed", topic=topic, reason=reason)
        except RocketMQError as error:
            logger.info("rebalance_failed", topic=topic, reason=str(error))
        return None

    async def _share(self, topic: str) -> frozenset[MessageQueue] | None:
        """Return this member's queues of *topic*; None if they are unknown now."""
        route = self._instance.routes.known(topic)
        if route is None:
            return frozenset() if self._instance.routes.is_gone(topic) else None
        if not self._clustering:
            return frozenset(route.subscribe_queues)
        client_id, members = self._instance.client_id, self._members.get(topic, ())
        if isinstance(members, RocketMQError):
            raise members
        if members is None or client_id not in members:
            return None  # as after a restart of the broker: keep the current queues
        strategy = strategy_for(self._allocate, topic)
        if self._assignment is not None:
            try:
                return await self._assigned(self._assignment, topic, strategy)
            except NotSupportedError:  # by the broker, or for this topic
                self.popped.pop(topic, None)
        if self._namespace is not None:
            strategy = in_namespace(strategy, self._namespace.outer)
        return frozenset(allocate(strategy, client_id, route.subscribe_queues, members))

    async def _query_members(self, topics: Iterable[str]) -> None:
        """Query a broker of each of *topics*, each broker once."""
        asked: dict[str, str] = {}
        for topic in topics if self._clustering else ():
            with suppress(RouteNotFoundError):
                asked[topic] = self._instance.broker.any_broker(topic)
        listed, failures = await gather_limited(self._members_of, asked.values(), TOPICS_AT_ONCE)
        if sizes := [len(set(known)) for known in listed.values() if known]:
            self._group_size = max(sizes)
        members: dict[str, list[str] | RocketMQError | None] = {**listed, **failures}
        self._members = {topic: members[address] for topic, address in asked.items()}
        self._asked = asked
        for topic, address in asked.items():
            if isinstance(known := members[address], list):
                is_listed = self._instance.client_id in known
                await self._missing_group.note(topic, address, is_listed=is_listed)

    async def _members_of(self, address: str) -> list[str] | None:
        """Return the members that a broker knows, None if it may not know all yet."""
        broker = self._instance.broker
        members = await broker.consumer_ids_at(self._group, address)
        if self._instance.client_id not in members:
            # A restarted broker has forgotten all members: keep the queues and send a heartbeat.
            await self._instance.heartbeats.send_all(self._group)
            members = await broker.consumer_ids_at(self._group, address)
        return None if self._may_lack_members(address, frozenset(members)) else members

    def _may_lack_members(self, address: str, members: frozenset[str]) -> bool:
        """Whether the broker has just come back, and lacks members that it listed before."""
        name = self._instance.routes.broker_at(address) or address
        connection = self._instance.connection_number(address)
        now = asyncio.get_running_loop().time()
        last = self._listed.get(name, _MemberList(members, connection))
        if last.connection == connection:
            expected, until = last.expected, last.until
        else:
            expected, until = last.members, now + RECONNECTION_SECONDS
        lacks = not expected <= members and now < until
        if len(self._listed) >= MAX_BROKERS:
            self._listed.clear()
        if lacks:
            self._listed[name] = _MemberList(expected | members, connection, expected, until)
        else:
            self._listed[name] = _MemberList(members, connection)
        return lacks

    async def _assigned(
        self, assignment: BrokerAssignment, topic: str, strategy: AllocateStrategy
    ) -> frozenset[MessageQueue] | None:
        # By the broker that listed the members: one that has just restarted assigns nothing to
        # those that it does not know yet, and everything to the first.
        modes = await assignment.of(topic, strategy, self._asked[topic])
        if modes is None:
            return None
        pop = MessageRequestMode.POP
        self.popped[topic] = frozenset(queue for queue, mode in modes.items() if mode is pop)
        return frozenset(modes)
