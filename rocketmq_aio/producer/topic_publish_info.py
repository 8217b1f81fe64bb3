"""Topic publish info: the writable queues of topics, with prepared request headers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Final

import msgspec

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.config.validation import is_queue
from rocketmq_aio.errors import (
    ConfigError,
    NameServerUnavailableError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.routes import RouteTable, TopicRoute
from rocketmq_aio.model.address import has_port, vip_address
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.requests.send import SendBatchMessage, SendMessage, SendReplyMessage
from rocketmq_aio.protocol.templates import SendTemplate

UNUSED_SECONDS: Final = 600.0  # a topic not sent to for this long is dropped
RENEW_SECONDS: Final = 0.5  # least time between two route requests for a topic whose sends fail
UNAVAILABLE_SECONDS: Final = 0.1  # least pause after a lookup that all name servers failed

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class SendTarget(msgspec.Struct, frozen=True, gc=False):
    """A queue to send to: its broker, the address of the master, and prepared frames.

    While the broker has no master, both addresses are its name: nothing can be sent there.
    """

    queue: MessageQueue
    broker_name: str  # not that of *queue* where the topic is static
    address: str  # where it is sent to
    master: str  # as the route says; not *address* with a VIP channel
    template: SendTemplate
    batch_template: SendTemplate
    reply_template: SendTemplate


class TopicPublishInfo:
    """The writable queues of one topic, used round-robin."""

    def __init__(
        self,
        route: TopicRoute,
        group: str,
        config: ProducerConfig,
        client: ClientConfig | None = None,
    ) -> None:
        self.topic = route.topic
        self.queues = route.publish_queues
        self.ordered_queues = route.ordered_queues or route.publish_queues
        self.used_at = monotonic()
        self.renewed_at = 0.0
        self.brokers = {route.broker_of(queue) for queue in self.queues}
        self._group = group
        self._unit_mode = client is not None and client.unit_mode
        self._vip = client is not None and client.vip_channel
        self._config = config
        self._broker_of = route.broker_of
        self._masters = route.write_masters()
        self.replicated = {name for name, addresses in route.brokers.items() if len(addresses) > 1}
        self.has_alternatives = len(self.brokers) > 1 or bool(self.replicated)
        self._without_master = route.brokers.keys() - self._masters.keys()
        self._templates: dict[str, tuple[SendTemplate, SendTemplate, SendTemplate]] = {}
        self._all = self._targets = [self.target(queue) for queue in self.queues]
        # A random start, so that not every producer begins with the first queue.
        self._next = random.randrange(len(self._targets))

    def next_target(self) -> SendTarget:
        self._next = index = (self._next + 1) % len(self._targets)
        return self._targets[index]

    def exclude(self, addresses: frozenset[str]) -> None:
        """Exclude the brokers at *addresses* from round-robin, unless there are no others."""
        targets = [target for target in self._all if target.address not in addresses] or self._all
        self._targets, self._next = targets, random.randrange(len(targets))

    def masters(self) -> dict[str, str]:
        """Return the brokers that have queues of the topic, and their masters."""
        return {broker: self._masters[broker] for broker in self.brokers}

    def next_target_avoiding(self, failed: frozenset[str]) -> SendTarget:
        """Return the next queue that is not on a *failed* broker; any queue if all brokers failed.

        An excluded broker is preferred to a failed one.
        """
        for _ in self._targets:
            target = self.next_target()
            if target.broker_name not in failed:
                return target
        others = [target for target in self._all if target.broker_name not in failed]
        return random.choice(others) if others else self.next_target()

    def target_on(self, broker_name: str) -> SendTarget | None:
        """Return a queue of the broker, excluded or not, or None."""
        for target in self._all:
            if target.queue.broker_name == broker_name:
                return target
        return None

    def target(self, queue: MessageQueue, last_address: str | None = None) -> SendTarget:
        """Return how to send to *queue*; *last_address* is used while its broker has no master.

        :raises ConfigError: it is not a queue of this topic
        :raises RouteNotFoundError: the route does not name its broker
        """
        if not is_queue(queue) or queue.topic != self.topic:
            raise not_of_topic(queue, self.topic)
        broker = self._broker_of(queue)
        address = self._masters.get(broker, last_address)
        if address is None and broker not in self._without_master:
            raise RouteNotFoundError(self.topic, f"its route does not name broker {broker!r}")
        if broker not in self._templates:
            plain, batch = self.header(queue), self.header(queue, batch=True)
            kinds = SendTemplate(plain), SendTemplate(batch), SendTemplate(reply_header(plain))
            self._templates[broker] = kinds
        master, templates = address or broker, self._templates[broker]
        return SendTarget(queue, broker, self.send_address(master), master, *templates)

    def send_address(self, master: str) -> str:
        return vip_address(master) if self._vip and has_port(master) else master

    def is_closed(self, queue: MessageQueue) -> bool:
        """Whether the permissions of the topic exclude *queue*, whose broker has a master."""
        return queue.broker_name in self._masters and queue not in self.ordered_queues

    def header(self, queue: MessageQueue, *, batch: bool = False) -> SendMessage:
        """Return the header of a send to *queue*, without the fields of a message."""
        kind = SendBatchMessage if batch else SendMessage
        return kind(
            producer_group=self._group,
            topic=self.topic,
            default_topic=self._config.template_topic,
            default_topic_queue_nums=self._config.template_queues,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=self._unit_mode,
            batch=batch,
            broker_name=self._broker_of(queue),
        )


def not_of_topic(queue: object, topic: str) -> ConfigError:
    if is_queue(queue):
        return ConfigError("queue", queue, f"it does not belong to topic {topic!r}")
    return ConfigError("queue", queue, f"expected one of await producer.publish_queues({topic!r})")


def reply_header(header: SendMessage) -> SendReplyMessage:
    return SendReplyMessage(**msgspec.structs.asdict(header))


class TopicPublishTable:
    """The `TopicPublishInfo` of every topic in use, and the brokers that they exclude."""

    def __init__(self, instance: MQClientInstance, group: str, config: ProducerConfig) -> None:
        self.infos: dict[str, TopicPublishInfo] = {}
        self._instance = instance
        self._group = group
        self._config = config
        self._excluded: frozenset[str] = frozenset()
        # Earlier queues of topics whose route has changed since they were sent to.
        self._changed: dict[str, TopicPublishInfo] = {}

    def topics(self) -> Iterable[str]:
        """Return the topics sent to lately; drop the others."""
        since = monotonic() - UNUSED_SECONDS
        for table in (self.infos, self._changed):
            for topic in [t for t, each in table.items() if each.used_at < since]:
                del table[topic]
        return (*self.infos, *self._changed)

    def drop(self, topic: str) -> None:
        """Drop the queues of *topic*, whose route has changed.

        The route stays in use: the next send may find no name server.  Topics that are still to be
        created have the queues of the template topic.
        """
        known = self._instance.routes.known
        dropped = self.infos.pop(topic, None)
        if known(topic) is None:
            self._changed.pop(topic, None)
        elif dropped is not None:
            self._changed[topic] = dropped
        if topic == self._config.template_topic:
            for created in [each for each in self.infos if known(each) is None]:
                del self.infos[created]

    def exclude(self, addresses: frozenset[str]) -> None:
        """Exclude the brokers at *addresses* from round-robin, in all topics."""
        self._excluded = addresses
        for publish in self.infos.values():
            publish.exclude(addresses)

    async def find(self, topic: str, deadline: float) -> TopicPublishInfo:
        """Return the queues of *topic*; its route is requested if it is not known.

        :raises RouteNotFoundError: there is no such topic, or no queue of it is writable
        :raises NameServerUnavailableError: no name server responded before *deadline*
        """
        if (known := self.infos.get(topic)) is not None:
            return known
        failure: NameServerUnavailableError | None = None
        try:
            async with asyncio.timeout(deadline - monotonic()):
                while True:
                    try:
                        publish = await find_publish_info(
                            self._instance.routes,
                            topic,
                            self._group,
                            self._config,
                            self._instance.config,
                        )
                    except NameServerUnavailableError as error:
                        failure = error
                    else:
                        break
                    pause = self._instance.name_servers.backoff_left()
                    await asyncio.sleep(max(pause, UNAVAILABLE_SECONDS))
        except TimeoutError:
            raise self._not_found(topic, failure) from None
        publish.exclude(self._excluded)
        self._changed.pop(topic, None)
        return self.infos.setdefault(topic, publish)

    def _not_found(self, topic: str, failure: NameServerUnavailableError | None) -> RocketMQError:
        """Return why the queues of *topic* were not found before the deadline."""
        routes = self._instance.routes
        own = routes.known(topic)
        if own is not None and own.publish_queues:  # a client that shares the routes fetched it
            return RouteNotFoundError(topic, "its route to a master came after the deadline")
        route = own or routes.known(self._config.template_topic)
        if route is not None and not route.publish_queues:
            return RouteNotFoundError(topic, why_unwritable(route))
        if failure is not None:
            return failure
        silent = TimeoutError("no response before the deadline of the send")
        addresses = self._instance.name_servers.addresses
        return NameServerUnavailableError(dict.fromkeys(addresses, silent))

    async def refreshed(self, publish: TopicPublishInfo, deadline: float) -> TopicPublishInfo:
        """Return the queues after another request for the route, which lacks a broker in *publish*.

        The broker may have registered again since the last refresh.
        """
        topic, routes = publish.topic, self._instance.routes
        known = routes.known(topic)
        if known is not None and self.infos.get(topic) is publish:
            with suppress(RocketMQError, TimeoutError):
                async with asyncio.timeout(deadline - monotonic()):
                    await routes.wait_for_newer(known)
        return await self.find(topic, deadline)

    async def renewed(self, publish: TopicPublishInfo, deadline: float) -> TopicPublishInfo:
        """Return the queues of a new route: brokers may have moved since the last refresh.

        When no name server answers the queues stay; that takes half of the time at most.
        """
        topic, now = publish.topic, monotonic()
        middle = now + (deadline - now) / 2
        if self.infos.get(topic) is publish and now - publish.renewed_at > RENEW_SECONDS:
            publish.renewed_at = now
            with suppress(RocketMQError, TimeoutError):
                async with asyncio.timeout(middle - now):
                    await self._fetch(topic)
        with suppress(RocketMQError):
            return await self.find(topic, middle)
        return publish

    async def _fetch(self, topic: str) -> None:
        routes = self._instance.routes
        try:
            await routes.fetch(topic)
        except RouteNotFoundError:
            if routes.known(topic) is None:  # not created yet
                await routes.fetch(self._config.template_topic)


async def find_publish_info(
    routes: RouteTable,
    topic: str,
    group: str,
    config: ProducerConfig,
    client: ClientConfig | None = None,
) -> TopicPublishInfo:
    """Return the writable queues of *topic*.

    A topic that does not exist is created by the broker that gets its first message, if that
    broker allows it: the route of the template topic names the brokers that do.

    While its brokers have no master (a failover), the route is requested again until the caller
    times out; `why_unwritable` gives the reason then.

    :raises RouteNotFoundError: there is no such topic and none may be created, or no queue of it
        is writable
    """
    refetched = False
    while True:
        known = await _known_route(routes, topic, config)
        route = known if known.topic == topic else _created_route(known, topic, config)
        if route.publish_queues:
            return TopicPublishInfo(route, group, config, client)
        if refetched and not route.ordered_queues:
            raise RouteNotFoundError(topic, why_unwritable(route))
        await routes.wait_for_newer(known)
        refetched = True


def why_unwritable(route: TopicRoute) -> str:
    """Return why no queue of *route* can be written to now."""
    if not route.ordered_queues:
        return "it is read-only: no queue of it may be written to; check its permission"
    brokers = ", ".join(sorted({route.broker_of(queue) for queue in route.ordered_queues}))
    reason = f"its brokers ({brokers}) have no master now"
    if route.acting:
        return f"{reason}, or the topic is read-only: check its permission"
    return f"{reason}: they are down, or a failover is under way"


async def _known_route(routes: RouteTable, topic: str, config: ProducerConfig) -> TopicRoute:
    try:
        return await routes.get(topic)
    except RouteNotFoundError:
        pass
    try:
        template = await routes.fetch(config.template_topic)
    except RouteNotFoundError:
        reason = "the name servers know no such topic, and no broker creates topics; create it"
        raise RouteNotFoundError(topic, reason) from None
    try:
        # Again: it may have been created, or a name server that has just started knew no topic.
        return await routes.fetch(topic)
    except RouteNotFoundError:
        return template


def _created_route(template: TopicRoute, topic: str, config: ProducerConfig) -> TopicRoute:

    def of_topic(queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
        return tuple(
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in queues
            if queue.queue_id < config.template_queues
        )

    return replace(
        template,
        topic=topic,
        publish_queues=of_topic(template.publish_queues),
        subscribe_queues=(),
        ordered_queues=of_topic(template.ordered_queues),
    )
