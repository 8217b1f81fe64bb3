"""Routes: which queues a topic has, which brokers hold them, at which addresses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

from rocketmq_aio.errors import (
    ConfigError,
    NotConnectedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.name_servers import NameServers
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.address import parse_address
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import MAX_QUEUES, TopicRouteData
from rocketmq_aio.protocol.codes import MASTER_ID, PERM_READ, PERM_WRITE
from rocketmq_aio.protocol.static_topics import NO_OWNER, is_logical, logical_queues
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)

MISSING_RETRY_SECONDS: Final = 1.0  # a topic that does not exist yet is looked for this often
NEWER_SECONDS: Final = 0.25  # a route that cannot be used now is asked for again this often
MISSES_BEFORE_GONE: Final = 2  # answers "no such topic" before a known route is given up
TEMPLATE_TOPIC: Final = "TBW102"  # every broker that creates topics has it
REFRESH_AT_ONCE: Final = 8  # routes asked for in parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    """The route of one topic; equal routes mean that nothing changed.

    :ivar owners: the brokers that hold the logical queues of a static topic now
    :ivar ordered_queues: the queues that may be written to by the topic's configuration, those of
        brokers without a master included
    :ivar malformed: what the route names as addresses and is none; left out of *brokers*
    """

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    brokers: dict[str, dict[int, str]] = field(default_factory=dict)
    owners: dict[MessageQueue, str] = field(default_factory=dict)
    ordered_queues: tuple[MessageQueue, ...] = ()
    malformed: tuple[str, ...] = ()

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker that holds *queue*."""
        return self.owners.get(queue, NO_OWNER) if is_logical(queue) else queue.broker_name


