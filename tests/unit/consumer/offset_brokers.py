"""Scripted offset requests."""

from __future__ import annotations

import asyncio
from collections import Counter

from anyio.lowlevel import checkpoint

from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.instance.broker_client import BrokerClient
from rocketmq_aio.model.values import MessageQueue


class Brokers(BrokerClient):
    """Keeps offsets; raises each given error once, and delays gated requests."""

    def __init__(self) -> None:
        self.kept: dict[MessageQueue, int] = {}
        self.updates: list[tuple[MessageQueue, int]] = []
        self.queries: list[MessageQueue] = []
        self.errors: dict[MessageQueue, list[BaseException]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.owners: dict[MessageQueue, str] = {}  # of logical queues
        self.running: Counter[str] = Counter()
        self.most_running: Counter[str] = Counter()
        self.most_of_a_queue: Counter[MessageQueue] = Counter()
        self._of_a_queue: Counter[MessageQueue] = Counter()

    def hold(self, broker: str = "broker-a") -> None:
        self.gates[broker] = asyncio.Event()

    def let_go(self, broker: str = "broker-a") -> None:
        self.gates.pop(broker).set()

    def broker_of(self, queue: MessageQueue) -> str:
        return self.owners.get(queue, queue.broker_name)

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        assert group == "billing"
        self.queries.append(queue)
        response = self.kept.get(queue)
        await self._work(queue)
        return response

    async def query_copied_offset(self, group: str, queue: MessageQueue) -> int | None:
        raise NotConnectedError(queue.broker_name, "there is a master")

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        assert group == "billing"
        self.updates.append((queue, offset))
        self._of_a_queue[queue] += 1
        self.most_of_a_queue |= self._of_a_queue
        try:
            await self._work(queue)
        finally:
            self._of_a_queue[queue] -= 1
        self.kept[queue] = offset

    async def _work(self, queue: MessageQueue) -> None:
        broker = self.broker_of(queue)
        self.running[broker] += 1
        self.most_running |= self.running
        try:
            await checkpoint()
            if broker in self.gates:
                await self.gates[broker].wait()
        finally:
            self.running[broker] -= 1
        if errors := self.errors.get(queue):
            raise errors.pop(0)
