"""Members that lock queues of a fake cluster, with a manual clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.push.locks import QueueLocks
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from tests.fakes.cluster import FakeCluster

GROUP: Final = "billing"
INTERVAL: Final = 20.0
OFTEN: Final = 4000  # looks per interval


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Losses:
    """Records the queues whose locks were lost.

    :ivar assigned: queues whose locks are requested again after their leases expired
    :ivar changed: queues of which another member has committed more
    :ivar compared: how often committed offsets were read
    """

    def __init__(self) -> None:
        self.lost: list[MessageQueue] = []
        self.taken: list[MessageQueue] = []
        self.resumed: list[MessageQueue] = []
        self.assigned: set[MessageQueue] = set()
        self.changed: set[MessageQueue] = set()
        self.compared = 0

    def on_lost(self, queue: MessageQueue) -> bool:
        self.lost.append(queue)
        return queue in self.assigned

    def on_taken(self, queue: MessageQueue) -> None:
        self.taken.append(queue)

    async def unchanged(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        self.compared += 1
        return [queue for queue in queues if queue not in self.changed]

    def on_resumed(self, queue: MessageQueue) -> None:
        self.resumed.append(queue)


class Member:
    """Locks of one client id, with the queues it lost."""

    def __init__(self, instance: MQClientInstance) -> None:
        self.client_id = instance.client_id
        self.routes = instance.routes
        self._remoting = instance.remoting
        self.clock = Clock()
        self.losses = Losses()
        self.lost = self.losses.lost
        self.locks = QueueLocks(instance, GROUP, self.losses, clock=self.clock)

    async def connect(self, address: str) -> None:
        """Connect to a replica, as heartbeats do."""
        await self._remoting.request(address, GetMaxOffset(topic="orders", queue_id=0))

    @asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.locks.keep_renewing(INTERVAL))
        yield
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def joined(cluster: FakeCluster) -> AsyncIterator[Member]:
    config = ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=5)
    async with MQClientInstance(config) as instance:
        with instance.routes.pin("orders"):  # as one that a consumer subscribes to
            await instance.routes.get("orders")
            yield Member(instance)


def give_away(cluster: FakeCluster, queue: MessageQueue) -> None:
    """Let somebody else own *queue*."""
    cluster.broker.locks.owners[GROUP][queue] = ("somebody", time.monotonic())
