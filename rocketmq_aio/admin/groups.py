"""Group administration: create, change, delete and describe consumer groups."""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, Unpack

import msgspec

from rocketmq_aio.admin.group_settings import (
    SINCE_5,
    GroupSettings,
    changed_body,
    check_config,
    check_settings,
    config_of,
    differs,
    new_body,
    other_settings,
    settings_of,
)
from rocketmq_aio.admin.results import (
    ClientConnection,
    GroupConfig,
    GroupConnections,
    GroupProgress,
    SubscriptionInfo,
    progress_of,
)
from rocketmq_aio.admin.server_results import MemberStatus
from rocketmq_aio.admin.servers import (
    AT_ONCE,
    Brokers,
    Held,
    Masters,
    Servers,
    before_change,
    bodies,
    not_supported,
)
from rocketmq_aio.admin.topic_settings import check_given
from rocketmq_aio.admin.topics import TopicAdmin
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.errors import (
    AdminError,
    ConfigError,
    NotSupportedError,
    RouteNotFoundError,
    SubscriptionError,
    shown,
)
from rocketmq_aio.model.names import DLQ_PREFIX, RETRY_PREFIX, check_group, check_topic
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import Body, SubscriptionData, queue_key
from rocketmq_aio.protocol.codes import V5_0_0, ResponseCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin import (
    ConsumeStats,
    CreateGroup,
    DeleteGroup,
    GetAllGroups,
    GetConsumeStats,
    GetProducerConnections,
    ProducerConnections,
    SubscriptionGroupTable,
)
from rocketmq_aio.protocol.requests.from_broker import GetConsumerRunningInfo
from rocketmq_aio.protocol.requests.groups import (
    ConnectionBody,
    ConsumerConnections,
    GetConsumerConnectionList,
)
from rocketmq_aio.protocol.requests.operations import PUT_GROUPS, SET_REQUEST_MODE
from rocketmq_aio.remoting.gather import gather_limited

INTERNAL: Final = (
    *("CID_RMQ_SYS_", "CID_SYS_RMQ_", "CID_ONSAPI_", "CID_ONS-HTTP-PROXY"),
    "CID_DefaultHeartBeatSyncerTopic",
)
INTERNAL_NAMES: Final = frozenset(
    {
        *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "__MONITOR_CONSUMER"),
        *("DEFAULT_CONSUMER", "CID_HOUSEKEEPING", "broker_to_broker"),
    }
)
NO_PRODUCERS: Final = "the producer group["  # the remark goes on: "<group>] not exist"
ONLINE_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)

HeldGroup = Held[dict[str, Any]]


class _AssignedQueues(Body, frozen=True):
    """The queues in the running info of a member; its other fields may be irregular."""

    mq_table: dict[str, Any] = msgspec.field(default_factory=dict)


class _RunningInfo(Body, frozen=True):
    """The running info of a member, as it reported it."""

    properties: dict[str, str] = msgspec.field(default_factory=dict)
    subscription_set: list[SubscriptionData] = msgspec.field(default_factory=list)
    mq_table: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    mq_pop_table: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    status_table: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    jstack: str | None = None


