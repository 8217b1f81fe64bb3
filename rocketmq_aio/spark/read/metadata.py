"""Metadata for the driver: queues, their extents, committed offsets and offsets by time."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

import anyio

from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.result import PullResult, PullStatus
from rocketmq_aio.errors import (
    BrokerError,
    BusyError,
    ConnectionLostError,
    NameServerUnavailableError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.time_search import TimeSearch
from rocketmq_aio.model.names import is_internal_topic
from rocketmq_aio.model.timestamps import millis_of
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.namespaces import names_inside
from rocketmq_aio.protocol.requests.admin import (
    ClusterInfoBody,
    GetAllTopics,
    GetClusterInfo,
    TopicList,
)
from rocketmq_aio.protocol.requests.groups import GetRouteInfo
from rocketmq_aio.protocol.static_topics import LOGICAL_PREFIX, is_logical
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.spark.offsets import Queue
from rocketmq_aio.spark.options.source_options import ReadOptions
from rocketmq_aio.spark.read.data_loss import Extent, WarnOnce, warn

T = TypeVar("T")
K = TypeVar("K")

MAX_CONCURRENT: Final = 16  # requests to one broker, and route requests
INCLUDES_INTERNAL: Final = "%"  # first character of patterns that match internal topics


class StaleReplicaError(RocketMQError):
    """A replica is behind, or a queue is being truncated: retry."""

    def __init__(self, queue: MessageQueue, offset: int, maximum: int) -> None:
        super().__init__(f"{queue}: no message at offset {offset}, though its maximum is {maximum}")


RETRYABLE: Final = (
    StaleReplicaError,
    BusyError,
    ConnectionLostError,
    NameServerUnavailableError,
    NotConnectedError,
    RequestTimeoutError,
    RouteNotFoundError,
)


class TopicQueues(NamedTuple):
    """The queues in the current routes, the deleted topics and the topics without a queue."""

    queues: frozenset[Queue]
    gone: frozenset[str]
    empty: frozenset[str]


class QueueResults(NamedTuple, Generic[T]):
    """Values by queue, and the error by unavailable broker."""

    values: dict[Queue, T]
    unavailable: dict[str, RocketMQError]


class Metadata:
    """Queries name servers and brokers; temporary errors are retried.

    A server that failed all retries gets no retries until it answers: an unavailable broker
    must not delay every micro-batch.
    """

    def __init__(
        self, instance: MQClientInstance, consumer: PullConsumer, options: ReadOptions
    ) -> None:
        self.instance = instance
        self._consumer = consumer
        self._options = options
        self._warn_once = WarnOnce()
        self._unavailable: set[str] = set()  # brokers, topics, and "" for the list of topics
        self._brokers: dict[str, set[str]] = {}  # by topic, from its last route
        self._matching_topics: list[str] | None = None

    async def topics(self, held: Collection[Queue] = ()) -> TopicQueues:
        """Return the queues of the selected topics and of the topics of selected *held* queues.

        :raises NameServerUnavailableError: none answered, and the route of a topic is unknown
        """
        held = [queue for queue in held if selects(self._options, queue)]
        wanted = sorted({*await self._topic_names(), *(topic for topic, _, _ in held)})
        self._seed_brokers(wanted, held)
        found = await _gather(wanted, self._queues_of)
        queues = {queue for there in found.values() if there is not None for queue in there}
        if self._options.assign:
            queues &= set(self._options.assign)
        gone = {topic for topic, there in found.items() if there is None}
        empty = {topic for topic, there in found.items() if there == []}
        return TopicQueues(frozenset(queues), frozenset(gone), frozenset(empty))

    def _seed_brokers(self, topics: Iterable[str], held: Collection[Queue]) -> None:
        """Derive the brokers of topics without a known route from the offsets and the options."""
        starts = self._options.starting_offsets
        queues = {*held, *self._options.assign, *(starts if isinstance(starts, dict) else ())}
        for topic in set(topics) - self._brokers.keys():
            mine = {queue for queue in queues if queue[0] == topic}
            if names := {broker for _, broker, _ in mine if not broker.startswith(LOGICAL_PREFIX)}:
                self._brokers[topic] = names

    async def _topic_names(self) -> Iterable[str]:
        pattern = self._options.subscribe_pattern
        if pattern is None:
            return self._options.subscribe or {topic for topic, _, _ in self._options.assign}
        try:
            found = await self._retry("", lambda: listed_topics(self.instance, pattern))
        except NameServerUnavailableError as error:
            if self._matching_topics is None:
                raise
            self._warn_once.warn("name_servers_away", None, reason=str(error))
        else:
            self._matching_topics = found
        return self._matching_topics

    async def _queues_of(self, topic: str) -> list[Queue] | None:
        """Return the queues of *topic*; None if it does not exist."""
        try:
            route = await self._retry(topic, lambda: self.instance.routes.fetch_merged(topic))
        except RouteNotFoundError:
            return None if await self._is_gone(topic) else []
        except NameServerUnavailableError as error:
            known = self.instance.routes.known(topic)
            if known is None:
                raise
            self._warn_once.warn("name_servers_away", None, reason=str(error))
            return list(map(_queue_key, known.subscribe_queues))
        self._warn_once.retain("name_servers_away", frozenset())
        self._brokers[topic] = set(route.brokers)
        return list(map(_queue_key, route.subscribe_queues))

    async def _is_gone(self, topic: str) -> bool:
        """Whether no name server has the topic, though its brokers are registered.

        The routes of an unavailable broker disappear, and a name server that has just started
        knows no topics before its brokers register.
        """
        header = GetRouteInfo(topic=topic, accept_standard_json_only=True)
        for address in self.instance.name_servers.addresses:
            try:
                command = await self.instance.remoting.request(address, header)
            except RocketMQError:
                continue  # another one has answered: no such topic
            if command.code == ResponseCode.SUCCESS:
                return False
        registered = await registered_brokers(self.instance)
        # If unknown, reading resumes when the topic has a route again.
        return bool(registered) and self._brokers.get(topic, set()) <= registered

    async def extents(
        self, queues: Iterable[Queue], read_up_to: Mapping[Queue, int] | None = None
    ) -> QueueResults[Extent]:
        """Return the extent of each queue; only the maximum where all was read before."""
        read_up_to = read_up_to or {}

        async def extent(key: Queue) -> Extent:
            queue = MessageQueue(*key)
            maximum = await self._consumer.max_offset(queue)
            if maximum == read_up_to.get(key):
                return Extent(maximum, maximum)
            minimum = max(0, await self._consumer.min_offset(queue))
            return Extent(minimum, max(minimum, maximum))

        return await self._query(queues, extent)

    async def committed(self, queues: Iterable[Queue]) -> QueueResults[int | None]:
        """Return the committed offset of each queue, or None."""
        return await self._query(queues, lambda key: self._consumer.committed(MessageQueue(*key)))

    async def offsets_at(
        self, instants: Mapping[Queue, int], extents: Mapping[Queue, Extent]
    ) -> QueueResults[int]:
        """Return the first offset stored at or after the milliseconds given for each queue."""

        async def search(key: Queue) -> int:
            queue, maximum = MessageQueue(*key), extents[key].maximum
            hint = await self.instance.broker.offset_for_time(queue, instants[key])
            return await TimeSearch(instants[key], *extents[key], hint).find(
                lambda offset, count: self._store_times(queue, offset, maximum, count)
            )

        return await self._query(instants, search)

    async def stored_at(self, places: Mapping[Queue, int]) -> QueueResults[int | None]:
        """Return the store time in ms of an offset by queue; None without a readable message."""

        async def stored(key: Queue) -> int | None:
            try:
                messages = (await self._pull(MessageQueue(*key), places[key], 1)).messages
                found = bool(messages) and messages[0].queue_offset == places[key]
                return millis_of(messages[0].store_time) if found else None
            except RETRYABLE:
                raise
            except RocketMQError:
                return None  # the tasks pull the same queue, and report the error with advice

        return await self._query(places, stored)

    async def _store_times(
        self, queue: MessageQueue, offset: int, maximum: int, count: int
    ) -> list[tuple[int, int]]:
        """Return offsets and store times of the next messages below *maximum*, if any.

        :raises StaleReplicaError: the broker has fewer messages than it reported
        """
        while offset < maximum:
            result = await self._pull(queue, offset, count)
            if result.messages:
                return [(each.queue_offset, millis_of(each.store_time)) for each in result.messages]
            if result.next_offset <= offset or result.status is PullStatus.OFFSET_RESET:
                raise StaleReplicaError(queue, offset, maximum)
            offset = result.next_offset  # after a gap
        return []

    async def _pull(self, queue: MessageQueue, offset: int, count: int) -> PullResult:
        result = await self._consumer.pull(queue, offset, count)
        if result.status is PullStatus.OFFSET_RESET:  # returned once, for any offset
            result = await self._consumer.pull(queue, offset, count)
        return result

    async def group_members(self, topics: Iterable[str]) -> set[str] | None:
        """Return the client ids of the live members of the group; None if no master responds.

        Members are registered with all brokers.
        """
        group = self._options.connection.group

        async def member_ids(address: str) -> list[str] | None:
            consumer_ids = partial(self.instance.broker.consumer_ids_at, group, address)
            try:
                return await self._retry(address, consumer_ids)
            except RETRYABLE:
                return None

        routes = map(self.instance.routes.known, topics)
        masters = {each for route in routes if route is not None for each in route.masters}
        found = (await _gather(sorted(masters), member_ids)).values()
        known = [ids for ids in found if ids is not None]
        return {each for ids in known for each in ids} if known else None

    def retry_pauses(self, server: str | None = None) -> Iterator[float]:
        """Yield the seconds before each retry; *server* is a broker, a topic, or empty."""
        if server not in self._unavailable:
            yield from self._options.retry_pauses()

    async def _retry(self, server: str, request: Callable[[], Awaitable[T]]) -> T:
        """Call *request* until it succeeds; raise the error of the last retry."""
        pauses = list(self.retry_pauses(server))
        for number, pause in enumerate([*pauses, None]):
            try:
                result = await request()
            except RETRYABLE as error:
                if pause is None:
                    self._unavailable.add(server)
                    raise
                if number == 0 and isinstance(error, RouteNotFoundError):
                    # Deleted topics wait here; without this log line it looks like a hang.
                    warn("waiting_for_topic", topic=error.topic, seconds=sum(pauses))
                await anyio.sleep(pause)
            else:
                self._unavailable.discard(server)
                return result
        raise AssertionError  # unreachable

    async def _query(
        self, queues: Iterable[Queue], request: Callable[[Queue], Awaitable[T]]
    ) -> QueueResults[T]:
        """Query the broker of each queue; an unavailable broker does not delay another."""
        by_broker: dict[str, list[Queue]] = {}
        for queue in sorted(queues):
            by_broker.setdefault(queue[1], []).append(queue)
        results: QueueResults[T] = QueueResults({}, {})

        async def query_queue(queue: Queue) -> None:
            results.values[queue] = await request(queue)

        async def query_missing(broker: str) -> None:
            await _gather([q for q in by_broker[broker] if q not in results.values], query_queue)

        async def query_broker(broker: str) -> None:
            try:
                await self._retry(broker, lambda: query_missing(broker))
            except RETRYABLE as error:
                results.unavailable[broker] = error

        await _gather(sorted(by_broker), query_broker)
        return results


async def _gather(keys: Iterable[K], request: Callable[[K], Awaitable[T]]) -> dict[K, T]:
    """Call *request* for all *keys*, some concurrently; raise the first failure."""
    return (await gather_limited(request, keys, MAX_CONCURRENT, fail_fast=True)).complete()


def selects(options: ReadOptions, queue: Queue) -> bool:
    """Whether *options* select *queue*, which may come from an older checkpoint."""
    topic = queue[0]
    if options.subscribe_pattern is not None:
        return bool(matching([topic], options.subscribe_pattern, set()))
    return topic in options.subscribe or queue in options.assign


def _queue_key(queue: MessageQueue) -> Queue:
    return queue.topic, queue.broker_name, queue.queue_id


async def listed_topics(instance: MQClientInstance, pattern: str) -> list[str]:
    """Return the current topics whose whole name matches *pattern*."""
    commands = await instance.name_servers.request_all(GetAllTopics())
    listed = {name for each in commands for name in read_body(each.body, TopicList).topic_list}
    names = names_inside(instance.remoting.namespace, listed)
    # Brokers create topics named after themselves and their cluster.
    servers = {
        name
        for each in await _cluster_infos(instance)
        for name in (*each.broker_addr_table, *each.cluster_addr_table)
    }
    return matching(names, pattern, servers)


async def registered_brokers(instance: MQClientInstance) -> set[str]:
    """Return the names of the registered brokers; none if no name server answers."""
    try:
        return {name for each in await _cluster_infos(instance) for name in each.broker_addr_table}
    except RocketMQError:
        return set()


async def is_gone(
    instance: MQClientInstance, queue: MessageQueue, cause: RocketMQError | None
) -> bool:
    """Whether pulls fail by *cause* because *queue* or its topic was deleted.

    The routes of an unavailable broker disappear, too: its broker must be registered.
    """
    if isinstance(cause, RouteNotFoundError):
        return queue.broker_name in await registered_brokers(instance)
    if not isinstance(cause, BrokerError) or is_logical(queue):
        return False
    try:
        route = await instance.routes.fetch_merged(queue.topic)
    except RocketMQError:
        return False
    return queue.broker_name in route.brokers and queue not in route.subscribe_queues


async def _cluster_infos(instance: MQClientInstance) -> list[ClusterInfoBody]:
    """Return the brokers by name server: one that has just restarted lacks some."""
    commands = await instance.name_servers.request_all(GetClusterInfo())
    return [read_body(each.body, ClusterInfoBody) for each in commands]


def matching(names: Iterable[str], pattern: str, servers: set[str]) -> list[str]:
    """Return the sorted matches of *pattern*, without internal topics and names of *servers*."""
    found = sorted(name for name in set(names) if re.fullmatch(pattern, name))
    if pattern.startswith(INCLUDES_INTERNAL):
        return found
    return [name for name in found if not is_internal_topic(name, servers)]
