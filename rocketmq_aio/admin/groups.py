"""Group administration: create, change, delete and describe consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from rocketmq_aio.admin.group_settings import (
    SINCE_5,
    GroupSettings,
    changed_body,
    check_settings,
    config_of,
    differs,
    new_body,
)
from rocketmq_aio.admin.requests import AdminRequests, Masters
from rocketmq_aio.admin.results import (
    ClientConnection,
    GroupConfig,
    GroupConnections,
    SubscriptionInfo,
)
from rocketmq_aio.admin.topics import TopicAdmin
from rocketmq_aio.errors import BrokerError, ConfigError, NotSupportedError, SubscriptionError
from rocketmq_aio.model.names import DLQ_PREFIX, RETRY_PREFIX, check_group
from rocketmq_aio.protocol.codes import V5_0_0, ResponseCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin import (
    CreateGroup,
    DeleteGroup,
    GetAllGroups,
    GetProducerConnections,
    ProducerConnections,
    SubscriptionGroupBody,
    SubscriptionGroupTable,
)
from rocketmq_aio.protocol.requests.connections import ConnectionBody, ConsumerConnections

INTERNAL: Final = ("CID_RMQ_SYS_", "CID_ONS", "CID_SYS_", "CID_DefaultHeartBeatSyncerTopic")
INTERNAL_NAMES: Final = frozenset(
    {
        *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "__MONITOR_CONSUMER"),
        *("DEFAULT_CONSUMER", "CID_HOUSEKEEPING", "broker_to_broker"),
    }
)
NO_PRODUCERS: Final = "the producer group["  # the remark goes on: "<group>] not exist"


class HeldGroup(NamedTuple):
    """A group on a broker; *body* is None if it does not exist there."""

    body: dict[str, Any] | None
    address: str
    version: int  # of the broker


class GroupAdmin:
    """Creates, changes, deletes and describes consumer groups; documented in `AdminClient`."""

    def __init__(self, requests: AdminRequests, topics: TopicAdmin) -> None:
        self._requests = requests
        self._topics = topics

    async def create(
        self,
        group: str,
        cluster: str | None,
        brokers: Iterable[str] | None,
        settings: GroupSettings,
    ) -> list[GroupConfig]:
        check_settings(settings)
        masters = await self._requests.masters(cluster, brokers)
        held = await self._held_groups(check_group(group), masters)
        _check_equal(group, held, settings)

        async def make(name: str, _: str) -> None:
            await self._put_group(held[name], new_body(group, settings), settings)

        missing = {name: masters[name] for name, each in held.items() if each.body is None}
        await self._requests.on_each(f"creating group {group}", missing, make)
        return await self._group_configs(group, masters)

    async def update(
        self,
        group: str,
        cluster: str | None,
        brokers: Iterable[str] | None,
        settings: GroupSettings,
    ) -> list[GroupConfig]:
        check_settings(settings)
        masters = await self._requests.masters(cluster, brokers)
        held = await self._held_groups(group, masters)
        there = {name: masters[name] for name, each in held.items() if each.body is not None}
        if not there or (brokers is not None and len(there) < len(held)):
            raise _no_group(group, sorted(held.keys() - there.keys()))

        async def change(name: str, _: str) -> None:
            body = changed_body(held[name].body or {}, settings)
            await self._put_group(held[name], body, settings)

        await self._requests.on_each(f"changing group {group}", there, change)
        return await self._group_configs(group, there)

    async def delete(
        self, group: str, cluster: str | None, keep_offsets: bool, delete_topics: bool
    ) -> None:
        async def delete(_: str, address: str) -> None:
            clean = not keep_offsets
            header = DeleteGroup(group_name=group, remove_offset=clean, clean_offset=clean)
            await self._requests.ask(address, header)

        masters = await self._requests.masters(cluster)
        await self._requests.on_each(f"deleting group {check_group(group)}", masters, delete)
        if delete_topics:
            for prefix in (RETRY_PREFIX, DLQ_PREFIX):
                await self._topics.delete(prefix + group, cluster)

    async def list_names(self, cluster: str | None, internal: bool) -> list[str]:
        async def names(_: str, address: str) -> Iterable[str]:
            return (await self._group_table(address))[0]

        lists = await self._requests.on_each(
            "listing groups", await self._requests.masters(cluster), names
        )
        found = self._requests.inner_names(name for each in lists.values() for name in each)
        return sorted(name for name in found if internal or not _is_internal(name))

    async def configs(self, group: str) -> list[GroupConfig]:
        return await self._group_configs(check_group(group), await self._requests.masters())

    async def consumer_connections(self, group: str) -> GroupConnections:
        found = await self.connections(check_group(group), await self._requests.masters())
        if not found:
            return GroupConnections(group=group, members=())
        newest = next(iter(found.values()))
        wanted = {
            each.topic: each
            for table in found.values()
            for each in sorted(table.subscription_table.values(), key=lambda s: s.sub_version)
        }
        return GroupConnections(
            group=group,
            members=_members({name: each.connection_set for name, each in found.items()}),
            subscriptions=tuple(
                SubscriptionInfo(
                    topic=topic,
                    expression=wanted[topic].sub_string,
                    kind=wanted[topic].expression_type,
                )
                for topic in sorted(wanted)
            ),
            consume_type=newest.consume_type,
            message_model=newest.message_model,
            consume_from=newest.consume_from_where,
        )

    async def producer_connections(self, group: str) -> list[ClientConnection]:
        async def producers(_: str, address: str) -> list[ConnectionBody]:
            header = GetProducerConnections(producer_group=group)
            try:
                command = await self._requests.ask(address, header)
            except BrokerError as error:
                remark = error.remark or ""
                if error.code == ResponseCode.SYSTEM_ERROR and remark.startswith(NO_PRODUCERS):
                    return []
                raise
            return read_body(command.body, ProducerConnections).connection_set

        action = f"asking for producers of group {group}"
        return list(
            _members(
                await self._requests.on_each(action, await self._requests.masters(), producers)
            )
        )

    # --- inside ---------------------------------------------------------------------------------

    async def connections(self, group: str, masters: Masters) -> dict[str, ConsumerConnections]:
        """Return the connections by broker, for brokers with members."""

        async def members(_: str, address: str) -> ConsumerConnections | None:
            self._requests.check_running()
            try:
                return await self._requests.instance.broker.consumer_connections(group, address)
            except BrokerError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                return None

        found = await self._requests.on_each(
            f"asking for members of group {group}", masters, members
        )
        return {name: each for name, each in found.items() if each is not None}

    async def _group_table(self, address: str) -> tuple[dict[str, msgspec.Raw], int]:
        command = await self._requests.ask(address, GetAllGroups())
        table = read_body(command.body, SubscriptionGroupTable)
        return table.subscription_group_table, command.version

    async def _held_groups(self, group: str, masters: Masters) -> dict[str, HeldGroup]:
        async def look(_: str, address: str) -> HeldGroup:
            table, version = await self._group_table(address)
            raw = table.get(self._requests.outer(group))
            body = None if raw is None else {**read_body(bytes(raw), dict), "groupName": group}
            return HeldGroup(body, address, version)

        return await self._requests.on_each(f"looking for group {group}", masters, look)

    async def _group_configs(self, group: str, masters: Masters) -> list[GroupConfig]:
        held = await self._held_groups(group, masters)
        found = {name: each.body for name, each in held.items() if each.body is not None}
        return [_config(name, group, found[name]) for name in sorted(found)]

    async def _put_group(
        self, held: HeldGroup, body: dict[str, Any], settings: GroupSettings
    ) -> None:
        if held.version < V5_0_0 and (newer := sorted(SINCE_5 & settings.keys())):
            reason = f"{', '.join(newer)}: groups have this from 5.0 on"
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            raise NotSupportedError(code, reason, held.address)
        await self._requests.ask(held.address, CreateGroup(), msgspec.json.encode(body))


def _config(broker_name: str, group: str, body: dict[str, Any]) -> GroupConfig:
    read = read_body(msgspec.json.encode(body), SubscriptionGroupBody)
    return config_of(broker_name, group, read)


def _check_equal(group: str, held: Mapping[str, HeldGroup], settings: GroupSettings) -> None:
    for name, each in held.items():
        if each.body is None:
            continue
        config = _config(name, group, each.body)
        if differs(config, settings):
            raise ConfigError("group", group, f"it is there as {config}; use update_group")


def _no_group(group: str, brokers: list[str]) -> SubscriptionError:
    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    return SubscriptionError(code, f"group {group} is not on {brokers}")


def _members(found: Mapping[str, Iterable[ConnectionBody]]) -> tuple[ClientConnection, ...]:
    """Return each client once, with all its brokers."""
    seen: dict[str, ConnectionBody] = {}
    brokers: dict[str, list[str]] = {}
    for name, connections in found.items():
        for each in connections:
            seen.setdefault(each.client_id, each)
            brokers.setdefault(each.client_id, []).append(name)
    return tuple(
        ClientConnection(
            client_id=client_id,
            address=seen[client_id].client_addr,
            language=seen[client_id].language,
            version=seen[client_id].version,
            brokers=tuple(brokers[client_id]),
        )
        for client_id in sorted(seen)
    )


def _is_internal(name: str) -> bool:
    return name in INTERNAL_NAMES or name.startswith(INTERNAL)