@checked_arguments
class GroupAdmin:
    """Creates, changes, deletes and describes consumer groups: ``admin.groups``."""

    def __init__(self, servers: Servers, topics: TopicAdmin) -> None:
        self._servers = servers
        self._topics = topics

    async def create(
        self,
        group: str,
        *,
        cluster: str | None = None,
        brokers: Brokers = None,
        **settings: Unpack[GroupSettings],
    ) -> builtins.list[GroupConfig]:
        """Create a consumer group on all masters, on those of *cluster*, or on *brokers*.

        A broker that has the group with these settings is skipped.  See `GroupSettings`.

        :raises ConfigError: an argument is invalid, or a broker has the group with other settings
            (see `update`); nothing was changed
        :raises NotSupportedError: a setting needs a newer broker
        """
        check_settings(settings)
        masters = await self._servers.masters(cluster, brokers)
        held = await before_change(self._held(check_group(group), masters))
        for config in _configs(group, held):
            if differs(config, settings):
                reason = f"a broker has it as {config}; use groups.update()"
                raise ConfigError("group", group, reason)

        async def make(name: str, _: str) -> None:
            await self._put(held[name], new_body(group, settings), settings)

        missing = {name: masters[name] for name, each in held.items() if each.body is None}
        await self._servers.on_each(f"creating group {group}", missing, make)
        return _configs(group, await self._held(group, masters))

    async def update(
        self,
        group: str,
        *,
        cluster: str | None = None,
        brokers: Brokers = None,
        **settings: Unpack[GroupSettings],
    ) -> builtins.list[GroupConfig]:
        """Change the given *settings* of a group on every broker that has it.

        :raises SubscriptionError: none of the chosen brokers has the group
        :raises NotSupportedError: a setting needs a newer broker
        """
        check_given(settings)
        check_settings(settings)
        masters = await self._servers.masters(cluster, brokers)
        held = await before_change(self._held(group, masters))
        existing = bodies(held)
        if not existing or (brokers is not None and len(existing) < len(held)):
            code, absent = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, sorted(held.keys() - existing)
            raise SubscriptionError(code, f"group {group} is not on {absent}")

        async def change(name: str, _: str) -> None:
            await self._put(held[name], changed_body(existing[name], settings), settings)

        targets = {name: masters[name] for name in existing}
        await self._servers.on_each(f"changing group {group}", targets, change)
        return _configs(group, await self._held(group, targets))

    async def delete(
        self,
        group: str,
        *,
        cluster: str | None = None,
        keep_offsets: bool = False,
        delete_topics: bool = False,
    ) -> None:
        """Delete a consumer group, in *cluster* or everywhere; it may be missing.

        Connected members create it again where brokers create groups automatically.

        :param keep_offsets: keep the offsets for a later group of the same name; 5.5.0 brokers that
            create groups automatically do so at once, with default settings
        :param delete_topics: also delete its retry topic and dead-letter topic
        :raises ConfigError: it is a group of brokers and tools
        """
        if _is_internal(group):  # brokers would delete it, unlike their topics
            raise ConfigError("group", group, "brokers and tools need this group")
        clean = not keep_offsets
        header = DeleteGroup(group_name=check_group(group), remove_offset=clean, clean_offset=clean)
        await self._servers.send_to(f"deleting group {group}", header, cluster=cluster)
        if delete_topics:
            for prefix in (RETRY_PREFIX, DLQ_PREFIX):
                await self._topics.delete(prefix + group, cluster=cluster)

    async def list(
        self, *, cluster: str | None = None, brokers: Brokers = None, internal: bool = False
    ) -> builtins.list[str]:
        """Return the names of consumer groups: all, or those in *cluster* or on *brokers*; sorted.

        :param internal: include the groups of brokers and tools
        """
        header, kind = GetAllGroups(), SubscriptionGroupTable
        replicas = await self._servers.replicas(cluster, brokers)
        tables = await self._servers.read_each("listing groups", replicas, header, kind)
        names = self._servers.inner_names(t.subscription_group_table for t in tables.values())
        if not internal:
            names = {name for name in names if not _is_internal(name)}
        return sorted(names)

    async def config(self, group: str, *, brokers: Brokers = None) -> builtins.list[GroupConfig]:
        """Return the settings of a consumer group on each broker that has it, if any."""
        replicas = await self._servers.replicas(brokers=brokers)
        return _configs(group, await self._held(check_group(group), replicas))

    async def connections(self, group: str, *, brokers: Brokers = None) -> GroupConnections:
        """Return the connected members of a consumer group, and its subscriptions."""
        replicas = await self._servers.replicas(brokers=brokers)
        tables = await self.member_tables(check_group(group), replicas)
        if not tables:
            return GroupConnections(group=group, members=())
        first = next(iter(tables.values()))
        # The newest of all brokers: a heartbeat does not reach all of them at the same time.
        listed = [each for table in tables.values() for each in table.subscription_table.values()]
        listed.sort(key=lambda each: each.sub_version)
        subscriptions = {each.topic: each for each in listed}
        return GroupConnections(
            group=group,
            members=_members(tables),
            subscriptions=tuple(
                SubscriptionInfo(topic=topic, expression=each.sub_string, kind=each.expression_type)
                for topic, each in sorted(subscriptions.items())
            ),
            consume_type=first.consume_type,
            message_model=first.message_model,
            consume_from=first.consume_from_where,
        )

    async def producers(
        self, group: str, *, brokers: Brokers = None
    ) -> builtins.list[ClientConnection]:
        """Return the connected producers of a group."""
        replicas, kind = await self._servers.replicas(brokers=brokers), ProducerConnections
        header = GetProducerConnections(producer_group=group)
        action = f"listing producers of group {group}"
        tables = await self._servers.read_stored(action, replicas, header, kind, NO_PRODUCERS)
        return list(_members(tables))

    async def progress(
        self, group: str, topic: str | None = None, *, brokers: Brokers = None, owners: bool = False
    ) -> GroupProgress:
        """Return committed offsets and lag of a group in *topic*, or in all topics with commits.

        A group that does not exist has consumed nothing.  The retry topic is one of the topics.
        While members are connected, brokers leave out topics without a subscription.  Of a broker
        without a master, a slave returns what it has copied.

        :param brokers: only the queues on these
        :param owners: also ask each member for its queues; ``silent`` has the failures
        """
        check_group(group)
        if topic is None:
            replicas = await self._servers.replicas(brokers=brokers)
            tables = await self._consume_stats(group, None, replicas)
            try:
                tables += await self._without_commits(group, tables, brokers)
            except AdminError as error:  # its results lack the brokers with commits
                done = {name: each for name, each in tables if name not in error.failed}
                raise AdminError(error.action, {**done, **error.done}, error.failed) from error
        else:
            replicas = await self._servers.replicas_of(check_topic(topic), brokers)
            tables = await self._consume_stats(group, topic, replicas)
        readers, silent = await self._readers(group) if owners else ({}, {})
        return progress_of(group, [table for _, table in tables], readers, silent)

    async def _consume_stats(
        self, group: str, topic: str | None, masters: Masters
    ) -> builtins.list[tuple[str, ConsumeStats]]:
        header = GetConsumeStats(consumer_group=group, topic=topic)
        action = f"reading the offsets of group {group}"
        return [*(await self._servers.read_each(action, masters, header, ConsumeStats)).items()]

    async def _without_commits(
        self, group: str, tables: Iterable[tuple[str, ConsumeStats]], brokers: Brokers
    ) -> builtins.list[tuple[str, ConsumeStats]]:
        """Return the tables of brokers that have a topic of *tables* but no commit of the group.

        Without a topic in the request a broker returns what has commits, but the rest lags, too.
        """
        known = defaultdict(set)
        for name, table in tables:
            for key in table.offset_table:
                known[queue_key(key).topic].add(name)

        async def read(topic: str) -> builtins.list[tuple[str, ConsumeStats]]:
            try:
                replicas = await self._servers.replicas_of(topic)
            except RouteNotFoundError:  # deleted, and its commits are left
                return []
            wanted = replicas.keys() - known[topic]
            if brokers is not None:
                wanted &= {*brokers}
            rest = {name: replicas[name] for name in sorted(wanted)}
            return await self._consume_stats(group, topic, rest)

        found = await gather_limited(read, known, AT_ONCE, fail_fast=True)
        return [each for tables in found.complete().values() for each in tables]

    async def put(self, configs: Iterable[GroupConfig]) -> None:
        """Create or change groups as in *configs*, each on its broker.

        Brokers from 5.3.1 get all groups in one request.

        :raises ConfigError: there is no such broker
        :raises NotSupportedError: a setting needs a newer broker
        """
        chosen: dict[str, builtins.list[GroupConfig]] = {}
        for each in configs:
            check_config(each)
            chosen.setdefault(each.broker_name, []).append(each)

        async def put(name: str, address: str) -> None:
            bodies = [*(await self.changes(name, address, chosen[name])).values()]
            if not bodies:
                return
            try:
                body = msgspec.json.encode({"groupConfigList": bodies})
                await self._servers.request(address, PUT_GROUPS, body)
            except NotSupportedError:  # older than 5.3.1
                for one in bodies:
                    await self._servers.request(address, CreateGroup(), msgspec.json.encode(one))

        if chosen:
            masters = await self._servers.masters(brokers=chosen)
            action = f"storing {sum(map(len, chosen.values()))} groups"
            await self._servers.on_each(action, masters, put)

    async def changes(
        self, broker_name: str, address: str, configs: Iterable[GroupConfig]
    ) -> dict[str, dict[str, Any]]:
        """Return the JSON bodies of those of *configs* that the broker does not have, by group.

        :raises NotSupportedError: a setting needs a newer broker
        """
        command = await self._servers.request(address, GetAllGroups())
        table = read_body(command.body, SubscriptionGroupTable).subscription_group_table
        bodies = {}
        for each in configs:
            settings = settings_of(each, old=command.version < V5_0_0)
            _check_release(address, command.version, {*settings, *each.others})
            outer = self._servers.outer(each.group)
            raw = table.get(outer)
            held = new_body(outer, {}) if raw is None else read_body(bytes(raw), dict)
            others = other_settings(each, held)
            if raw is None or config_of(broker_name, each.group, held) != each:
                bodies[each.group] = {**changed_body(held, settings), **others, "groupName": outer}
        return bodies

    async def set_mode(
        self, group: str, topic: str, mode: Literal["pop", "pull"], *, shared_queues: int = 0
    ) -> None:
        """Choose how members of *group* read *topic* if brokers assign their queues (5.0).

        :param shared_queues: with ``pop``, further members that may read each queue; 0: all of them
            read all queues
        :raises NotSupportedError: the brokers are older
        """
        body = {
            "topic": check_topic(topic),
            "consumerGroup": check_group(group),
            "mode": mode.upper(),
            "popShareQueueNum": checked_count("shared_queues", shared_queues, least=0),
        }
        masters = await self._servers.masters_of(topic)
        action, data = f"setting the mode of group {group}", msgspec.json.encode(body)
        await self._servers.send_each(action, masters, SET_REQUEST_MODE, data)

    async def status(
        self,
        group: str,
        client_id: str | None = None,
        *,
        brokers: Brokers = None,
        stacks: bool = False,
    ) -> dict[str, MemberStatus]:
        """Return the state of all connected members of a group, or of one, by client id.

        :param brokers: only members that are connected to these
        :param stacks: also what their threads or tasks are doing
        :raises ConfigError: there is no such member
        :raises AdminError: some members did not answer, and ``done`` has the others; or some
            brokers did not, and their names are in ``failed``
        """
        places = await self._places(check_group(group), brokers)
        if client_id is not None:
            if client_id not in places:
                raise ConfigError("client_id", client_id, f"the members are {sorted(places)}")
            places = {client_id: places[client_id]}

        async def read(member: str, address: str) -> MemberStatus:
            header = GetConsumerRunningInfo(
                consumer_group=group, client_id=member, jstack_enable=stacks
            )
            info = await self._servers.instance.broker.read(address, header, _RunningInfo)
            queues = {**info.mq_table, **info.mq_pop_table}
            return MemberStatus(
                client_id=member,
                properties=info.properties,
                queues={queue_key(key): each for key, each in queues.items()},
                subscriptions={each.topic: each.sub_string for each in info.subscription_set},
                rates=info.status_table,
                stacks=info.jstack,
            )

        action = f"reading members of group {group}"
        return await self._servers.on_each(action, places, read, of="members")

    async def member_tables(self, group: str, masters: Masters) -> dict[str, ConsumerConnections]:
        """Return the connections by broker, for brokers with members."""
        header = GetConsumerConnectionList(consumer_group=group)

        async def members(_: str, address: str) -> ConsumerConnections | None:
            command = await self._servers.request(address, header, accept=ONLINE_OR_NOT)
            if command.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            return read_body(command.body, ConsumerConnections)

        tables = await self._servers.on_each(f"listing members of group {group}", masters, members)
        return {name: each for name, each in tables.items() if each is not None}

    async def _places(self, group: str, brokers: Brokers = None) -> dict[str, str]:
        """Return the address of a broker of each member, by client id."""
        replicas = await self._servers.replicas(brokers=brokers)
        tables = (await self.member_tables(group, replicas)).items()
        return {
            member.client_id: replicas[name] or ""
            for name, each in tables
            for member in each.connection_set
        }

    async def _readers(self, group: str) -> tuple[dict[MessageQueue, str], dict[str, str]]:
        """Return the reader of each queue, and the members that failed to report."""
        places = await self._places(group)

        async def assigned(client_id: str) -> builtins.list[MessageQueue]:
            header = GetConsumerRunningInfo(consumer_group=group, client_id=client_id)
            read = self._servers.instance.broker.read
            info = await read(places[client_id], header, _AssignedQueues)
            return [queue_key(key) for key in info.mq_table]

        queues, failed = await gather_limited(assigned, places, AT_ONCE)
        readers = {queue: client_id for client_id, some in queues.items() for queue in some}
        return readers, {client_id: shown(str(error)) for client_id, error in failed.items()}

    async def _held(self, group: str, masters: Masters) -> dict[str, HeldGroup]:
        async def look_up(_: str, address: str) -> HeldGroup:
            command = await self._servers.request(address, GetAllGroups())
            table = read_body(command.body, SubscriptionGroupTable).subscription_group_table
            raw = table.get(self._servers.outer(group))
            body = None if raw is None else {**read_body(bytes(raw), dict), "groupName": group}
            return Held(body, address, command.version)

        return await self._servers.on_each(f"looking up group {group}", masters, look_up)

    async def _put(self, held: HeldGroup, body: dict[str, Any], settings: GroupSettings) -> None:
        _check_release(held.address, held.version, settings)
        await self._servers.request(held.address, CreateGroup(), msgspec.json.encode(body))


def _is_internal(group: str) -> bool:
    """Whether *group* belongs to brokers or tools."""
    return group in INTERNAL_NAMES or group.startswith(INTERNAL)


def _check_release(address: str, version: int, names: Iterable[str]) -> None:
    if version < V5_0_0 and (newer := sorted(SINCE_5.intersection(names))):
        raise not_supported(address, f"{', '.join(newer)}: groups have this from 5.0 on")


def _configs(group: str, held: Mapping[str, HeldGroup]) -> list[GroupConfig]:
    return [config_of(name, group, body) for name, body in sorted(bodies(held).items())]


def _members(
    tables: Mapping[str, ConsumerConnections | ProducerConnections],
) -> tuple[ClientConnection, ...]:
    """Return each client once, with all its brokers."""
    clients: dict[str, ConnectionBody] = {}
    brokers = defaultdict(list)
    for name, table in tables.items():
        for each in table.connection_set:
            clients.setdefault(each.client_id, each)
            brokers[each.client_id].append(name)
    return tuple(
        ClientConnection(
            client_id=client_id,
            address=each.client_addr,
            language=each.language,
            version=each.version,
            brokers=tuple(brokers[client_id]),
        )
        for client_id, each in sorted(clients.items())
    )
