"""Export and import of topics and groups."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Self, TypeVar

import msgspec
from msgspec.structs import replace

from rocketmq_aio.admin.group_settings import (
    check_config as check_group_config,
    config_of as group_config,
)
from rocketmq_aio.admin.groups import GroupAdmin
from rocketmq_aio.admin.results import GroupConfig, Result, TopicConfig
from rocketmq_aio.admin.servers import Masters, Servers, failure
from rocketmq_aio.admin.static_topics import StaticTopicAdmin
from rocketmq_aio.admin.topic_settings import check_config, config_of as topic_config
from rocketmq_aio.admin.topics import TopicAdmin
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.errors import AdminError, ConfigError, RocketMQError, RouteNotFoundError
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.protocol.bodies import MAX_QUEUES
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin import (
    GetAllGroups,
    GetAllTopicConfig,
    SubscriptionGroupTable,
)
from rocketmq_aio.protocol.requests.operations import MappedTopicTable, TopicMapping

C = TypeVar("C", TopicConfig, GroupConfig)


class Metadata(Result, frozen=True):
    """Topics and groups with their settings, by broker.

    :ivar order: the order configurations of name servers: queues by topic and broker
    :ivar static: the number of logical queues by static topic, which *topics* do not have
    """

    topics: tuple[TopicConfig, ...]
    groups: tuple[GroupConfig, ...]
    order: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    static: dict[str, int] = msgspec.field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_dict` returned.

        :raises ConfigError: it is something else
        """
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise ConfigError("values", "...", str(error)) from error


@checked_arguments
class MetadataAdmin:
    """Exports and imports topics and groups: ``admin.metadata``."""

    def __init__(
        self,
        servers: Servers,
        topics: TopicAdmin,
        static_topics: StaticTopicAdmin,
        groups: GroupAdmin,
    ) -> None:
        self._servers = servers
        self._topics = topics
        self._static_topics = static_topics
        self._groups = groups

    async def export(self, *, cluster: str | None = None) -> Metadata:
        """Return all topics and groups of all brokers or those of *cluster*, without internal ones.

        With a namespace of version 1, only those in it.
        """
        masters = await self._servers.masters(cluster)
        read = self._servers.read_each
        tables = await read("reading topics", masters, GetAllTopicConfig(), MappedTopicTable)
        sets = await read("reading groups", masters, GetAllGroups(), SubscriptionGroupTable)
        own = await self._topics.list(cluster=cluster)
        known = await self._groups.list(cluster=cluster)
        static = {
            topic: max(each.total_queues for each in mappings)
            for topic in own
            if (mappings := _mappings(self._servers.outer(topic), tables.values()))
        }
        topics = [
            topic_config(name, topic, table.topic_config_table[outer])
            for name, table in sorted(tables.items())
            for topic in own
            if topic not in static
            and (outer := self._servers.outer(topic)) in table.topic_config_table
        ]
        groups = [
            group_config(name, group, read_body(bytes(raw), dict))
            for name, table in sorted(sets.items())
            for group in known
            if (raw := table.subscription_group_table.get(self._servers.outer(group))) is not None
        ]
        exported = {each.topic for each in topics}
        order = {
            topic: some
            for topic, counts in sorted((await self._topics.orders()).items())
            if topic in exported and (some := {n: c for n, c in counts.items() if n in masters})
        }
        return Metadata(topics=tuple(topics), groups=tuple(groups), order=order, static=static)

    async def difference(
        self, metadata: Metadata, *, brokers: Mapping[str, str] | None = None
    ) -> Metadata:
        """Return the part of *metadata* that `restore` would create or change.

        :param brokers: as those of `restore`; the result has the new names
        :raises ConfigError: as `restore`
        :raises NotSupportedError: a setting needs a newer broker
        """
        wanted = _moved(metadata, brokers or {})

        async def compare(name: str, address: str) -> tuple[set[str], set[str]]:
            topics = [each for each in wanted.topics if each.broker_name == name]
            groups = [each for each in wanted.groups if each.broker_name == name]
            changes = await self._topics.changes(name, address, topics)
            bodies = await self._groups.changes(name, address, groups)
            return {each.topic for each in changes}, {*bodies}

        masters = await self._masters(wanted)
        found = await self._servers.on_each("reading topics and groups", masters, compare)
        known = await self._topics.orders() if wanted.order else {}
        return Metadata(
            topics=tuple(t for t in wanted.topics if t.topic in found[t.broker_name][0]),
            groups=tuple(g for g in wanted.groups if g.group in found[g.broker_name][1]),
            order={
                topic: counts
                for topic, counts in wanted.order.items()
                if not counts.items() <= known.get(topic, {}).items()
            },
            static={
                topic: queues
                for topic, queues in wanted.static.items()
                if await self._logical_queues(topic) < queues
            },
        )

    async def _logical_queues(self, topic: str) -> int:
        try:
            return len(await self._static_topics.queues(topic))
        except RouteNotFoundError:
            return 0

    async def _masters(self, metadata: Metadata) -> Masters:
        """Return the masters of the brokers of *metadata*; ConfigError if there is no such one."""
        needed = {each.broker_name for each in metadata.topics}
        needed |= {each.broker_name for each in metadata.groups}
        return await self._servers.masters(brokers=needed) if needed else {}

    async def restore(
        self, metadata: Metadata, *, brokers: Mapping[str, str] | None = None
    ) -> None:
        """Create or change all topics and groups of *metadata*, each on its broker.

        Others stay as they are.  A failure with topics does not keep groups from being tried.  The
        queues of a new static topic, and those that an existing one lacks, go to all masters.

        :param brokers: the new names of brokers of *metadata*; those that it lacks are rejected
        :raises ConfigError: there is no such broker, or a name or setting is invalid; nothing was
            changed
        :raises AdminError: ``done`` and ``failed`` have names such as ``topics on broker-a``
        """
        wanted = _moved(metadata, brokers or {})
        await self._masters(wanted)
        outcomes = {
            **await _outcomes("topics", wanted.topics, self._topics.put(wanted.topics)),
            **await _outcomes("groups", wanted.groups, self._groups.put(wanted.groups)),
        }
        if wanted.order:
            outcomes["order of topics"] = await self._put_order(wanted.order)
        for topic, queues in wanted.static.items():
            outcomes[f"static topic {topic}"] = await self._grow(topic, queues)
        if failed := {part: error for part, error in outcomes.items() if error is not None}:
            done = {part: None for part in outcomes if part not in failed}
            raise failure("restoring metadata", done, failed, of="parts")

    async def _grow(self, topic: str, queues: int) -> RocketMQError | None:
        """Give a static topic as many queues as *queues* or more, and return the error."""
        try:
            if await self._logical_queues(topic) < queues:
                await self._static_topics.create(topic, queues)
        except RocketMQError as error:
            return error
        return None

    async def _put_order(self, order: Mapping[str, Mapping[str, int]]) -> RocketMQError | None:
        """Store *order*, keep that of other brokers, and return the error."""
        try:
            known = await self._topics.orders()
            for topic, counts in order.items():
                await self._topics.set_order(topic, {**known.get(topic, {}), **counts})
        except RocketMQError as error:
            return error
        return None


