"""Offset administration: progress of groups, reset and clone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from rocketmq_aio.admin.groups import ONLINE_OR_NOT, GroupAdmin
from rocketmq_aio.admin.offset_search import OffsetSearch
from rocketmq_aio.admin.results import OffsetReset
from rocketmq_aio.admin.server_results import QueueTimeSpan
from rocketmq_aio.admin.servers import Servers, before_change, begin_change, failure, not_supported
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.errors import BrokerError, ConfigError
from rocketmq_aio.model.names import RETRY_PREFIX, check_group, check_topic
from rocketmq_aio.model.timestamps import millis_of
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import Body, queue_key, read_reset_offsets
from rocketmq_aio.protocol.codes import V5_0_0, ResponseCode
from rocketmq_aio.protocol.requests.admin import InvokeResetOffset
from rocketmq_aio.protocol.requests.groups import GetConsumerConnectionList
from rocketmq_aio.protocol.requests.operations import GetConsumeTimeSpan, GetMemberOffsets
from rocketmq_aio.protocol.static_topics import is_logical
from rocketmq_aio.remoting.gather import gather_limited

T = TypeVar("T")
Target = datetime | Literal["earliest", "latest"] | Mapping[MessageQueue, int]

QUEUES_AT_ONCE: Final = 64  # concurrent requests
STORES_RESETS: Final = "useServerSideResetOffset"  # a setting of brokers
# The remark of brokers that move only groups with a commit in each queue of the topic.
NOT_COMMITTED: Final = "THe consumer group <"
NO_MEMBERS: Final = "NullPointerException"  # in the remark of brokers without members of a group
BEGINNING: Final = 0  # as a timestamp
END: Final = -1


class _TimeSpans(Body, frozen=True):
    consume_time_span_set: list[QueueTimeSpan] = msgspec.field(default_factory=list)


class _MemberOffsets(Body, frozen=True):
    consumer_table: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


class _Move(NamedTuple):
    """A reset on one broker; *millis* is the target as a time, None if it has none."""

    group: str
    topic: str
    address: str
    offsets: dict[MessageQueue, int]
    millis: int | None


@checked_arguments
class OffsetAdmin:
    """Resets and clones the offsets of groups: ``admin.offsets``."""

    def __init__(self, servers: Servers, groups: GroupAdmin) -> None:
        self._servers = servers
        self._groups = groups
        self._search = OffsetSearch(servers)

    async def reset(self, group: str, topic: str, to: Target) -> list[OffsetReset]:
        """Set the offsets of a group in a topic; its members may be connected.

        Brokers from 5.0 store the offset, return it to the next reader, and ignore commits until
        then.  Older brokers notify the connected members, by a timestamp only.  Without connected
        members the offset is committed and read back.

        :param to: ``"earliest"``, ``"latest"``, a time (the first message stored then or later,
            verified against stored messages if the account may read as group
            ``TOOLS_CONSUMER``), or offsets by queue, of any queues of the topic
        :raises ConfigError: an argument is invalid, or a queue has no such offset
        :raises NotSupportedError: a broker resets connected groups by time only, and offsets are
            given; or the group is connected and the topic static: stop the members first
        :raises SubscriptionError: there is no such group (5.x brokers only)
        """
        check_group(group)
        millis = _millis(to)
        masters = await self._servers.masters_of(check_topic(topic))
        routes = self._servers.instance.routes
        with routes.pin(topic):
            offsets = await self._targets(topic, to)
            owners = {queue: routes.broker_of(queue) for queue in offsets}

            async def move(name: str, address: str) -> list[OffsetReset]:
                own = {queue: each for queue, each in offsets.items() if owners[queue] == name}
                return await self._move(_Move(group, topic, address, own, millis))

            targets = {name: masters.get(name) for name in sorted(set(owners.values()))}
            done = await self._servers.on_each(f"resetting group {group} in {topic}", targets, move)
        return sorted((each for some in done.values() for each in some), key=lambda r: r.queue)

    async def clone(self, source: str, target: str, topic: str | None = None) -> list[OffsetReset]:
        """Copy the offsets of group *source* to *target*, in *topic* or in all topics with commits.

        The retry topic is not copied.

        :raises AdminError: some topics failed; ``done`` and ``failed`` are by topic
        :raises ConfigError: members of *target* are connected, and would overwrite the offsets; or
            *source* committed offsets behind the end of a queue, as of a topic created again
        :raises SubscriptionError: there is no group *target* (5.x brokers only)
        """
        if (await before_change(self._groups.connections(target))).online:
            raise ConfigError("target", target, "its members are connected: stop them first")
        progress = await before_change(self._groups.progress(source, topic))
        topics = sorted({each.queue.topic for each in progress.queues})

        async def copy(topic: str) -> list[OffsetReset]:
            return await self.reset(target, topic, await self._copied(source, topic))

        copied = [each for each in topics if not each.startswith(RETRY_PREFIX)]
        done, failed = await gather_limited(copy, copied, 1)
        if failed:
            raise failure(f"copying offsets of group {source}", done, failed, of="topics")
        return [each for some in done.values() for each in some]

    async def skip(self, group: str, topic: str) -> list[OffsetReset]:
        """Skip all messages of *topic* that the group has not consumed: `reset` to the end."""
        return await self.reset(group, topic, "latest")

    async def time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """Return by queue the store times of the messages, and how far the group is behind.

        Queues that the group committed no offset of are left out by brokers.
        """
        header = GetConsumeTimeSpan(topic=check_topic(topic), group=check_group(group))
        masters = await self._servers.masters_of(topic)
        action = f"reading times of group {group}"
        tables = await self._servers.read_each(action, masters, header, _TimeSpans)
        spans = [each for table in tables.values() for each in table.consume_time_span_set]
        return sorted(spans, key=lambda each: each.queue)

    async def in_memory(
        self, group: str, topic: str, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets that connected members have in memory, by client id.

        They may be ahead of the committed ones.  Members that are not Java clients or of this
        package may not answer.  Empty if no member is connected.
        """
        header = GetMemberOffsets(topic=check_topic(topic), group=group, client_addr=client_id)
        masters = await self._servers.masters_of(topic)
        action = f"reading offsets of the members of group {group}"
        tables = await self._servers.read_stored(
            action, masters, header, _MemberOffsets, NO_MEMBERS
        )
        offsets: dict[str, dict[MessageQueue, int]] = {}
        for each in tables.values():
            for client, table in each.consumer_table.items():
                known = offsets.setdefault(client, {})
                known.update({queue_key(key): offset for key, offset in table.items()})
        return offsets

    async def _targets(self, topic: str, to: Target) -> dict[MessageQueue, int]:
        broker = self._servers.instance.broker
        queues = (await self._servers.instance.routes.fetch(topic)).subscribe_queues
        if isinstance(to, Mapping):
            for queue, offset in to.items():
                if queue not in queues:
                    raise ConfigError("to", queue, f"topic {topic} has no such queue")
                least, most = await broker.min_offset(queue), await broker.max_offset(queue)
                if type(offset) is not int or not least <= offset <= most:
                    raise ConfigError("to", offset, f"{queue} has offsets {least} to {most}")
            return dict(to)
        millis = _millis(to) or 0
        if to == "earliest":
            return await _each_queue(queues, broker.min_offset)
        if to == "latest":
            return await _each_queue(queues, broker.max_offset)
        return await _each_queue(queues, lambda queue: self._search.offset_at(queue, millis))

    async def _copied(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Return the committed offsets of *group* in *topic*, at least the minimum offsets."""
        broker = self._servers.instance.broker

        async def copied(queue: MessageQueue) -> int | None:
            offset = await broker.query_offset(group, queue)
            if offset is None:
                return None
            if offset > (end := await broker.max_offset(queue)):
                reason = f"it committed offset {offset} of {queue}, which ends at {end}: reset it"
                raise ConfigError("source", group, reason)
            return max(offset, await broker.min_offset(queue))

        with self._servers.instance.routes.pin(topic):
            queues = (await self._servers.instance.routes.fetch(topic)).subscribe_queues
            offsets = await _each_queue(queues, copied)
        return {queue: offset for queue, offset in offsets.items() if offset is not None}

    async def _move(self, move: _Move) -> list[OffsetReset]:
        query = self._servers.instance.broker.query_offset
        before = await _each_queue(move.offsets, lambda queue: query(move.group, queue))
        header = GetConsumerConnectionList(consumer_group=move.group)
        command = await self._servers.request(move.address, header, accept=ONLINE_OR_NOT)
        online = command.code == ResponseCode.SUCCESS
        is_static = any(map(is_logical, move.offsets))
        if is_static and online:  # brokers reset only physical queues, which members do not know
            reason = "brokers cannot move a connected group in a static topic: stop its members"
            raise not_supported(move.address, reason)
        stores = command.version >= V5_0_0 and not is_static
        if stores and online:
            # A broker that stores none would return the members to their last commits.
            stores = await self._servers.setting(move.address, STORES_RESETS) in ("true", None)
        if stores:
            moved, how = await self._move_at_broker(move, online=online)
        elif online:
            moved, how = await self._move_members(move), "members"
        else:
            moved, how = await self._commit(move), "committed"
        return [
            OffsetReset(queue=queue, before=before.get(queue), offset=offset, how=how)
            for queue, offset in moved.items()
        ]

    async def _move_at_broker(
        self, move: _Move, *, online: bool
    ) -> tuple[dict[MessageQueue, int], str]:
        """Store the offsets in a 5.x broker, one queue at a time.

        A broker configured not to store them takes the request for a reset by time, to the end
        and only backwards.  That returns other offsets, and members to their last commits.
        """

        async def store(queue: MessageQueue) -> str:
            header = InvokeResetOffset(
                group=move.group,
                topic=move.topic,
                queue_id=queue.queue_id,
                offset=move.offsets[queue],
                timestamp=END,
                is_force=False,
            )
            try:
                command = await self._servers.request(move.address, header, accept=ONLINE_OR_NOT)
            except BrokerError as error:
                if not (error.remark or "").startswith(NOT_COMMITTED):
                    raise
                return "members" if online else "committed"
            if command.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return "committed"
            is_stored = read_reset_offsets(command.body) == {queue: move.offsets[queue]}
            return "broker" if is_stored else "members"

        first, *others = move.offsets
        how = await store(first)  # the broker does the same for all queues
        if how == "broker":
            await _each_queue(others, store, changed=[first])
        elif how == "committed":
            await self._commit(move)
        else:
            return await self._move_members(move), how
        return move.offsets, how

    async def _move_members(self, move: _Move) -> dict[MessageQueue, int]:
        """Reset by time through the connected members.

        The broker refuses it for a group that has committed nothing, and members that pop have no
        offsets: their broker reads the committed ones.
        """
        if move.millis is None:
            reason = "this broker moves a connected group by time only: stop its members first"
            raise not_supported(move.address, reason)
        await self._commit(move, verified=False)
        header = InvokeResetOffset(
            group=move.group, topic=move.topic, timestamp=move.millis, is_force=True
        )
        command = await self._servers.request(move.address, header)
        return read_reset_offsets(command.body)

    async def _commit(self, move: _Move, *, verified: bool = True) -> dict[MessageQueue, int]:
        """Commit for a group; *verified*: it has no members, which may commit, too."""
        begin_change()
        broker = self._servers.instance.broker

        async def commit(queue: MessageQueue) -> None:
            offset = move.offsets[queue]
            await broker.update_offset(move.group, queue, offset)
            kept = await broker.query_offset(move.group, queue) if verified else offset
            if kept != offset:
                remark = f"it acknowledged offset {offset} of {queue}, and holds {kept}"
                raise BrokerError(ResponseCode.SYSTEM_ERROR, remark, move.address)

        # Brokers may lose one of several first commits of a group in a topic.
        first, *others = move.offsets
        await _each_queue([first], commit, changed=())
        await _each_queue(others, commit, changed=[first])
        return move.offsets


async def _each_queue(
    queues: Iterable[MessageQueue],
    call: Callable[[MessageQueue], Awaitable[T]],
    *,
    changed: Iterable[MessageQueue] | None = None,
) -> dict[MessageQueue, T]:
    """Return what *call* returns for each of *queues*; a failure ends the calls.

    :param changed: queues that were changed before, if *call* changes something
    :raises AdminError: some queues were changed before one failed
    """
    done, failed = await gather_limited(call, queues, QUEUES_AT_ONCE, fail_fast=True)
    if failed and changed is None:
        raise next(iter(failed.values()))
    if failed:
        names = {str(queue): None for queue in (*(changed or ()), *done)}
        by_name = {str(queue): error for queue, error in failed.items()}
        raise failure("setting offsets", names, by_name, of="queues")
    return done


def _millis(to: Target) -> int | None:
    """Return *to* as a timestamp of brokers, None for offsets; ConfigError if it is invalid."""
    if isinstance(to, Mapping):
        return None
    if isinstance(to, datetime) and to.utcoffset() is not None:
        return max(0, millis_of(to))
    if to in ("earliest", "latest"):
        return BEGINNING if to == "earliest" else END
    reason = 'expected "earliest", "latest", a datetime with a time zone, or offsets by queue'
    raise ConfigError("to", to, reason)
