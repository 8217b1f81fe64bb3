"""Route table: queues, brokers and addresses of topics, fetched and refreshed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final
from zlib import crc32

import anyio

from rocketmq_aio.errors import ConfigError, NotConnectedError, RocketMQError, RouteNotFoundError
from rocketmq_aio.instance.name_servers import NameServers
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.address import parse_address
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import MAX_QUEUES, TopicQueueMappingInfo, TopicRouteData
from rocketmq_aio.protocol.codes import MASTER_ID, PERM_READ, PERM_WRITE
from rocketmq_aio.protocol.static_topics import NO_OWNER, is_logical, logical_queues
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)

MISSING_RETRY_SECONDS: Final = 1.0  # between requests for a missing topic
NEWER_SECONDS: Final = 0.25  # between requests of `wait_for_newer`
MISSES_BEFORE_GONE: Final = 2  # "no such topic" responses before a cached route is dropped
TEMPLATE_TOPIC: Final = "TBW102"  # every broker that creates topics has it
REFRESH_AT_ONCE: Final = 8  # concurrent requests
SUSPECT_SECONDS: Final = 30.0  # after the last failure; then the regular refresh is enough
# After the first of several failures.  Name servers drop a silent broker after two minutes.
LONGEST_SUSPECT_SECONDS: Final = 180.0
# How long a broker stays in a route after name servers have dropped it.  It may be restarting, or
# a name server, with which brokers register every 30 s.  The time counts from the first response
# without the broker, so the members of a group drop it together.
MISSING_SECONDS: Final = 60.0
# How long the return of a broker that was dropped is looked for each second: until members know of
# it, they compute different assignments.
AWAITED_SECONDS: Final = 1_800.0
FORMER_SECONDS: Final = 30.0  # for the last commits to a broker that no route names any more


def is_refresh_due(topic: str, since: float, until: float, interval_seconds: float) -> bool:
    """Whether the regular refresh of *topic* lies between two times of the wall clock.

    All clients refresh a topic at the same time: members that learn of its new queues one after
    another compute different assignments meanwhile.  The topics are spread over the interval.
    """
    shift = crc32(topic.encode())
    return (since + shift) // interval_seconds != (until + shift) // interval_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    """The route of one topic; compared to detect changes.

    :ivar owners: the brokers that hold the logical queues of a static topic now
    :ivar ordered_queues: the writable queues by the topic's configuration, including those of
        brokers without a master
    :ivar acting: brokers whose master is down: a slave acts for it and cannot be written to
    :ivar missing: brokers that name servers do not list now, kept for their consumers
    :ivar malformed: invalid addresses, left out of *brokers*
    :ivar addresses: of all replicas of *brokers*; computed once, since many may fail together
    :ivar masters: of the masters; the same
    :ivar lacks_masters: whether any of *brokers* has no master
    """

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    brokers: dict[str, dict[int, str]] = field(default_factory=dict)
    owners: dict[MessageQueue, str] = field(default_factory=dict)
    ordered_queues: tuple[MessageQueue, ...] = ()
    acting: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    malformed: tuple[str, ...] = ()
    addresses: frozenset[str] = field(init=False, compare=False, repr=False)
    masters: frozenset[str] = field(init=False, compare=False, repr=False)
    lacks_masters: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        replicas = self.brokers.values()
        masters = [each[MASTER_ID] for each in replicas if MASTER_ID in each]
        addresses = frozenset(address for each in replicas for address in each.values())
        object.__setattr__(self, "addresses", addresses)
        object.__setattr__(self, "masters", frozenset(masters))
        object.__setattr__(self, "lacks_masters", len(masters) < len(replicas))

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker that holds *queue*."""
        return self.owners.get(queue, NO_OWNER) if is_logical(queue) else queue.broker_name

    def lists(self, broker_name: str) -> bool:
        """Whether name servers know the topic at this broker now."""
        return broker_name in self.brokers and broker_name not in self.missing

    def write_master(self, broker_name: str) -> str | None:
        """Return the address of the master of a broker, if it can be written to."""
        if broker_name in self.acting:
            return None
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def write_masters(self) -> dict[str, str]:
        """Return the brokers with a master that can be written to, and its address."""
        found = {name: self.write_master(name) for name in self.brokers}
        return {name: address for name, address in found.items() if address is not None}