def read_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Return what *data* says of *topic*: writable queues need a master, readable ones do not."""
    brokers, malformed = _read_addresses(data)
    if not data.order_topic_conf and (owners := logical_queues(topic, data)):
        return _static_route(topic, owners, brokers, malformed)
    publish: list[MessageQueue] = []
    subscribe: list[MessageQueue] = []
    ordered: list[MessageQueue] = []
    for each in data.queue_datas:
        if each.perm & PERM_WRITE:
            ordered += _queues(topic, each.broker_name, each.write_queue_nums)
        addresses = brokers.get(each.broker_name)
        if not addresses:
            continue
        if each.perm & PERM_WRITE and MASTER_ID in addresses:
            publish += _queues(topic, each.broker_name, each.write_queue_nums)
        if each.perm & PERM_READ:
            subscribe += _queues(topic, each.broker_name, each.read_queue_nums)
    if conf := data.order_topic_conf:
        ordered = _ordered(topic, conf) or ordered
        publish = [q for q in ordered if MASTER_ID in brokers.get(q.broker_name, ())] or publish
    return TopicRoute(
        topic=topic,
        publish_queues=tuple(sorted(publish)),
        subscribe_queues=tuple(sorted(subscribe)),
        brokers=brokers,
        ordered_queues=tuple(sorted(ordered)),
        malformed=malformed,
    )


def _static_route(
    topic: str,
    owners: dict[MessageQueue, str],
    brokers: dict[str, dict[int, str]],
    malformed: tuple[str, ...],
) -> TopicRoute:
    queues = sorted(owners)
    return TopicRoute(
        topic=topic,
        publish_queues=tuple(q for q in queues if MASTER_ID in brokers.get(owners[q], ())),
        subscribe_queues=tuple(queues),
        brokers=brokers,
        owners=owners,
        ordered_queues=tuple(queues),
        malformed=malformed,
    )


def _read_addresses(data: TopicRouteData) -> tuple[dict[str, dict[int, str]], tuple[str, ...]]:
    """Return the addresses of each broker, and those that cannot be used."""
    brokers: dict[str, dict[int, str]] = {}
    malformed: list[str] = []
    for broker in data.broker_datas:
        addresses = brokers[broker.broker_name] = dict(broker.broker_addrs)
        for broker_id, address in broker.broker_addrs.items():
            try:
                parse_address(address)
            except ConfigError:
                malformed.append(addresses.pop(broker_id))
    return brokers, tuple(malformed)


def _queues(topic: str, broker: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for number in range(count)]


def _ordered(topic: str, conf: str) -> list[MessageQueue]:
    """Read ``broker-a:4;broker-b:4``, which wins over the permissions of an order topic."""
    queues: list[MessageQueue] = []
    for part in conf.split(";"):
        broker, _, count = part.strip().rpartition(":")
        if broker and count.isascii() and count.isdigit():
            queues += _queues(topic, broker, min(int(count[:6]), MAX_QUEUES - len(queues)))
    return queues


class RouteTable:
    """Known routes, asked for on first use and kept fresh while somebody needs them."""

    def __init__(
        self,
        name_servers: NameServers,
        *,
        topics_in_use: Callable[[], Iterable[str]],
        on_changed: Callable[[str], None],
    ) -> None:
        self._name_servers = name_servers
        self._topics_in_use = topics_in_use
        self._on_changed = on_changed
        self._routes: dict[str, TopicRoute] = {}  # in the order of their confirmation
        self._asking: dict[str, asyncio.Future[TopicRoute | RocketMQError | None]] = {}
        self._asked_at: dict[str, float] = {}  # of known topics: when a name server last was
        self._misses: dict[str, int] = {}
        self._held: Counter[str] = Counter()  # how many blocks hold a topic
        self._unused: set[str] = set()  # at the last look; dropped when still so at the next
        self._doubted: set[str] = set()

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route if it is known, without asking anybody."""
        return self._routes.get(topic)

    def is_gone(self, topic: str) -> bool:
        """Whether the name servers say, more than once, that there is no such topic."""
        return self._misses.get(topic, 0) >= MISSES_BEFORE_GONE

    async def get(self, topic: str) -> TopicRoute:
        """Return the route, asking a name server when it is not known.

        :raises RouteNotFoundError: there is no such topic
        :raises NameServerUnavailableError: nobody could be asked
        """
        return self._routes.get(topic) or await self.fetch(topic)

    async def fetch(self, topic: str, *, may_lose_brokers: bool = True) -> TopicRoute:
        """Ask a name server, whatever is known; errors as `get`, and leave it known.

        Only the regular refresh gives a topic up: a broker that restarts is missing for a moment.

        :param may_lose_brokers: False keeps the known route where the new one lacks a broker of it
        """
        while (asking := self._asking.get(topic)) is not None:
            # One question for all who want to know; without an answer if its caller left.
            answer = await asyncio.shield(asking)
            if isinstance(answer, RocketMQError):
                raise answer.with_traceback(None)
            if answer is not None:
                return answer
        return await self._fetch(topic, may_lose_brokers)

    async def newer(self, known: TopicRoute) -> TopicRoute:
        """Return the route as soon as it may differ from *known*; errors as `get`.

        However many wait, name servers are asked about a topic once every `NEWER_SECONDS`.
        """
        topic, loop = known.topic, asyncio.get_running_loop()
        while self._routes.get(topic) is known:
            pause = self._asked_at.get(topic, 0.0) + NEWER_SECONDS - loop.time()
            if pause <= 0:
                return await self.fetch(topic)
            await asyncio.sleep(pause)
        return await self.get(topic)

    async def _fetch(self, topic: str, may_lose_brokers: bool) -> TopicRoute:
        asking: asyncio.Future[TopicRoute | RocketMQError | None]
        asking = self._asking[topic] = asyncio.get_running_loop().create_future()
        answer: TopicRoute | RocketMQError | None = None
        try:
            answer = self._store(topic, await self._ask(topic), may_lose_brokers)
            return answer
        except RocketMQError as error:
            answer = error
            raise
        finally:
            del self._asking[topic]
            asking.set_result(answer)

    async def _ask(self, topic: str) -> TopicRoute:
        if topic in self._routes:
            self._asked_at[topic] = asyncio.get_running_loop().time()
        data = await self._name_servers.route(topic)
        self._misses.pop(topic, None)
        return read_route(topic, data)

    def _store(self, topic: str, route: TopicRoute, may_lose_brokers: bool) -> TopicRoute:
        known = self._routes.get(topic)
        if known is not None:
            if not may_lose_brokers and known.brokers.keys() - route.brokers.keys():
                return known
            del self._routes[topic]  # the one that was confirmed last is the last
            if route == known:
                self._routes[topic] = known
                return known
        self._routes[topic] = route
        logger.debug("route_changed", topic=topic, queues=len(route.subscribe_queues))
        if route.malformed:
            logger.warning("route_addresses_malformed", topic=topic, addresses=route.malformed)
        self._on_changed(topic)
        return route

    def _count_miss(self, topic: str) -> None:
        self._misses[topic] = self._misses.get(topic, 0) + 1
        # One "no such topic" can come from a name server that has just started.
        if self._misses[topic] == MISSES_BEFORE_GONE:
            if self._routes.pop(topic, None) is not None:
                logger.warning("topic_gone", topic=topic)
            self._on_changed(topic)  # also when it was never known: it is missing for sure now

    @contextmanager
    def hold(self, topic: str) -> Iterator[None]:
        """Keep the route of *topic*, once it is known, for as long as the block lasts."""
        self._held[topic] += 1
        try:
            yield
        finally:
            self._held[topic] -= 1
            if not self._held[topic]:
                del self._held[topic]

    # --- addresses ------------------------------------------------------------------------------

    def master(self, broker_name: str) -> str | None:
        """Return the address of a broker's master."""
        return self._addresses(broker_name).get(MASTER_ID)

    def replica(self, broker_name: str, broker_id: int) -> tuple[str, int] | None:
        """Return address and id of the replica nearest to what was asked for, of any if need be."""
        addresses = self._addresses(broker_name)
        for each in (broker_id, broker_id + 1 if broker_id != MASTER_ID else MASTER_ID):
            if each in addresses:
                return addresses[each], each
        return next(((address, each) for each, address in addresses.items()), None)

    def master_of(self, queue: MessageQueue) -> str:
        """Return the address of the queue's master; of a logical queue, that of its owner.

        :raises NotConnectedError: no route names one
        """
        broker = self.broker_of(queue)
        address = self.master(broker)
        if address is None:
            self.doubt(queue.topic)
            raise NotConnectedError(broker, "no route names a master of this broker")
        return address

    def replica_of(self, queue: MessageQueue, broker_id: int) -> tuple[str, int] | None:
        """Return the `replica` to read *queue* from; of a logical queue, one of its owner."""
        return self.replica(self.broker_of(queue), broker_id)

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker that holds *queue*, as far as is known."""
        if not is_logical(queue):
            return queue.broker_name
        route = self._routes.get(queue.topic)
        return NO_OWNER if route is None else route.broker_of(queue)

    def addresses(self, *, masters_only: bool = False) -> set[str]:
        """Return the addresses of all brokers that a route in use names."""
        return {
            address
            for route in self._routes.values()
            for replicas in route.brokers.values()
            for broker_id, address in replicas.items()
            if broker_id == MASTER_ID or not masters_only
        }

    def _addresses(self, broker_name: str) -> dict[int, str]:
        # An older route of another topic may still name an address that the broker has left.
        for route in reversed(self._routes.values()):
            if (addresses := route.brokers.get(broker_name)) is not None:
                return addresses
        return {}

    # --- keeping fresh --------------------------------------------------------------------------

    def doubt(self, topic: str) -> None:
        """Fetch the route of *topic* again within a second, once for all who ask for it."""
        self._doubted.add(topic)

    def doubt_addresses(self, addresses: set[str]) -> None:
        """Fetch the routes that name one of *addresses* again: their broker may have moved."""
        for topic, route in self._routes.items():
            if any(not addresses.isdisjoint(each.values()) for each in route.brokers.values()):
                self.doubt(topic)

    async def keep_fresh(self, interval_seconds: float) -> None:
        """Refresh for ever: known routes every interval, missing ones more often."""
        loop = asyncio.get_running_loop()
        refreshed_at = loop.time()
        while True:
            await anyio.sleep(min(interval_seconds, MISSING_RETRY_SECONDS))
            wanted = {*self._topics_in_use(), *self._held}
            self._drop_unused(wanted)
            # A cluster has the template topic or does not: it will not appear.
            missing = wanted - set(self._routes) - {TEMPLATE_TOPIC}
            if loop.time() - refreshed_at >= interval_seconds:
                refreshed_at = loop.time()
                missing = wanted
            doubted, self._doubted = (self._doubted & wanted) - missing, set()
            await self.refresh(missing)
            await self.refresh(doubted, regular=False)

    async def refresh(self, topics: Iterable[str], *, regular: bool = True) -> None:
        """Ask for all *topics*; failures are logged and change nothing.

        :param regular: False for routes in doubt: neither a topic nor a broker is given up, for a
            broker that restarts is missing for a moment and would lose its consumers
        """

        async def refresh_one(topic: str) -> None:
            try:
                await self.fetch(topic, may_lose_brokers=regular)
            except RouteNotFoundError:
                if regular:
                    self._count_miss(topic)
                logger.debug("route_missing", topic=topic)
            except RocketMQError as error:
                logger.warning("route_refresh_failed", topic=topic, reason=str(error))

        await gather_limited(refresh_one, topics, REFRESH_AT_ONCE)

    def _drop_unused(self, wanted: set[str]) -> None:
        unused = set(self._routes) - wanted
        # Not at once: a send may have asked for it and not be entered among the wanted yet.
        for topic in unused & self._unused:
            del self._routes[topic]
        self._asked_at = {t: at for t, at in self._asked_at.items() if t in self._routes}
        self._unused = unused
        for topic in set(self._misses) - wanted:
            del self._misses[topic]
