"""How far groups are, queue by queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rocketmq_aio.admin.groups import Groups
from rocketmq_aio.admin.results import GroupProgress, QueueProgress, time_of
from rocketmq_aio.errors import RocketMQError, shown
from rocketmq_aio.model.names import check_group, check_topic
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import Body, queue_key
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin_groups import (
    ConsumeStats,
    GetConsumeStats,
    OffsetWrapper,
)
from rocketmq_aio.protocol.requests.connections import ConsumerConnections
from rocketmq_aio.protocol.requests.from_broker import GetConsumerRunningInfo


class _Reading(Body, frozen=True):
    """What a member reads; the rest of its answer is of no interest here."""

    mq_table: dict[str, Any] = msgspec.field(default_factory=dict)


class Progress(Groups):
    """Where groups stand."""

    async def group_progress(
        self, group: str, topic: str | None = None, *, owners: bool = False
    ) -> GroupProgress:
        """Return how far a group is in *topic*, or in all topics that it committed something of.

        A group that does not exist has consumed nothing.  The retry topic is one of the topics.
        While members are connected, brokers leave out what these do not subscribe to.

        :param owners: ask each member what it reads; ``silent`` names those that do not tell
        :raises RouteNotFoundError: there is no such topic
        :raises AdminError: some brokers could not be asked
        """

        async def stats(_: str, address: str) -> ConsumeStats:
            command = await self._ask(address, GetConsumeStats(consumer_group=group, topic=topic))
            return read_body(command.body, ConsumeStats)

        check_group(group)
        masters = await (self._masters() if topic is None else self._masters_of(check_topic(topic)))
        found = await self._on_each(f"asking how far group {group} is", masters, stats)
        readers, silent = await self._readers(group) if owners else ({}, {})
        queues = [
            _progress(queue, each, readers.get(queue))
            for table in found.values()
            for queue, each in _by_queue(table)
        ]
        return GroupProgress(
            group=group,
            queues=tuple(sorted(queues, key=lambda each: each.queue)),
            consume_tps=sum(table.consume_tps for table in found.values()),
            silent=silent,
        )

    async def _readers(self, group: str) -> tuple[dict[MessageQueue, str], dict[str, str]]:
        """Return who reads which queue, and why others do not say what they read."""
        masters = await self._masters()
        connected = await self._connections(group, masters)
        readers: dict[MessageQueue, str] = {}
        silent: dict[str, str] = {}
        for client_id, broker in _brokers_of_clients(connected).items():
            address = masters[broker]
            assert address is not None
            try:
                queues = await self._reads(address, group, client_id)
            except RocketMQError as error:
                silent[client_id] = shown(str(error))
            else:
                readers.update(dict.fromkeys(queues, client_id))
        return readers, silent

    async def _reads(self, address: str, group: str, client_id: str) -> list[MessageQueue]:
        header = GetConsumerRunningInfo(consumer_group=group, client_id=client_id)
        command = await self._ask(address, header)
        return [queue_key(key) for key in read_body(command.body, _Reading).mq_table]


def _progress(queue: MessageQueue, each: OffsetWrapper, client_id: str | None) -> QueueProgress:
    return QueueProgress(
        queue=queue,
        broker_offset=each.broker_offset,
        consumer_offset=each.consumer_offset,
        last_time=time_of(each.last_timestamp),
        client_id=client_id,
    )


def _by_queue(table: ConsumeStats) -> Iterable[tuple[MessageQueue, OffsetWrapper]]:
    return [(queue_key(key), each) for key, each in table.offset_table.items()]


def _brokers_of_clients(connected: dict[str, ConsumerConnections]) -> dict[str, str]:
    return {
        each.client_id: broker
        for broker, table in connected.items()
        for each in table.connection_set
    }