def read_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Return the route in *data*: writable queues need a master, readable ones do not."""
    brokers, malformed = _read_addresses(data)
    acting = _acting_masters(data)
    owners = {} if data.order_topic_conf else logical_queues(topic, data)
    if owners:
        subscribe = ordered = sorted(owners)
        written = _with_master(brokers) - acting
        publish = [queue for queue in ordered if owners[queue] in written]
    else:
        publish, subscribe, ordered = _physical_queues(topic, data, brokers, acting)
    return TopicRoute(  # a broker that is listed twice counts once
        topic=topic,
        publish_queues=tuple(sorted(set(publish))),
        subscribe_queues=tuple(sorted(set(subscribe))),
        brokers=brokers,
        owners=owners,
        ordered_queues=tuple(sorted(set(ordered))),
        acting=acting,
        malformed=malformed,
    )


def _physical_queues(
    topic: str, data: TopicRouteData, brokers: dict[str, dict[int, str]], acting: frozenset[str]
) -> tuple[list[MessageQueue], list[MessageQueue], list[MessageQueue]]:
    """Return the queues to publish to, to subscribe to, and those of ordered sends."""
    publish: list[MessageQueue] = []
    subscribe: list[MessageQueue] = []
    ordered: list[MessageQueue] = []
    written = _with_master(brokers) - acting
    for each in data.queue_datas:
        if each.perm & PERM_WRITE or each.broker_name in acting:
            ordered += _queues(topic, each.broker_name, each.write_queue_nums)
        addresses = brokers.get(each.broker_name)
        if not addresses:
            continue
        if each.perm & PERM_WRITE and each.broker_name in written:
            publish += _queues(topic, each.broker_name, each.write_queue_nums)
        if each.perm & PERM_READ:
            subscribe += _queues(topic, each.broker_name, each.read_queue_nums)
    if conf := data.order_topic_conf:
        ordered = _ordered(topic, conf) or ordered
        publish = [queue for queue in ordered if queue.broker_name in written] or publish
    return publish, subscribe, ordered


def merge_routes(routes: Sequence[TopicRouteData]) -> TopicRouteData:
    """Return one route with the queues and brokers of all of them, of which the first wins."""
    if len(routes) == 1:
        return routes[0]
    last_wins = routes[::-1]
    mappings: dict[str, TopicQueueMappingInfo] = {}
    for each in last_wins:
        mappings |= each.topic_queue_mapping_by_broker or {}
    return TopicRouteData(
        queue_datas=[queue for each in last_wins for queue in each.queue_datas],
        broker_datas=[broker for each in last_wins for broker in each.broker_datas],
        order_topic_conf=next(filter(None, (each.order_topic_conf for each in routes)), None),
        topic_queue_mapping_by_broker=mappings or None,
    )


def _with_brokers(route: TopicRoute, former: TopicRoute, names: Set[str]) -> TopicRoute:
    """Return *route* with the brokers *names* of a former route, and their queues.

    Not with those to publish to: producers leave a missing broker at once.
    """

    def merged(
        queues: tuple[MessageQueue, ...], before: tuple[MessageQueue, ...]
    ) -> tuple[MessageQueue, ...]:
        return tuple(sorted({*queues, *(q for q in before if former.broker_of(q) in names)}))

    lost = {queue: owner for queue, owner in former.owners.items() if owner in names}
    owned = {queue: owner for queue, owner in route.owners.items() if owner != NO_OWNER}
    return replace(
        route,
        subscribe_queues=merged(route.subscribe_queues, former.subscribe_queues),
        brokers=route.brokers | {name: former.brokers[name] for name in names},
        owners=route.owners | lost | owned,
        ordered_queues=merged(route.ordered_queues, former.ordered_queues),
        acting=route.acting | (former.acting & names),
        missing=frozenset(names),
    )


def _with_master(brokers: Mapping[str, Mapping[int, str]]) -> set[str]:
    return {name for name, addresses in brokers.items() if MASTER_ID in addresses}


def _acting_masters(data: TopicRouteData) -> frozenset[str]:
    """Return the brokers whose master may be down, with a slave in its place.

    Name servers withdraw the permission to write then (seen on live 5.5.0 servers); a topic that an
    administrator made read-only on such a broker looks the same.
    """
    allowing = {each.broker_name for each in data.broker_datas if each.enable_acting_master}
    unwritable = {each.broker_name for each in data.queue_datas if not each.perm & PERM_WRITE}
    return frozenset(allowing & unwritable)


def _read_addresses(data: TopicRouteData) -> tuple[dict[str, dict[int, str]], tuple[str, ...]]:
    """Return the addresses of each broker, and the invalid ones."""
    brokers: dict[str, dict[int, str]] = {}
    malformed: list[str] = []
    for broker in data.broker_datas:
        addresses = brokers.setdefault(broker.broker_name, {})
        addresses.update(broker.broker_addrs)
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


def _count(counts: Counter[str], address: str, change: int) -> None:
    counts[address] += change
    if not counts[address]:
        del counts[address]


@dataclass(slots=True)
class _Suspect:
    """An address that failed: its broker may have another master soon.

    :ivar since: time of the first failure in a row, by the event loop's clock
    :ivar failed_at: time of the last one
    :ivar topics: those whose routes named it
    :ivar was_master: whether it was a master when it failed
    """

    since: float
    failed_at: float
    topics: set[str]
    was_master: bool


class RouteTable:
    """Routes by topic: fetched on first use, refreshed while in use.

    :param received_since: whether an address has sent anything since a time of the event loop
    :param on_replaced: called with the address of a silent broker, whose routes name another now
    """

    def __init__(
        self,
        name_servers: NameServers,
        *,
        topics_in_use: Callable[[], Iterable[str]],
        on_changed: Callable[[str], None],
        received_since: Callable[[str, float], bool],
        on_replaced: Callable[[str], None],
    ) -> None:
        self._name_servers = name_servers
        self._topics_in_use = topics_in_use
        self._on_changed = on_changed
        self._received_since = received_since
        self._on_replaced = on_replaced
        self._routes: dict[str, TopicRoute] = {}  # the last one confirmed is the last
        # How many brokers of all routes have an address, by address; and those of masters.
        self._replicas: Counter[str] = Counter()
        self._masters: Counter[str] = Counter()
        self._fetching: dict[str, asyncio.Future[TopicRoute | RocketMQError | None]] = {}
        self._fetched_at: dict[str, float] = {}  # of known topics
        self._misses: dict[str, int] = {}
        # Since when the last routes of a topic lack brokers of the cached one, by their names.
        self._missing: dict[str, dict[str, float]] = {}
        # Brokers that were dropped from routes: until when, and from which topics.
        self._awaited: dict[str, tuple[float, set[str]]] = {}
        self._pinned: Counter[str] = Counter()  # number of `pin` blocks by topic
        self._unused: set[str] = set()  # at the last refresh; dropped if unused at the next
        self._invalid: set[str] = set()
        self._suspects: dict[str, _Suspect] = {}  # by address
        self._former: dict[str, tuple[float, str]] = {}  # by broker name: until when, its master

    def known(self, topic: str) -> TopicRoute | None:
        """Return the cached route."""
        return self._routes.get(topic)

    def is_gone(self, topic: str) -> bool:
        """Whether name servers have returned "no such topic" more than once."""
        return self._misses.get(topic, 0) >= MISSES_BEFORE_GONE

    async def get(self, topic: str) -> TopicRoute:
        """Return the cached route, or fetch it.

        :raises RouteNotFoundError: there is no such topic
        :raises NameServerUnavailableError: no name server responded
        """
        return self._routes.get(topic) or await self.fetch(topic)

    async def check_reachable(self) -> None:
        """Raise NameServerUnavailableError if no name server responds."""
        try:
            await self.get(TEMPLATE_TOPIC)
        except RouteNotFoundError:
            logger.debug("no_template_topic", topic=TEMPLATE_TOPIC)

    async def fetch(self, topic: str) -> TopicRoute:
        """Fetch the route from a name server; errors as `get`, which keep the cached route.

        Only the regular refresh drops a topic: a restarting broker is missing for a moment.  For
        consumers the route keeps brokers that were known for `MISSING_SECONDS`.
        """
        while (fetching := self._fetching.get(topic)) is not None:
            # Concurrent callers share one request; None if its caller was cancelled.
            outcome = await asyncio.shield(fetching)
            if isinstance(outcome, RocketMQError):
                raise outcome.with_traceback(None)
            if outcome is not None:
                return outcome
        return await self._fetch(topic)

    async def fetch_merged(self, topic: str) -> TopicRoute:
        """Fetch the route from all reachable name servers; errors as `get`.

        It has the brokers of all of them: one that has just restarted lacks some.
        """
        found = await self._name_servers.routes(topic)
        self._misses.pop(topic, None)
        return self._store(topic, read_route(topic, merge_routes(found)))

    async def wait_for_newer(self, known: TopicRoute) -> TopicRoute:
        """Return the route as soon as it may differ from *known*; errors as `get`.

        All callers together fetch a topic once every `NEWER_SECONDS`.
        """
        topic, loop = known.topic, asyncio.get_running_loop()
        while self._routes.get(topic) is known:
            pause = self._fetched_at.get(topic, 0.0) + NEWER_SECONDS - loop.time()
            if pause <= 0:
                return await self.fetch(topic)
            await asyncio.sleep(pause)
        return await self.get(topic)

    async def _fetch(self, topic: str) -> TopicRoute:
        fetching: asyncio.Future[TopicRoute | RocketMQError | None]
        fetching = self._fetching[topic] = asyncio.get_running_loop().create_future()
        outcome: TopicRoute | RocketMQError | None = None
        try:
            outcome = self._store(topic, self._with_missing(await self._request(topic)))
            return outcome
        except RocketMQError as error:
            outcome = error
            raise
        finally:
            del self._fetching[topic]
            fetching.set_result(outcome)

    async def _request(self, topic: str) -> TopicRoute:
        if topic in self._routes:
            self._fetched_at[topic] = asyncio.get_running_loop().time()
        data = await self._name_servers.route(topic)
        self._misses.pop(topic, None)
        route = read_route(topic, data)
        if returned := self._awaited.keys() & route.brokers.keys():
            for name in returned:
                del self._awaited[name]
            self._invalid.update(self._routes)
        return route

    def _store(self, topic: str, route: TopicRoute) -> TopicRoute:
        known = self._routes.get(topic)
        if known is not None and route == known:
            self._routes[topic] = self._routes.pop(topic)
            return known
        self._drop(topic)
        self._routes[topic] = route
        self._count_addresses(route, 1)
        logger.debug("route_changed", topic=topic, queues=len(route.subscribe_queues))
        if route.malformed:
            logger.warning("route_addresses_malformed", topic=topic, addresses=route.malformed)
        self._on_changed(topic)
        return route

    def _with_missing(self, route: TopicRoute) -> TopicRoute:
        """Return *route* with the known brokers that routes have not lacked for long."""
        known, before = self._routes.get(route.topic), self._missing.pop(route.topic, {})
        if known is None:
            return route
        now = asyncio.get_running_loop().time()
        lacks = known.brokers.keys() - route.brokers.keys()
        missing = {name: before.get(name, now) for name in lacks}
        kept = {name: since for name, since in missing.items() if now - since < MISSING_SECONDS}
        for name in missing.keys() - kept.keys():
            _, topics = self._awaited.get(name, (now, set()))
            self._awaited[name] = now + AWAITED_SECONDS, topics | {route.topic}
        if not kept:
            return route
        self._missing[route.topic] = kept
        self.invalidate(route.topic)
        return _with_brokers(route, known, kept.keys())

    def _count_miss(self, topic: str) -> None:
        self._misses[topic] = self._misses.get(topic, 0) + 1
        # A single "no such topic" can come from a name server that has just started.
        if self._misses[topic] == MISSES_BEFORE_GONE:
            if self._drop(topic):
                logger.warning("topic_gone", topic=topic)
            self._on_changed(topic)  # also if it was never known: it is certainly missing

    def _drop(self, topic: str) -> bool:
        """Remove the route of *topic*; return whether there was one."""
        route = self._routes.pop(topic, None)
        if route is not None:
            self._count_addresses(route, -1)
            until = asyncio.get_running_loop().time() + FORMER_SECONDS
            for name, replicas in route.brokers.items():
                if MASTER_ID in replicas:
                    self._former[name] = until, replicas[MASTER_ID]
        return route is not None

    def _count_addresses(self, route: TopicRoute, change: int) -> None:
        for replicas in route.brokers.values():
            for broker_id, address in replicas.items():
                _count(self._replicas, address, change)
                if broker_id == MASTER_ID:
                    _count(self._masters, address, change)

    @contextmanager
    def pin(self, topic: str) -> Iterator[None]:
        """Keep the route of *topic* in the table for the duration of the block."""
        self._pinned[topic] += 1
        try:
            yield
        finally:
            self._pinned[topic] -= 1
            if not self._pinned[topic]:
                del self._pinned[topic]

    # --- addresses ------------------------------------------------------------------------------

    def master(self, broker_name: str) -> str | None:
        """Return the address of a broker's master."""
        return self._addresses(broker_name).get(MASTER_ID)

    def replicas_of(self, queue: MessageQueue) -> Mapping[int, str]:
        """Return the addresses of the replicas of *queue* by id; empty if no route names any."""
        return self._addresses(self.broker_of(queue))

    def broker_at(self, address: str) -> str | None:
        """Return the name of the broker with *address*."""
        # In an older route of another topic it may be the former address of another broker.
        for route in reversed(self._routes.values()):
            for name, replicas in route.brokers.items():
                if address in replicas.values():
                    return name
        return None

    def replica_of(self, queue: MessageQueue, broker_id: int) -> tuple[str, int] | None:
        """Return address and id of a replica to read *queue* from: *broker_id* if there is one."""
        addresses = self.replicas_of(queue)
        for each in (broker_id, broker_id + 1):
            if each in addresses:
                return addresses[each], each
        return next(((address, each) for each, address in addresses.items()), None)

    def named_master(self, queue: MessageQueue) -> str | None:
        """Return the address of the master of *queue* if a route names one."""
        return self.master(self.broker_of(queue))

    def master_of(self, queue: MessageQueue) -> str:
        """Return the address of the master of *queue*.

        For a while that is the last known one of a broker in no route: name servers may have lost
        a topic that the broker has, and the queues that are revoked then have to be committed.

        :raises NotConnectedError: no route names a master
        """
        broker = self.broker_of(queue)
        address = self.master(broker)
        if address is None:
            self.invalidate(queue.topic)
            if self._addresses(broker) or broker not in self._former:
                raise NotConnectedError(broker, "no route names a master of this broker")
            _, address = self._former[broker]
        return address

    def slave_of(self, queue: MessageQueue) -> str:
        """Return the address of a slave of *queue* whose master no route names.

        :raises NotConnectedError: there is a master, or no slave either
        """
        replica = self.replica_of(queue, MASTER_ID)
        if replica is None:
            raise NotConnectedError(self.broker_of(queue), "no route names this broker")
        if replica[1] == MASTER_ID:
            raise NotConnectedError(self.broker_of(queue), "it has a master, use that one")
        return replica[0]

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker of *queue* by the cached route."""
        if not is_logical(queue):
            return queue.broker_name
        route = self._routes.get(queue.topic)
        return NO_OWNER if route is None else route.broker_of(queue)

    def addresses(self, *, masters_only: bool = False) -> set[str]:
        """Return the addresses of all brokers in the table."""
        return set(self._masters if masters_only else self._replicas)

    def names(self, address: str) -> bool:
        """Whether any route names *address*."""
        return address in self._replicas

    def _addresses(self, broker_name: str) -> dict[int, str]:
        # An older route of another topic may contain a former address of the broker.
        for route in reversed(self._routes.values()):
            if (addresses := route.brokers.get(broker_name)) is not None:
                return addresses
        return {}

    # --- refresh --------------------------------------------------------------------------------

    def invalidate(self, topic: str) -> None:
        """Fetch the route of *topic* again, within a second and until a name server responds.

        The cached one stays until then.
        """
        self._invalid.add(topic)

    def suspect(self, address: str) -> None:
        """Fetch the routes that name *address* every second: a request or connection failed.

        That ends when its brokers have other masters, when it sends anything, `SUSPECT_SECONDS`
        after the last failure, or `LONGEST_SUSPECT_SECONDS` after the first.
        """
        topics = {topic for topic, route in self._routes.items() if address in route.addresses}
        now, was_master = asyncio.get_running_loop().time(), address in self._masters
        known = self._suspects.setdefault(address, _Suspect(now, now, topics, was_master))
        known.failed_at = now
        known.topics |= topics

    async def run(self, interval_seconds: float) -> None:
        """Refresh until cancelled: known routes every interval, missing ones more often."""
        loop = asyncio.get_running_loop()
        since = time.time()
        while True:
            await anyio.sleep(min(interval_seconds, MISSING_RETRY_SECONDS))
            wanted = {*self._topics_in_use(), *self._pinned}
            self._drop_unused(wanted)
            self._drop_former(loop.time())
            # The template topic does not appear later.
            missing = wanted - set(self._routes) - {TEMPLATE_TOPIC}
            until = time.time()
            due = {t for t in wanted if is_refresh_due(t, since, until, interval_seconds)}
            since = until
            # Those that are fetched now stay invalid for the next round, should that fail.
            fetched = missing | due
            invalid, self._invalid = self._invalid, self._invalid & fetched
            recently = loop.time() - LONGEST_SUSPECT_SECONDS
            suspects = [each for each in self._suspects.values() if each.since > recently]
            invalid.update(*(each.topics for each in suspects))
            invalid.update(self._topics_of_awaited(wanted, loop.time()))
            await self.refresh(due)
            await self.refresh(missing - due, log=logger.info)
            await self.refresh((invalid & wanted) - fetched, regular=False, log=logger.info)
            self._drop_cleared_suspects(loop.time())

    def _topics_of_awaited(self, wanted: set[str], now: float) -> set[str]:
        """Return a topic for each broker whose return is awaited: its route will name it."""
        for name, (until, topics) in list(self._awaited.items()):
            if until <= now or topics.isdisjoint(wanted):
                del self._awaited[name]
        return {min(topics & wanted) for _, topics in self._awaited.values()}

    def _drop_cleared_suspects(self, now: float) -> None:
        for address, suspect in list(self._suspects.items()):
            responds = self._received_since(address, suspect.failed_at)
            replaced = not responds and self._is_replaced(address)
            if replaced:
                self._on_replaced(address)
            if responds or replaced or now - suspect.failed_at > SUSPECT_SECONDS:
                del self._suspects[address]

    def _is_replaced(self, address: str) -> bool:
        """Whether all routes name others in its place; a broker without a master counts as none.

        No route says nothing: unused topics are dropped.
        """
        suspect = self._suspects[address]
        routes = [self._routes[topic] for topic in suspect.topics if topic in self._routes]
        return bool(routes) and not any(
            route.lacks_masters
            or address in (route.masters if suspect.was_master else route.addresses)
            for route in routes
        )

    async def refresh(
        self,
        topics: Iterable[str],
        *,
        regular: bool = True,
        log: Callable[..., None] = logger.warning,
    ) -> None:
        """Fetch the routes of *topics*; failures are logged.

        :param regular: False for invalidated routes: counts no "no such topic" responses
        """

        async def refresh_one(topic: str) -> None:
            try:
                await self.fetch(topic)
            except RouteNotFoundError:
                if regular and not self._is_unreachable(topic):
                    self._count_miss(topic)
                logger.debug("route_missing", topic=topic)
            except RocketMQError as error:
                if not regular:
                    self.invalidate(topic)
                log("route_refresh_failed", topic=topic, reason=str(error))

        await gather_limited(refresh_one, topics, REFRESH_AT_ONCE)

    def _is_unreachable(self, topic: str) -> bool:
        """Whether requests to all brokers of the cached route fail.

        Name servers then forget the topic, which exists again when its brokers are back.
        """
        route = self._routes.get(topic)
        addresses = frozenset() if route is None else route.masters or route.addresses
        return bool(addresses) and addresses <= self._suspects.keys()

    def _drop_former(self, now: float) -> None:
        self._former = {name: each for name, each in self._former.items() if each[0] > now}

    def _drop_unused(self, wanted: set[str]) -> None:
        unused = set(self._routes) - wanted
        # At the second refresh: a send that fetched it may not be among the wanted yet.
        for topic in unused & self._unused:
            self._drop(topic)
        self._fetched_at = {t: at for t, at in self._fetched_at.items() if t in self._routes}
        self._unused = unused
        for table, kept in ((self._misses, wanted), (self._missing, self._routes.keys())):
            for topic in table.keys() - kept:
                del table[topic]
