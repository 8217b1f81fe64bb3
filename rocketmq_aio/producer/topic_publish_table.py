"""Topic publish table: the writable queues of each topic that was sent to lately."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import NameServerUnavailableError, RocketMQError, RouteNotFoundError
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.instance.routes import RouteTable, TopicRoute
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.topic_publish_info import TopicPublishInfo

UNUSED_SECONDS: Final = 600.0  # a topic not sent to for this long is dropped
RENEW_SECONDS: Final = 0.5  # least time between two route requests for a topic whose sends fail


class TopicPublishTable:
    """The `TopicPublishInfo` of every topic in use, and the brokers that they exclude."""

    def __init__(self, instance: MQClientInstance, group: str, config: ProducerConfig) -> None:
        self.infos: dict[str, TopicPublishInfo] = {}
        self._instance = instance
        self._group = group
        self._config = config
        self._excluded: frozenset[str] = frozenset()

    def drop_unused(self) -> None:
        """Drop the topics that were not sent to for `UNUSED_SECONDS`."""
        now = monotonic()
        unused = [t for t, each in self.infos.items() if now - each.used_at > UNUSED_SECONDS]
        for topic in unused:
            del self.infos[topic]

    def exclude(self, addresses: frozenset[str]) -> None:
        """Exclude the brokers at *addresses* from round-robin, in all topics."""
        self._excluded = addresses
        for publish in self.infos.values():
            publish.exclude(addresses)

    async def find(self, topic: str, deadline: float) -> TopicPublishInfo:
        """Return the queues of *topic*; its route is requested if it is not known.

        :raises RouteNotFoundError: there is no such topic, or no queue of it is writable
        :raises NameServerUnavailableError: no name server answered before *deadline*
        """
        if (known := self.infos.get(topic)) is not None:
            return known
        routes = self._instance.routes
        try:
            async with asyncio.timeout(deadline - monotonic()):
                publish = await find_publish_info(
                    routes, topic, self._group, self._config, self._instance.config
                )
        except TimeoutError:
            route = routes.known(topic) or routes.known(self._config.template_topic)
            if route is not None and not route.publish_queues:
                raise RouteNotFoundError(topic, why_unwritable(route)) from None
            silent = TimeoutError("no answer before the deadline of the send")
            addresses = self._instance.name_servers.addresses
            raise NameServerUnavailableError(dict.fromkeys(addresses, silent)) from None
        publish.exclude(self._excluded)
        return self.infos.setdefault(topic, publish)

    async def renewed(self, publish: TopicPublishInfo, deadline: float) -> TopicPublishInfo:
        """Return the queues of a new route: brokers may have moved since the last refresh.

        When no name server answers the queues stay; that takes half of the time at most.
        """
        topic, now = publish.topic, monotonic()
        if self.infos.get(topic) is publish and now - publish.renewed_at > RENEW_SECONDS:
            publish.renewed_at = now
            with suppress(RocketMQError, TimeoutError):
                async with asyncio.timeout((deadline - now) / 2):
                    await self._instance.routes.fetch(topic)
        with suppress(RocketMQError):
            return await self.find(topic, deadline)
        return publish


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
    return f"its brokers ({brokers}) have no master now: they are down, or a failover is under way"


async def _known_route(routes: RouteTable, topic: str, config: ProducerConfig) -> TopicRoute:
    try:
        return await routes.get(topic)
    except RouteNotFoundError:
        pass
    try:
        return await routes.get(config.template_topic)
    except RouteNotFoundError:
        reason = "the name servers know no such topic, and no broker creates topics; create it"
        raise RouteNotFoundError(topic, reason) from None


def _created_route(template: TopicRoute, topic: str, config: ProducerConfig) -> TopicRoute:
    """Return the route of a topic that its first message will create."""

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
