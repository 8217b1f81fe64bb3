"""Administration of lite topics (5.5)."""

from __future__ import annotations

from typing import TypeVar, Unpack

from rocketmq_aio.admin.server_results import (
    LiteBroker,
    LiteClient,
    LiteGroup,
    LiteParent,
    LiteTopic,
)
from rocketmq_aio.admin.servers import Servers, Where
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.protocol.header import RequestHeader
from rocketmq_aio.protocol.requests import operations

T = TypeVar("T")
DEFAULT_COUNT = 20


@checked_arguments
class LiteAdmin:
    """Describes lite topics of 5.5 brokers: ``admin.lite``.

    A lite topic belongs to a topic with the attribute ``message.type=LITE``.  Results are by
    broker name.  Older brokers raise `NotSupportedError`.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def brokers(self, **where: Unpack[Where]) -> dict[str, LiteBroker]:
        """Return the numbers of lite topics and subscriptions of each broker."""
        header, kind = operations.GET_LITE_BROKER, LiteBroker
        return await self._servers.read_from("reading lite topics", header, kind, **where)

    async def parent(self, topic: str) -> dict[str, LiteParent]:
        """Return time to live, groups and number of lite topics of *topic*."""
        return await self._read(topic, operations.GetLiteParent(topic=topic), LiteParent)

    async def topic(self, parent: str, lite_topic: str) -> dict[str, LiteTopic]:
        """Return subscribers and offsets of a lite topic."""
        header = operations.GetLiteTopic(parent_topic=parent, lite_topic=lite_topic)
        return await self._read(parent, header, LiteTopic)

    async def client(
        self, parent: str, group: str, client_id: str, *, count: int = DEFAULT_COUNT
    ) -> dict[str, LiteClient]:
        """Return up to *count* lite topics that a connected client subscribes to."""
        header = operations.GetLiteClient(
            parent_topic=parent,
            group=group,
            client_id=client_id,
            max_count=checked_count("count", count),
        )
        return await self._read(parent, header, LiteClient)

    async def group(
        self, parent: str, group: str, *, lite_topic: str | None = None, count: int = DEFAULT_COUNT
    ) -> dict[str, LiteGroup]:
        """Return the lag of a group in *lite_topic*, or the *count* lite topics with the most."""
        header = operations.GetLiteGroup(
            group=group, lite_topic=lite_topic, top_k=checked_count("count", count)
        )
        return await self._read(parent, header, LiteGroup)

    async def dispatch(self, parent: str, group: str, *, client_id: str | None = None) -> None:
        """Deliver waiting messages now, to all clients of a group or to one."""
        header = operations.TriggerLiteDispatch(group=group, client_id=client_id)
        masters = await self._servers.masters_of(parent)
        await self._servers.send_each(f"dispatching to group {group}", masters, header)

    async def _read(self, topic: str, header: RequestHeader, kind: type[T]) -> dict[str, T]:
        masters = await self._servers.masters_of(topic)
        action = f"reading lite topics of {topic}"
        return await self._servers.read_each(action, masters, header, kind)
