"""Topic administration: create, change, delete and describe topics."""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeVar, Unpack

import msgspec

from rocketmq_aio.admin.results import (
    QueueCount,
    QueueStats,
    TopicConfig,
    TopicRouteInfo,
    TopicStats,
    perm_bits,
    perm_text,
    time_of,
)
from rocketmq_aio.admin.servers import (
    AT_ONCE,
    FOUND_OR_NOT,
    TOPIC_OR_NOT,
    Brokers,
    Held,
    Masters,
    Servers,
    before_change,
    bodies,
    broker_info,
    not_supported,
)
from rocketmq_aio.admin.topic_settings import (
    TopicSettings,
    changed,
    check_config,
    check_given,
    checked,
    config_of,
    new_topic,
    to_request,
)
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.errors import (
    AdminError,
    ClosedError,
    CodecError,
    ConfigError,
    NotSupportedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.model.names import check_topic, is_internal_topic
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import TopicRouteData, queue_key
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
    KVTable,
    PutKVConfig,
    TopicConfigBody,
    TopicConfigTable,
    TopicList,
    TopicStatsTable,
)
from rocketmq_aio.protocol.requests.operations import (
    PUT_TOPICS,
    ListKVConfig,
    MappedTopicBody,
    MappedTopicTable,
)
from rocketmq_aio.remoting.gather import gather_limited

ROUTE_SECONDS: Final = 10.0  # brokers usually register a new topic at once
ORDER_CONF: Final = "ORDER_TOPIC_CONFIG"

HeldTopic = Held[TopicConfigBody]
T = TypeVar("T")


