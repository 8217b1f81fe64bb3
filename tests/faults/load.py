"""Load of a fake cluster during a test."""

from __future__ import annotations

import asyncio

from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import put


class Sender:
    """Adds numbered messages evenly to all *queues* of the topic."""

    def __init__(self, cluster: FakeCluster, queues: int) -> None:
        self.cluster = cluster
        self.queues = queues
        self.sent = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            put(self.cluster, str(self.sent), queue_id=self.sent % self.queues)
            self.sent += 1

    async def keep_sending(self) -> None:
        while True:
            self.send(self.queues)
            await asyncio.sleep(0.01)
