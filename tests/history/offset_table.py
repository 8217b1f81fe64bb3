"""Offset store in memory, which can outlive its consumers."""

from __future__ import annotations

from collections.abc import Collection

from rocketmq_aio.model.values import MessageQueue


class OffsetTable:
    """An `OffsetStore`; *name* is what the history knows it by."""

    def __init__(self, name: str, table: dict[MessageQueue, int]) -> None:
        self.name = name
        self._stored = table
        self._updated: dict[MessageQueue, int] = {}

    def covers(self, count: int) -> bool:
        """Whether *count* messages are processed."""
        return sum({**self._stored, **self._updated}.values()) >= count

    async def load(self) -> None: ...

    async def read(self, queue: MessageQueue) -> int | None:
        return self._updated.get(queue, self._stored.get(queue))

    async def update(self, queue: MessageQueue, offset: int) -> None:
        self._updated[queue] = offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        for queue in queues:
            if queue in self._updated:
                self._stored[queue] = self._updated.pop(queue)

    async def remove(self, queue: MessageQueue) -> None:
        self._updated.pop(queue, None)