@checked_arguments
class TopicAdmin:
    """Creates, changes, deletes and describes topics: ``admin.topics``."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def create(
        self,
        topic: str,
        *,
        cluster: str | None = None,
        brokers: Brokers = None,
        **settings: Unpack[TopicSettings],
    ) -> builtins.list[TopicConfig]:
        """Create a topic on all masters, on those of *cluster*, or on *brokers*.

        Returns when a name server has routes to all of them.  A broker that has the topic with
        these settings is skipped.  See `TopicSettings`; the default is 8 read and write queues.

        :raises ConfigError: an argument is invalid, or a broker has the topic with other settings
            (see `update`); nothing was changed
        :raises RouteNotFoundError: it was created, but no name server lists it within 10 s
        """
        wanted = checked(settings)
        masters = await self._servers.masters(cluster, brokers)
        held = await before_change(self._held(check_topic(topic), masters))
        if any(map(_is_static, held.values())):
            raise ConfigError("topic", topic, "it exists as a static topic: see static_topics")
        _check_equal(topic, held, wanted)

        async def make(name: str, _: str) -> None:
            await self._put(held[name], new_topic(topic, name, wanted), wanted)

        missing = {name: masters[name] for name, each in held.items() if each.body is None}
        await self._servers.on_each(f"creating topic {topic}", missing, make)
        if wanted.get("order"):
            configs = {name: new_topic(topic, name, wanted) for name in masters}
            await self._put_order(f"creating topic {topic}", configs, True, configs)
        await self._wait_for_route(topic, masters)
        return _configs(topic, await self._held(topic, masters))

    async def update(
        self,
        topic: str,
        *,
        cluster: str | None = None,
        brokers: Brokers = None,
        **settings: Unpack[TopicSettings],
    ) -> builtins.list[TopicConfig]:
        """Change the given *settings* of a topic on every broker that has it.

        To shrink a topic without losing messages, reduce ``write_queues`` first, and
        ``read_queues`` when the queues are empty.

        :raises ConfigError: an argument is invalid, or the topic is static and a setting is about
            its queues; nothing was changed
        :raises RouteNotFoundError: none of the chosen brokers has the topic
        :raises AdminError: some servers failed.  If ``failed`` has name servers, all brokers were
            changed, and only the order configuration was not; with ``order=False`` none was
        """
        check_given(settings)
        wanted = checked(settings)
        masters = await self._servers.masters(cluster, brokers)
        held = await before_change(self._held(check_topic(topic), masters))
        existing = bodies(held)
        if not existing or (brokers is not None and len(existing) < len(held)):
            raise RouteNotFoundError(topic, f"it is not on {sorted(held.keys() - existing)}")
        if any(map(_is_static, held.values())):
            _check_static(topic, settings)
        action, is_ordered = f"changing topic {topic}", wanted.get("order")
        if is_ordered is False:  # brokers set it again while the name servers have the queues
            known = {name: config_of(name, topic, body) for name, body in existing.items()}
            await self._put_order(action, known, is_ordered, {})

        async def change(name: str, _: str) -> TopicConfig:
            config = changed(config_of(name, topic, existing[name]), wanted)
            await self._put(held[name], config, wanted)
            return config

        targets = {name: masters[name] for name in existing}
        configs = await self._servers.on_each(action, targets, change)
        if is_ordered or (is_ordered is None and "write_queues" in wanted):
            await self._put_order(action, configs, is_ordered, configs)
        return list(configs.values())

    async def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages, in *cluster* or everywhere; it may be missing.

        Deletes on all masters, then on all name servers.  Repeat the call when one fails: a
        broker that still has the topic registers it with the name servers again.

        :raises AdminError: some servers failed; ``failed`` has the causes.  If one of them is a
            broker, name servers were not changed
        """
        header = DeleteTopicInBroker(topic=check_topic(topic))
        masters = await self._servers.masters(cluster)
        await self._servers.send_each(f"deleting topic {topic}", masters, header)
        key = self._servers.outer(topic)
        counts = await self._order(key)
        others = {name: count for name, count in counts.items() if name not in masters}
        forget = DeleteTopicInNameServer(topic=topic, cluster_name=cluster)
        action = f"deleting topic {topic} in name servers"
        for request in (forget, _order_request(key, others)):
            await self._servers.send_each(action, self._servers.name_servers, request)

    async def list(
        self, *, cluster: str | None = None, internal: bool = False
    ) -> builtins.list[str]:
        """Return the names of all topics, or of those of *cluster*, sorted.

        :param internal: include system topics and those of groups (retry, dead letter)
        :raises ConfigError: there is no such cluster
        """
        if cluster is not None:
            await self._servers.masters(cluster)
        header = GetAllTopics() if cluster is None else GetTopicsOfCluster(cluster=cluster)
        # A restarted name server may lack some topics.
        responses = await self._servers.on_any_name_server(header)
        names = self._servers.inner_names(
            read_body(r.body, TopicList).topic_list for r in responses
        )
        if internal:
            return sorted(names)
        brokers = (await self._servers.cluster_info()).brokers
        own = {name for each in brokers for name in (each.broker_name, each.cluster)}
        return sorted(name for name in names if not is_internal_topic(name, own))

    async def route(self, topic: str) -> TopicRouteInfo:
        """Return the brokers and queues of a topic."""
        data = await self._servers.route(check_topic(topic))
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

    async def config(self, topic: str, *, brokers: Brokers = None) -> builtins.list[TopicConfig]:
        """Return the settings of a topic on each broker that has it, or on *brokers*."""
        replicas = await self._servers.replicas_of(check_topic(topic), brokers)
        return _configs(topic, await self._held(topic, replicas))

    async def stats(self, topic: str, *, brokers: Brokers = None) -> TopicStats:
        """Return the first and last offsets of the queues of a topic, or of those on *brokers*."""
        replicas = await self._servers.replicas_of(check_topic(topic), brokers)
        header, action = GetTopicStats(topic=topic), f"reading offsets of topic {topic}"
        tables = await self._servers.read_each(action, replicas, header, TopicStatsTable)
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

    async def groups(self, topic: str, *, brokers: Brokers = None) -> builtins.list[str]:
        """Return the groups that consume a topic or have committed offsets of it, sorted."""
        replicas = await self._servers.replicas_of(check_topic(topic), brokers)
        header, action = GetGroupsOfTopic(topic=topic), f"listing groups of topic {topic}"
        lists = await self._servers.read_each(action, replicas, header, GroupList)
        return sorted(self._servers.inner_names(each.group_list for each in lists.values()))

    async def clusters(self, topic: str) -> builtins.list[str]:
        """Return the names of the clusters that have a topic, sorted."""
        brokers = (await self._servers.route(check_topic(topic))).broker_datas
        return sorted({each.cluster for each in brokers})

    async def put(self, configs: Iterable[TopicConfig]) -> None:
        """Create or change topics as in *configs*, each on its broker; name servers follow later.

        Brokers from 5.3.0 get all topics in one request.

        :raises ConfigError: there is no such broker, or a setting is invalid; nothing was changed
        """
        chosen: dict[str, builtins.list[TopicConfig]] = {}
        for each in configs:
            check_config(each)
            chosen.setdefault(each.broker_name, []).append(each)

        async def put(name: str, address: str) -> None:
            configs = await self.changes(name, address, chosen[name])
            if not configs:
                return
            body = msgspec.json.encode({"topicConfigList": [*map(self._listed, configs)]})
            try:
                await self._servers.request(address, PUT_TOPICS, body)
            except NotSupportedError:  # older than 5.3
                for each in configs:
                    await self._servers.request(address, to_request(each, each.attributes))

        if chosen:
            masters = await self._servers.masters(brokers=chosen)
            action = f"storing {sum(map(len, chosen.values()))} topics"
            await self._servers.on_each(action, masters, put)

    async def order(self, topic: str) -> dict[str, int]:
        """Return the order configuration: queues by broker, empty if there is none.

        :raises CodecError: a name server holds another text; `name_servers.value` returns it
        """
        return _counts(topic, await self._order(self._servers.outer(check_topic(topic))))

    async def orders(self) -> dict[str, dict[str, int]]:
        """Return the order configurations of all topics that have one; errors as `order`."""
        header = ListKVConfig(namespace=ORDER_CONF)

        async def read(address: str) -> dict[str, str]:
            command = await self._servers.request(address, header, accept=FOUND_OR_NOT)
            return read_body(command.body, KVTable).table if command.body else {}

        texts = defaultdict[str, builtins.list[str]](list)
        for table in await self._of_name_servers(read):
            for key, text in table.items():
                if (topic := self._servers.inner(key)) is not None:
                    texts[topic].append(text)
        return {topic: _counts(topic, _merged_order(some)) for topic, some in texts.items()}

    async def set_order(self, topic: str, queues: Mapping[str, int]) -> None:
        """Store the order configuration at all name servers; without *queues*, delete it."""
        for name, count in queues.items():
            checked_count(name, count)
        key = self._servers.outer(check_topic(topic))
        request = _order_request(key, {name: str(count) for name, count in queues.items()})
        action = f"storing the order configuration of topic {topic}"
        await self._servers.send_each(action, self._servers.name_servers, request)

    async def allocate(
        self, topic: str, client_ids: Iterable[str]
    ) -> dict[str, builtins.list[MessageQueue]]:
        """Return which queues each of *client_ids* would read with the strategy ``average``."""
        clients = sorted(set(client_ids))
        if not clients:
            raise ConfigError("client_ids", clients, "expected at least one")
        queues = sorted((await self._servers.instance.routes.fetch(topic)).subscribe_queues)
        size, more = divmod(len(queues), len(clients))
        ends = [size * at + min(at, more) for at in range(len(clients) + 1)]
        return {
            client: queues[start:end]
            for client, (start, end) in zip(clients, pairwise(ends), strict=True)
        }

    async def changes(
        self, broker_name: str, address: str, configs: Iterable[TopicConfig]
    ) -> builtins.list[TopicConfig]:
        """Return those of *configs* that the broker does not have, without attributes that it has.

        A broker stores nothing of a list that contains a topic as it is, and reports success
        (5.5.0).  It rejects attributes that cannot be changed, such as ``queue.type``, also if
        they are equal.

        :raises NotSupportedError: a topic has attributes, and the broker is older than 5.0
        :raises ConfigError: a topic is static there
        """
        command = await self._servers.request(address, GetAllTopicConfig())
        table = read_body(command.body, MappedTopicTable)
        changes = []
        for config in configs:
            outer = self._servers.outer(config.topic)
            if outer in table.topic_queue_mapping_detail_map:
                reason = f"{broker_name} has it as a static topic: see static_topics"
                raise ConfigError("topic", config.topic, reason)
            body = table.topic_config_table.get(outer)
            held = None if body is None else config_of(broker_name, config.topic, body)
            if config != held:
                _check_release(address, command.version, config.attributes)
                known = {} if held is None else held.attributes
                new = {n: text for n, text in config.attributes.items() if known.get(n) != text}
                changes.append(msgspec.structs.replace(config, attributes=new))
        return changes

    def _listed(self, config: TopicConfig) -> TopicConfigBody:
        """Return the JSON body of *config*, with signs at its attributes."""
        return TopicConfigBody(
            topic_name=self._servers.outer(config.topic),
            read_queue_nums=config.read_queues,
            write_queue_nums=config.write_queues,
            perm=perm_bits(config.perm),
            topic_sys_flag=config.sys_flag,
            order=config.order,
            attributes={f"+{name}": text for name, text in config.attributes.items()},
        )

    async def _held(self, topic: str, masters: Masters) -> dict[str, HeldTopic]:
        header = GetTopicConfig(topic=topic, with_mapping=True)

        async def look_up(_: str, address: str) -> HeldTopic:
            try:
                command = await self._servers.request(address, header, accept=TOPIC_OR_NOT)
            except NotSupportedError:  # older than 5.0
                command = await self._servers.request(address, GetAllTopicConfig())
                table = read_body(command.body, TopicConfigTable).topic_config_table
                return Held(table.get(self._servers.outer(topic)), address, command.version)
            exists = command.code == ResponseCode.SUCCESS
            body = read_body(command.body, MappedTopicBody) if exists else None
            return Held(body, address, command.version)

        return await self._servers.on_each(f"looking up topic {topic}", masters, look_up)

    async def _put(self, held: HeldTopic, config: TopicConfig, wanted: TopicSettings) -> None:
        attributes: Mapping[str, str | None] = wanted.get("attributes", {})
        _check_release(held.address, held.version, attributes)
        await self._servers.request(held.address, to_request(config, attributes))

    async def _put_order(
        self,
        action: str,
        configs: Mapping[str, TopicConfig],
        order: bool | None,
        done: Mapping[str, object],
    ) -> None:
        """Store the number of queues by broker in the name servers, a step of *action*.

        :param configs: the settings that brokers have now; of one topic
        :param order: None updates only the brokers that are stored already
        :param done: results of earlier steps
        :raises AdminError: ``done`` has *done*
        """
        key = self._servers.outer(next(iter(configs.values())).topic)
        try:
            before = await self._order(key)
            counts = dict(before)
            for each in configs.values():
                known = counts.pop(each.broker_name, None) is not None
                if order or (known and order is None):
                    counts[each.broker_name] = str(each.write_queues)
            if counts != before:
                request = _order_request(key, counts)
                await self._servers.send_each(action, self._servers.name_servers, request)
        except AdminError as error:
            raise AdminError(action, {**done, **error.done}, error.failed) from error
        except ClosedError:
            raise
        except RocketMQError as error:
            failed = dict.fromkeys(self._servers.instance.name_servers.addresses, error)
            raise AdminError(action, done, failed) from error

    async def _order(self, key: str) -> dict[str, str]:
        """Return the order configuration from the name servers; older brokers do not store it.

        A name server that was down during a change lacks it: the entries of all that respond count.
        """
        header = GetKVConfig(namespace=ORDER_CONF, key=key)

        async def read(address: str) -> str:
            command = await self._servers.request(address, header, accept=FOUND_OR_NOT)
            return read_header(command, GetKVConfigResponse).value or ""

        return _merged_order(await self._of_name_servers(read))

    async def _of_name_servers(self, read: Callable[[str], Awaitable[T]]) -> builtins.list[T]:
        """Return the results of *read* at each name server that responds; one is enough."""
        addresses = self._servers.instance.name_servers.addresses
        done, failed = await gather_limited(read, addresses, AT_ONCE)
        if not done:
            raise failed[addresses[0]]
        return [*done.values()]

    async def _wait_for_route(self, topic: str, brokers: Iterable[str]) -> None:
        missing = set(brokers)

        def is_complete(route: TopicRouteData) -> bool:
            nonlocal missing
            missing = {*brokers} - {each.broker_name for each in route.queue_datas}
            return not missing

        if not await self._servers.wait_for_route(topic, ROUTE_SECONDS, is_complete):
            reason = f"it was created, but the name server does not list it on {sorted(missing)}"
            raise RouteNotFoundError(topic, reason)


