"""An application's offset store that can fail and block."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.values import MessageQueue


class AppStore:
    """Keeps offsets in memory; *calls* has the calls in order."""

    def __init__(self) -> None:
        self.kept: dict[MessageQueue, int] = {}
        self.calls: list[tuple[str, object]] = []
        self.fail: dict[str, BaseException] = {}  # by the name of a method
        self.fail_queues: dict[MessageQueue, BaseException] = {}  # updates of these queues
        self.may_persist: asyncio.Event | None = None
        self.hold_update: asyncio.Event | None = None
        self._latest: dict[MessageQueue, int] = {}

    async def load(self) -> None:
        self._called("load", None)

    async def read(self, queue: MessageQueue) -> int | None:
        self._called("read", queue)
        return self._latest.get(queue, self.kept.get(queue))

    async def update(self, queue: MessageQueue, offset: int) -> None:
        self._called("update", (queue, offset))
        if (error := self.fail_queues.get(queue)) is not None:
            raise error
        if self.hold_update is not None:
            await self.hold_update.wait()
        self._latest[queue] = offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        self._called("persist", tuple(queues))
        await asyncio.sleep(0)
        if self.may_persist is not None:
            await self.may_persist.wait()
        self.kept |= {queue: self._latest[queue] for queue in queues if queue in self._latest}

    async def remove(self, queue: MessageQueue) -> None:
        self._latest.pop(queue, None)
        self._called("remove", queue)

    def called(self, name: str) -> list[object]:
        return [argument for each, argument in self.calls if each == name]

    def _called(self, name: str, argument: object) -> None:
        self.calls.append((name, argument))
        if (error := self.fail.get(name)) is not None:
            raise error


class StoreError(RocketMQError):
    """The application's database is down."""
