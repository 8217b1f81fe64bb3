"""Minimal clients, and checks for leftover tasks and sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import psutil  # type: ignore[import-untyped]  # it has no stubs

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import (
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
    queue_table,
)
from tests.unit.remoting.until import until


class PlainClient(ClientBase):
    """A producer that sends nothing."""

    def __init__(self, client: MQClientInstance | ClientConfig, group: str = "shop") -> None:
        super().__init__(group, namesrv=None, client=client)
        self.wanted = {"orders"}
        self.changed: list[str] = []
        self.opened = 0
        self.shut = 0
        self.may_open: asyncio.Event | None = None
        self.may_shut: asyncio.Event | None = None

    def topics(self) -> set[str]:
        return self.wanted

    def on_route_changed(self, topic: str) -> None:
        self.changed.append(topic)

    def work(self) -> None:
        """Do what every public call does first."""
        self._check_running()

    async def _open(self) -> None:
        self.opened += 1
        if self.may_open is not None:
            await self.may_open.wait()
        self._instance.register_producer(self)

    async def _shut(self) -> None:
        self.shut += 1
        if self.may_shut is not None:
            await self.may_shut.wait()
        await self._instance.unregister_producer(self)


class ConsumerClient(PlainClient):
    """A consumer that consumes nothing."""

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=[SubscriptionData(topic="orders", sub_string="*")],
        )

    def on_members_changed(self) -> None: ...

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None: ...

    async def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        return {}

    def on_own_id_queried(self, check_id: str) -> None: ...

    def running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(properties={}, subscription_set=[], mq_table=queue_table({}))

    async def _open(self) -> None:
        self._instance.register_consumer(self)
        await self._instance.routes.get("orders")
        await self._instance.heartbeats.send_all(self.group)

    async def _shut(self) -> None:
        await self._instance.unregister_consumer(self)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fail if the block leaves a task or an open socket."""
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    yield
    await until(lambda: asyncio.all_tasks() <= tasks, "its tasks to end")
    await until(lambda: open_sockets() <= sockets, "its sockets to close")


def open_sockets() -> int:
    """Number of open sockets of this process, in any state."""
    return len(psutil.Process().net_connections("inet"))
