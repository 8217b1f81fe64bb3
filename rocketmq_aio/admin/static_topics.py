"""Administration of static topics (5.x): a fixed number of logical queues that can be moved."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from rocketmq_aio.admin.server_results import LogicalQueue
from rocketmq_aio.admin.servers import TOPIC_OR_NOT, Brokers, Masters, Servers, before_change
from rocketmq_aio.admin.static_mapping import StaticMapping
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.errors import ConfigError, RouteNotFoundError
from rocketmq_aio.instance.routes import TEMPLATE_TOPIC
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.protocol.bodies import MAX_QUEUES, TopicRouteData, queue_key
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin import GetTopicConfig, GetTopicStats, TopicStatsTable
from rocketmq_aio.protocol.requests.operations import CreateStaticTopic, MappedTopicBody
from rocketmq_aio.protocol.static_topics import logical_queues

ROUTE_SECONDS: Final = 60.0  # brokers tell the name servers at once, or when they register again


@checked_arguments
class StaticTopicAdmin:
    """Creates static topics and moves their queues: ``admin.static_topics``.

    Every broker that the name servers know stores the mapping, so all masters must be up.  Repeat a
    call that failed midway: it continues.  Brokers before 5.0 raise `NotSupportedError`.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def queues(self, topic: str) -> list[LogicalQueue]:
        """Return the logical queues of a static topic with their owners.

        :raises RouteNotFoundError: there is no such topic
        :raises ConfigError: it is an ordinary topic
        """
        return (await self._existing(topic, await self._servers.masters())).queues()

    async def create(
        self, topic: str, queues: int, *, cluster: str | None = None, brokers: Brokers = None
    ) -> list[LogicalQueue]:
        """Create a static topic, or add queues to it.

        New queues go to those with the fewest of all masters, those of *cluster*, or *brokers*.
        Returns when a name server knows the owners.

        :param queues: number of logical queues; it can grow, but not shrink
        :raises ConfigError: an argument is invalid, the topic has more queues, or it is an ordinary
            topic; nothing was changed
        :raises RouteNotFoundError: it was created, but no name server lists it within 60 s
        """
        checked_count("queues", queues, most=MAX_QUEUES)
        targets = await self._servers.masters(cluster, brokers)
        masters = await self._servers.masters()
        mapping = await before_change(self._read(topic, masters))
        if queues < mapping.total:
            reason = f"static topic {topic} has {mapping.total}, and queues cannot be removed"
            raise ConfigError("queues", queues, reason)
        mapping.grow(queues, targets)
        await self._store(topic, mapping, masters, masters)
        owners = {each.queue_id: each.broker_name for each in mapping.queues()}

        def is_complete(route: TopicRouteData) -> bool:
            return owners == {q.queue_id: name for q, name in logical_queues(topic, route).items()}

        if not await self._servers.wait_for_route(topic, ROUTE_SECONDS, is_complete):
            raise RouteNotFoundError(topic, "it was created, but no name server lists its queues")
        return mapping.queues()

    async def remap(
        self, topic: str, *, cluster: str | None = None, brokers: Brokers = None
    ) -> list[LogicalQueue]:
        """Move the queues of a static topic to all masters, those of *cluster*, or *brokers*.

        As few queues as possible move, so that these brokers own equal numbers of them.  Messages
        stay where they are and are read from there.  While a queue moves, sends to it return the
        queue offset -1.  Clients follow when the brokers have registered the change.

        :raises RouteNotFoundError: there is no such topic
        :raises ConfigError: it is an ordinary topic, or some of its queues have no owner
        """
        targets = await self._servers.masters(cluster, brokers)
        masters = await self._servers.masters()
        mapping = await before_change(self._existing(topic, masters))
        if ownerless := sorted(set(range(mapping.total)) - mapping.histories.keys()):
            reason = f"its queues {ownerless} have no owner: repeat `create` first"
            raise ConfigError("topic", topic, reason)
        mapping.move(targets)
        sources = {each.bname for each in mapping.undecided()}
        # The new owners first: from the next step on the previous ones reject sends.
        await self._store(topic, mapping, masters, mapping.owners())
        await self._store(topic, mapping, masters, sources)
        if sources:
            mapping.decide(await self._ends(topic, {name: masters[name] for name in sources}))
        await self._store(topic, mapping, masters, masters)
        return mapping.queues()

    async def _read(self, topic: str, masters: Masters) -> StaticMapping:
        header = GetTopicConfig(topic=check_topic(topic), with_mapping=True)
        action = f"reading static topic {topic}"
        responses = await self._servers.request_each(action, masters, header, TOPIC_OR_NOT)
        found = {
            name: read_body(each.body, MappedTopicBody)
            for name, each in responses.items()
            if each.code == ResponseCode.SUCCESS
        }
        if ordinary := sorted(name for name, each in found.items() if each.mapping_detail is None):
            raise ConfigError("topic", topic, f"{', '.join(ordinary)} has it as an ordinary topic")
        return StaticMapping(self._servers.outer(topic), found)

    async def _existing(self, topic: str, masters: Masters) -> StaticMapping:
        mapping = await self._read(topic, masters)
        if not mapping.total:
            raise RouteNotFoundError(topic, "no broker has such a static topic")
        return mapping

    async def _store(
        self, topic: str, mapping: StaticMapping, masters: Masters, names: Collection[str]
    ) -> None:
        """Store the mapping at the brokers *names*."""

        async def store(name: str, address: str) -> None:
            config, part = mapping.on(name)
            request = CreateStaticTopic(
                topic=topic,
                default_topic=TEMPLATE_TOPIC,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
            )
            await self._servers.request(address, request, msgspec.json.encode(part))

        targets = {name: masters.get(name) for name in names}
        await self._servers.on_each(f"storing the mapping of topic {topic}", targets, store)

    async def _ends(self, topic: str, sources: Masters) -> dict[tuple[str, int], int]:
        """Return the offset after the last message, by broker and physical queue."""
        header, action = GetTopicStats(topic=topic), f"reading offsets of topic {topic}"
        tables = await self._servers.read_each(action, sources, header, TopicStatsTable)
        return {
            (name, queue_key(key).queue_id): each.max_offset
            for name, table in tables.items()
            for key, each in table.offset_table.items()
        }