def _moved(metadata: Metadata, brokers: Mapping[str, str]) -> Metadata:
    """Return *metadata* with the new names of *brokers*; ConfigError if a value is invalid."""

    def moved(config: C) -> C:
        name = config.broker_name
        return replace(config, broker_name=brokers.get(name, name))

    known = {each.broker_name for each in metadata.topics}
    known |= {each.broker_name for each in metadata.groups}
    known |= {name for counts in metadata.order.values() for name in counts}
    if unknown := sorted(brokers.keys() - known):
        raise ConfigError("brokers", unknown[0], f"the metadata has {sorted(known)}")
    topics, groups = tuple(map(moved, metadata.topics)), tuple(map(moved, metadata.groups))
    for config in topics:
        check_config(config)
    for group in groups:
        check_group_config(group)
    _check_unique("topic", topics)
    _check_unique("group", groups)
    order = {
        check_topic(topic): {
            brokers.get(name, name): checked_count(f"order of {topic}", count)
            for name, count in counts.items()
        }
        for topic, counts in metadata.order.items()
    }
    for topic, queues in metadata.static.items():
        checked_count(f"static topic {check_topic(topic)}", queues, most=MAX_QUEUES)
    return Metadata(topics=topics, groups=groups, order=order, static=metadata.static)


def _mappings(outer: str, tables: Iterable[MappedTopicTable]) -> list[TopicMapping]:
    """Return the mappings of a static topic on all brokers; empty for an ordinary one."""
    found = (table.topic_queue_mapping_detail_map.get(outer) for table in tables)
    return [each for each in found if each is not None]


def _check_unique(kind: str, configs: Iterable[TopicConfig | GroupConfig]) -> None:
    """Reject different settings for one broker, as of two brokers that get the same name."""
    seen: dict[tuple[str, str], TopicConfig | GroupConfig] = {}
    for each in configs:
        name = getattr(each, kind)
        if seen.setdefault((each.broker_name, name), each) != each:
            raise ConfigError("brokers", each.broker_name, f"{kind} {name} has two settings there")


async def _outcomes(
    kind: str, configs: Iterable[TopicConfig | GroupConfig], storing: Awaitable[None]
) -> dict[str, RocketMQError | None]:
    """Return the error of *storing* for each broker of *configs*, None where it succeeded."""
    brokers = dict.fromkeys(each.broker_name for each in configs)
    failed: Mapping[str, RocketMQError] = {}
    try:
        await storing
    except AdminError as error:
        failed = error.failed
    except RocketMQError as error:
        failed = dict.fromkeys(brokers, error)
    return {f"{kind} on {name}": failed.get(name) for name in brokers}
