"""Export and import of topics and groups."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Self, TypeVar

import msgspec
from msgspec.structs import replace

from rocketmq_aio.admin.group_settings import config_of as group_config
from rocketmq_aio.admin.groups import GroupAdmin
from rocketmq_aio.admin.results import GroupConfig, Result, TopicConfig
from rocketmq_aio.admin.servers import Servers, failure
from rocketmq_aio.admin.topic_settings import check_config, config_of as topic_config
from rocketmq_aio.admin.topics import TopicAdmin
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.errors import AdminError, ConfigError, RocketMQError
from rocketmq_aio.model.names import check_group, check_topic
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin import (
    GetAllGroups,
    GetAllTopicConfig,
    SubscriptionGroupTable,
    TopicConfigTable,
)

C = TypeVar("C", TopicConfig, GroupConfig)


class Metadata(Result, frozen=True):
    """Topics and groups with their settings, by broker.

    :ivar order: the order configurations of name servers: queues by topic and broker
    """

    topics: tuple[TopicConfig, ...]
    groups: tuple[GroupConfig, ...]
    order: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)

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

    def __init__(self, servers: Servers, topics: TopicAdmin, groups: GroupAdmin) -> None:
        self._servers = servers
        self._topics = topics
        self._groups = groups

    async def export(self, *, cluster: str | None = None) -> Metadata:
        """Return all topics and groups of all brokers or those of *cluster*, without internal ones.

        With a namespace of version 1, only those in it.
        """
        masters = await self._servers.masters(cluster)
        read = self._servers.read_each
        tables = await read("reading topics", masters, GetAllTopicConfig(), TopicConfigTable)
        sets = await read("reading groups", masters, GetAllGroups(), SubscriptionGroupTable)
        own = await self._topics.list(cluster=cluster)
        known = await self._groups.list(cluster=cluster)
        topics = [
            topic_config(name, topic, table.topic_config_table[outer])
            for name, table in sorted(tables.items())
            for topic in own
            if (outer := self._servers.outer(topic)) in table.topic_config_table
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
        return Metadata(topics=tuple(topics), groups=tuple(groups), order=order)

    async def restore(
        self, metadata: Metadata, *, brokers: Mapping[str, str] | None = None
    ) -> None:
        """Create or change all topics and groups of *metadata*, each on its broker.

        Others stay as they are.  A failure with topics does not keep groups from being tried.

        :param brokers: the new names of brokers of *metadata*; those that it lacks are rejected
        :raises ConfigError: there is no such broker, or a name or setting is invalid; nothing was
            changed
        :raises AdminError: ``done`` and ``failed`` have names such as ``topics on broker-a``
        """

        def moved(config: C) -> C:
            name = config.broker_name
            return replace(config, broker_name=(brokers or {}).get(name, name))

        known = {each.broker_name for each in metadata.topics}
        known |= {each.broker_name for each in metadata.groups}
        known |= {name for counts in metadata.order.values() for name in counts}
        if unknown := sorted((brokers or {}).keys() - known):
            raise ConfigError("brokers", unknown[0], f"the metadata has {sorted(known)}")
        topics, groups = [*map(moved, metadata.topics)], [*map(moved, metadata.groups)]
        for topic in topics:
            check_config(topic)
        for group in groups:
            check_group(group.group)
        _check_unique("topic", topics)
        _check_unique("group", groups)
        order = {
            check_topic(topic): {
                (brokers or {}).get(name, name): checked_count(f"order of {topic}", count)
                for name, count in counts.items()
            }
            for topic, counts in metadata.order.items()
        }
        needed = {each.broker_name for each in topics} | {each.broker_name for each in groups}
        if needed:
            await self._servers.masters(brokers=needed)
        outcomes = {
            **await _outcomes("topics", topics, self._topics.put(topics)),
            **await _outcomes("groups", groups, self._groups.put(groups)),
        }
        if order:
            outcomes["order of topics"] = await self._put_order(order)
        if failed := {part: error for part, error in outcomes.items() if error is not None}:
            done = {part: None for part in outcomes if part not in failed}
            raise failure("restoring metadata", done, failed, of="parts")

    async def _put_order(self, order: Mapping[str, Mapping[str, int]]) -> RocketMQError | None:
        """Store *order*, keep that of other brokers, and return the error."""
        try:
            known = await self._topics.orders()
            for topic, counts in order.items():
                await self._topics.set_order(topic, {**known.get(topic, {}), **counts})
        except RocketMQError as error:
            return error
        return None


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
