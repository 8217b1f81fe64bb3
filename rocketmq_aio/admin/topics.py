"""Topic administration: create, change, delete and describe topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import anyio
import msgspec

from rocketmq_aio.admin.requests import AdminRequests, Masters, broker_info
from rocketmq_aio.admin.results import (
    QueueCount,
    QueueStats,
    TopicConfig,
    TopicRouteInfo,
    TopicStats,
    perm_text,
    time_of,
)
from rocketmq_aio.admin.topic_settings import (
    TopicSettings,
    changed,
    checked,
    config_of,
    new_topic,
    to_request,
)
from rocketmq_aio.errors import BrokerError, ConfigError, NotSupportedError, RouteNotFoundError
from rocketmq_aio.model.names import check_topic, is_internal_topic
from rocketmq_aio.protocol.bodies import queue_key
from rocketmq_aio.protocol.codes import V5_0_0, ResponseCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.admin import (
    DeleteKVConfig,
    DeleteTopicInBroker,
    DeleteTopicInNameServer,
    GetAllTopicConfig,
    GetAllTopics,
    GetGroupsOfTopic,
    GetKVConfig,
    GetKVConfigResponse,
    GetTopicConfig,
    GetTopicsOfCluster,
    GetTopicStats,
    GroupList,
    PutKVConfig,
    TopicConfigBody,
    TopicConfigTable,
    TopicList,
    TopicStatsTable,
)

FIND_SECONDS: Final = 10.0  # brokers usually register a new topic at once
POLL_SECONDS: Final = 0.05
ORDER_CONF: Final = "ORDER_TOPIC_CONFIG"


class Held(NamedTuple):
    """A topic on a broker; *body* is None if it does not exist there."""

    body: TopicConfigBody | None
    address: str
    version: int  # of the broker


class TopicAdmin:
    """Creates, changes, deletes and describes topics; documented in `AdminClient`."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def create(
        self,
        topic: str,
        cluster: str | None,
        brokers: Iterable[str] | None,
        settings: TopicSettings,
    ) -> list[TopicConfig]:
        wanted = checked(settings)
        masters = await self._requests.masters(cluster, brokers)
        held = await self._held(check_topic(topic), masters)
        _check_equal(topic, held, wanted)
        missing = {name: masters[name] for name, each in held.items() if each.body is None}

        async def make(name: str, address: str) -> None:
            await self._put(held[name], new_topic(topic, name, wanted), wanted)

        await self._requests.on_each(f"creating topic {topic}", missing, make)
        if wanted.get("order"):
            made = [new_topic(topic, name, wanted) for name in masters]
            await self._keep_order(topic, made, True)
        await self._wait_found(topic, set(masters))
        return await self._configs(topic, masters)

    async def update(
        self,
        topic: str,
        cluster: str | None,
        brokers: Iterable[str] | None,
        settings: TopicSettings,
    ) -> list[TopicConfig]:
        wanted = checked(settings)
        masters = await self._requests.masters(cluster, brokers)
        held = await self._holders(topic, masters, named=brokers is not None)

        async def change(name: str, _: str) -> TopicConfig:
            body = held[name].body
            assert body is not None
            config = changed(config_of(name, topic, body), wanted)
            await self._put(held[name], config, wanted)
            return config

        targets = {name: masters[name] for name in held}
        configs = await self._requests.on_each(f"changing topic {topic}", targets, change)
        if "order" in wanted or "write_queues" in wanted:
            await self._keep_order(topic, configs.values(), wanted.get("order"))
        return list(configs.values())

    async def delete(self, topic: str, cluster: str | None) -> None:
        check_topic(topic)

        async def delete(_: str, address: str) -> None:
            await self._requests.ask(address, DeleteTopicInBroker(topic=topic))

        masters = await self._requests.masters(cluster)
        await self._requests.on_each(f"deleting topic {topic}", masters, delete)
        forget = DeleteTopicInNameServer(topic=topic, cluster_name=cluster)
        order = await self._order_without(topic, masters)
        await self._requests.on_name_servers(f"forgetting topic {topic}", forget, order)

    async def list_names(self, cluster: str | None, internal: bool) -> list[str]:
        if cluster is not None:
            await self._requests.masters(cluster)
        header = GetAllTopics() if cluster is None else GetTopicsOfCluster(cluster=cluster)
        command = await self._requests.ask_name_server(header)
        names = self._requests.inner_names(read_body(command.body, TopicList).topic_list)
        if internal:
            return sorted(names)
        brokers = (await self._requests.cluster_info()).brokers
        own = {name for each in brokers for name in (each.broker_name, each.cluster)}
        return sorted(name for name in names - own if not is_internal_topic(name))

    async def route(self, topic: str) -> TopicRouteInfo:
        data = await self._requests.route(check_topic(topic))
        queues = [
            QueueCount(
                broker_name=each.broker_name,
                read_queues=each.read_queue_nums,
                write_queues=each.write_queue_nums,
                perm=perm_text(each.perm),
            )
            for each in sorted(data.queue_datas, key=lambda each: each.broker_name)
        ]
        brokers = sorted(map(broker_info, data.broker_datas), key=lambda each: each.broker_name)
        conf = data.order_topic_conf or None
        return TopicRouteInfo(
            topic=topic, queues=tuple(queues), brokers=tuple(brokers), order_conf=conf
        )

    async def configs(self, topic: str) -> list[TopicConfig]:
        return await self._configs(topic, await self._requests.masters_of(check_topic(topic)))

    async def stats(self, topic: str) -> TopicStats:
        async def stats(_: str, address: str) -> TopicStatsTable:
            command = await self._requests.ask(address, GetTopicStats(topic=topic))
            return read_body(command.body, TopicStatsTable)

        masters = await self._requests.masters_of(check_topic(topic))
        tables = await self._requests.on_each(f"measuring topic {topic}", masters, stats)
        queues = [
            QueueStats(
                queue=queue_key(key),
                min_offset=each.min_offset,
                max_offset=each.max_offset,
                last_update=time_of(each.last_update_timestamp),
            )
            for table in tables.values()
            for key, each in table.offset_table.items()
        ]
        return TopicStats(topic=topic, queues=tuple(sorted(queues, key=lambda each: each.queue)))

    async def groups(self, topic: str) -> list[str]:
        async def groups(_: str, address: str) -> list[str]:
            command = await self._requests.ask(address, GetGroupsOfTopic(topic=topic))
            return read_body(command.body, GroupList).group_list

        masters = await self._requests.masters_of(check_topic(topic))
        lists = await self._requests.on_each(f"asking for groups of topic {topic}", masters, groups)
        return sorted(
            self._requests.inner_names(name for names in lists.values() for name in names)
        )

    # --- inside ---------------------------------------------------------------------------------

    async def _held(self, topic: str, masters: Masters) -> dict[str, Held]:
        async def look(_: str, address: str) -> Held:
            return await self._held_at(address, topic)

        return await self._requests.on_each(f"looking for topic {topic}", masters, look)

    async def _holders(self, topic: str, masters: Masters, *, named: bool) -> dict[str, Held]:
        held = await self._held(check_topic(topic), masters)
        there = {name: each for name, each in held.items() if each.body is not None}
        if not there or (named and len(there) < len(held)):
            raise RouteNotFoundError(topic, f"it is not on {sorted(held.keys() - there.keys())}")
        return there

    async def _held_at(self, address: str, topic: str) -> Held:
        try:
            command = await self._requests.ask(address, GetTopicConfig(topic=topic))
        except NotSupportedError:  # older than 5.0
            return await self._held_in_table(address, topic)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return Held(None, address, V5_0_0)
        return Held(read_body(command.body, TopicConfigBody), address, command.version)

    async def _held_in_table(self, address: str, topic: str) -> Held:
        command = await self._requests.ask(address, GetAllTopicConfig())
        table = read_body(command.body, TopicConfigTable).topic_config_table
        return Held(table.get(self._requests.outer(topic)), address, command.version)

    async def _configs(self, topic: str, masters: Masters) -> list[TopicConfig]:
        held = await self._held(topic, masters)
        found = {name: each.body for name, each in held.items() if each.body is not None}
        return [config_of(name, topic, found[name]) for name in sorted(found)]

    async def _put(self, held: Held, config: TopicConfig, wanted: TopicSettings) -> None:
        attributes: Mapping[str, str | None] = wanted.get("attributes", {})
        if attributes and held.version < V5_0_0:
            reason = "attributes of topics need a broker of 5.0 or newer"
            raise NotSupportedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason, held.address)
        sys_flag = held.body.topic_sys_flag if held.body is not None else 0
        await self._requests.ask(held.address, to_request(config, attributes, sys_flag))

    async def _keep_order(
        self, topic: str, configs: Iterable[TopicConfig], order: bool | None
    ) -> None:
        """Store the number of queues by broker in the name servers.

        :param order: None updates only the brokers that are stored already
        """
        key = self._requests.outer(topic)
        before = await self._ordered(key)
        counts = dict(before)
        for each in configs:
            known = counts.pop(each.broker_name, None) is not None
            if order or (known and order is None):
                counts[each.broker_name] = str(each.write_queues)
        if counts == before:
            return
        await self._requests.on_name_servers(
            f"keeping the order of topic {topic}", _order(key, counts)
        )

    async def _order_without(self, topic: str, masters: Masters) -> PutKVConfig | DeleteKVConfig:
        """Return the request that removes *masters* from the order configuration of *topic*."""
        key = self._requests.outer(topic)
        counts = await self._ordered(key)
        return _order(key, {name: n for name, n in counts.items() if name not in masters})

    async def _ordered(self, key: str) -> dict[str, str]:
        """Return the order configuration from a name server; older brokers do not store it."""
        address = self._requests.instance.name_servers.addresses[0]
        try:
            command = await self._requests.ask(address, GetKVConfig(namespace=ORDER_CONF, key=key))
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return {}
        conf = read_header(command, GetKVConfigResponse).value or ""
        parts = [part.rpartition(":") for part in conf.split(";")]
        return {name: count for name, _, count in parts if name}

    async def _wait_found(self, topic: str, brokers: set[str]) -> None:
        missing = brokers
        with anyio.move_on_after(FIND_SECONDS):
            while missing:
                missing = brokers - await self._found_on(topic)
                if missing:
                    await anyio.sleep(POLL_SECONDS)
        if missing:
            reason = f"it was made, and the name server does not know it on {sorted(missing)} yet"
            raise RouteNotFoundError(topic, reason)

    async def _found_on(self, topic: str) -> set[str]:
        try:
            return {each.broker_name for each in (await self._requests.route(topic)).queue_datas}
        except RouteNotFoundError:
            return set()


def _check_equal(topic: str, held: Mapping[str, Held], wanted: TopicSettings) -> None:
    for name, each in held.items():
        if each.body is None:
            continue
        config = config_of(name, topic, each.body)
        if each.version < V5_0_0:  # they do not store `order`
            config = msgspec.structs.replace(config, order=wanted.get("order", False))
        if changed(config, wanted) != config:
            raise ConfigError("topic", topic, f"it is there as {config}; use update_topic")


def _order(key: str, counts: Mapping[str, str]) -> PutKVConfig | DeleteKVConfig:
    """Return the request that stores *counts* as the order configuration of a topic."""
    if not counts:
        return DeleteKVConfig(namespace=ORDER_CONF, key=key)
    value = ";".join(f"{name}:{count}" for name, count in sorted(counts.items()))
    return PutKVConfig(namespace=ORDER_CONF, key=key, value=value)