def _check_release(address: str, version: int, attributes: Mapping[str, str | None]) -> None:
    if attributes and version < V5_0_0:
        raise not_supported(address, "attributes of topics need a broker of 5.0 or newer")


def _configs(topic: str, held: Mapping[str, HeldTopic]) -> list[TopicConfig]:
    return [config_of(name, topic, body) for name, body in sorted(bodies(held).items())]


def _is_static(held: HeldTopic) -> bool:
    return isinstance(held.body, MappedTopicBody) and held.body.mapping_detail is not None


def _check_static(topic: str, settings: TopicSettings) -> None:
    """Raise `ConfigError` for a setting that a static topic cannot have.

    Its logical queues are in its mapping.  Java clients see the physical ones if it is ordered.
    """
    for name, value in settings.items():
        if name.endswith("queues") or (name == "order" and value):
            reason = f"{topic} is a static topic: static_topics.create() adds queues, and"
            raise ConfigError(name, value, f"{reason} static_topics.remap() moves them")
        if name == "perm" and isinstance(value, str) and "W" not in value:
            reason = f"{topic} is a static topic: clients send to it whatever its permission"
            raise ConfigError(name, value, reason)


def _check_equal(topic: str, held: Mapping[str, HeldTopic], wanted: TopicSettings) -> None:
    for config in _configs(topic, held):
        if held[config.broker_name].version < V5_0_0:  # they do not store `order`
            config = msgspec.structs.replace(config, order=wanted.get("order", False))
        if changed(config, wanted) != config:
            raise ConfigError("topic", topic, f"a broker has it as {config}; use topics.update()")


def _merged_order(texts: Sequence[str]) -> dict[str, str]:
    """Return the number of queues by broker in *texts*, of which the first wins."""
    parts = (each.rpartition(":") for each in ";".join(reversed(texts)).split(";"))
    return {name: count for name, _, count in parts if name}


def _counts(topic: str, order: Mapping[str, str]) -> dict[str, int]:
    try:
        return {name: int(count) for name, count in order.items()}
    except ValueError as error:
        raise CodecError("order configuration", 0, f"of topic {topic}: {error}") from error


def _order_request(key: str, counts: Mapping[str, str]) -> PutKVConfig | DeleteKVConfig:
    """Return the request that stores *counts* as the order configuration of a topic."""
    if not counts:
        return DeleteKVConfig(namespace=ORDER_CONF, key=key)
    value = ";".join(f"{name}:{count}" for name, count in sorted(counts.items()))
    return PutKVConfig(namespace=ORDER_CONF, key=key, value=value)
