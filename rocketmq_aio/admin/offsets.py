"""Making groups continue elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple

from rocketmq_aio.admin.results import OffsetReset
from rocketmq_aio.admin.times import Times
from rocketmq_aio.errors import BrokerError, ConfigError, NotSupportedError
from rocketmq_aio.model.names import RETRY_PREFIX, check_group, check_topic
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import read_reset_offsets
from rocketmq_aio.protocol.codes import V5_0_0, ResponseCode
from rocketmq_aio.protocol.requests.admin_groups import InvokeResetOffset
from rocketmq_aio.protocol.requests.connections import GetConsumerConnectionList
from rocketmq_aio.protocol.static_topics import is_logical
from rocketmq_aio.remoting.response_errors import broker_error

Target = datetime | Literal["earliest", "latest"] | Mapping[MessageQueue, int]

BEGINNING: Final = 0  # as a timestamp
END: Final = -1
ANSWERED: Final = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)


class _Move(NamedTuple):
    """What is asked of one broker: *millis* says it as a time, None where that cannot be."""

    group: str
    topic: str
    address: str
    offsets: dict[MessageQueue, int]
    millis: int | None


class Offsets(Times):
    """Administration of offsets."""

    async def reset_offsets(self, group: str, topic: str, to: Target) -> list[OffsetReset]:
        """Let a group continue elsewhere in a topic, whether members are connected or not.

        Brokers from 5.0 keep the offset, tell whoever reads next, and drop what is committed
        until then.  Older ones tell the members that are connected, by a time only.  Where nobody
        is connected the offset is committed, and looked at.

        :param to: ``"earliest"``, ``"latest"``, a time (the first message stored then or later:
            what brokers answer is compared with what is stored, if the account may read as group
            ``TOOLS_CONSUMER``), or offsets by queue, of any queues of the topic
        :raises ConfigError: an argument cannot be, or a queue has no such offset
        :raises RouteNotFoundError: there is no such topic
        :raises NotSupportedError: a broker moves connected groups by time only, and offsets are
            given; or the group is connected and the topic static: stop the members first
        :raises SubscriptionError: there is no such group, as far as 5.x brokers know
        :raises AdminError: some brokers did it, and others did not
        """
        check_group(group)
        millis = _millis(to)
        masters = await self._masters_of(check_topic(topic))
        routes = self._instance.routes
        with routes.hold(topic):
            offsets = await self._targets(topic, to)
            owners = {queue: routes.broker_of(queue) for queue in offsets}

            async def move(name: str, address: str) -> list[OffsetReset]:
                there = {queue: each for queue, each in offsets.items() if owners[queue] == name}
                return await self._move(_Move(group, topic, address, there, millis))

            targets = {name: masters.get(name) for name in sorted(set(owners.values()))}
            done = await self._on_each(f"resetting group {group} in {topic}", targets, move)
        return sorted((each for some in done.values() for each in some), key=lambda r: r.queue)

    async def clone_offsets(
        self, source: str, target: str, topic: str | None = None
    ) -> list[OffsetReset]:
        """Let group *target* continue where *source* is, in *topic* or in all topics it has
        committed something of; its retry topic is its own.

        :raises ConfigError: members of *target* are connected, and would overwrite the offsets
        :raises SubscriptionError: there is no group *target*, as far as 5.x brokers know
        :raises AdminError: some brokers did it, and others did not
        """
        if (await self.consumer_connections(target)).online:
            raise ConfigError("target", target, "its members are connected: stop them first")
        queues = (await self.group_progress(source, topic)).queues
        topics = {each.queue.topic for each in queues}
        cloned: list[OffsetReset] = []
        for each in sorted(topics):
            if not each.startswith(RETRY_PREFIX):
                cloned += await self.reset_offsets(target, each, await self._copied(source, each))
        return cloned

    # --- inside ---------------------------------------------------------------------------------

    async def _targets(self, topic: str, to: Target) -> dict[MessageQueue, int]:
        broker = self._instance.broker
        queues = (await self._instance.routes.fetch(topic)).subscribe_queues
        if isinstance(to, Mapping):
            for queue, offset in to.items():
                if queue not in queues:
                    raise ConfigError("to", queue, f"topic {topic} has no such queue")
                least, most = await broker.min_offset(queue), await broker.max_offset(queue)
                if type(offset) is not int or not least <= offset <= most:
                    raise ConfigError("to", offset, f"{queue} has offsets {least} to {most}")
            return dict(to)
        if to == "earliest":
            return {queue: await broker.min_offset(queue) for queue in queues}
        if to == "latest":
            return {queue: await broker.max_offset(queue) for queue in queues}
        return {queue: await self._offset_at(queue, _millis(to) or 0) for queue in queues}

    async def _copied(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Return where *group* is in *topic*, or where a queue begins that has lost that place."""
        broker = self._instance.broker
        offsets: dict[MessageQueue, int] = {}
        with self._instance.routes.hold(topic):
            for queue in (await self._instance.routes.fetch(topic)).subscribe_queues:
                if (offset := await broker.query_offset(group, queue)) is not None:
                    offsets[queue] = max(offset, await broker.min_offset(queue))
        return offsets

    async def _move(self, move: _Move) -> list[OffsetReset]:
        query = self._instance.broker.query_offset
        before = {queue: await query(move.group, queue) for queue in move.offsets}
        online, version = await self._is_online(move)
        if any(map(is_logical, move.offsets)):
            moved, how = await self._move_logical(move, online=online), "committed"
        elif version >= V5_0_0:
            moved, how = await self._move_at_broker(move, online=online)
        elif online:
            moved, how = await self._move_members(move), "members"
        else:
            moved, how = await self._commit(move), "committed"
        return [
            OffsetReset(queue=queue, before=before.get(queue), offset=offset, how=how)
            for queue, offset in moved.items()
        ]

    async def _is_online(self, move: _Move) -> tuple[bool, int]:
        """Return whether members are connected, and the version of the broker."""
        header = GetConsumerConnectionList(consumer_group=move.group)
        command = await self._instance.remoting.request(move.address, header)
        if command.code not in ANSWERED:
            raise broker_error(command, move.address)
        return command.code == ResponseCode.SUCCESS, command.version

    async def _move_at_broker(
        self, move: _Move, *, online: bool
    ) -> tuple[dict[MessageQueue, int], str]:
        """Let a 5.x broker keep the offsets, one queue after the other.

        One that is configured not to understands "back to the end of the topic, and only
        backwards", which moves nobody, and answers with other offsets.
        """
        for queue, offset in move.offsets.items():
            header = InvokeResetOffset(
                group=move.group,
                topic=move.topic,
                queue_id=queue.queue_id,
                offset=offset,
                timestamp=END,
                is_force=False,
            )
            command = await self._instance.remoting.request(move.address, header)
            if command.code not in ANSWERED:
                raise broker_error(command, move.address)
            if command.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return await self._commit(move), "committed"
            if read_reset_offsets(command.body) != {queue: offset}:
                return await self._move_members(move), "members"
        return move.offsets, "broker"

    async def _move_logical(self, move: _Move, *, online: bool) -> dict[MessageQueue, int]:
        """Commit: brokers reset physical queues only, and members do not know these."""
        if online:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            reason = "brokers cannot move a connected group in a static topic: stop its members"
            raise NotSupportedError(code, reason, move.address)
        return await self._commit(move)

    async def _move_members(self, move: _Move) -> dict[MessageQueue, int]:
        """Let the broker tell its members."""
        if move.millis is None:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            reason = "this broker moves a connected group by time only: stop its members first"
            raise NotSupportedError(code, reason, move.address)
        header = InvokeResetOffset(
            group=move.group, topic=move.topic, timestamp=move.millis, is_force=True
        )
        command = await self._ask(move.address, header)
        return read_reset_offsets(command.body)

    async def _commit(self, move: _Move) -> dict[MessageQueue, int]:
        """Commit for a group without members, and make sure that the broker has it."""
        broker = self._instance.broker
        for queue, offset in move.offsets.items():
            await broker.update_offset(move.group, queue, offset)
            kept = await broker.query_offset(move.group, queue)
            if kept != offset:
                remark = f"it acknowledged offset {offset} of {queue}, and holds {kept}"
                raise BrokerError(ResponseCode.SYSTEM_ERROR, remark, move.address)
        return move.offsets


def _millis(to: Target) -> int | None:
    """Return *to* as brokers understand a time; None: offsets are none.

    :raises ConfigError: it is nothing to reset to
    """
    if isinstance(to, Mapping):
        return None
    if isinstance(to, datetime) and to.tzinfo is not None:
        return max(0, int(to.timestamp() * 1000))
    if to in ("earliest", "latest"):
        return BEGINNING if to == "earliest" else END
    reason = 'expected "earliest", "latest", a datetime with a time zone, or offsets by queue'
    raise ConfigError("to", to, reason)
