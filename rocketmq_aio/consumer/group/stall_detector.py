"""A process that stood still: others may have its queues, and it must not go on as if not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from time import monotonic
from typing import Final, Generic, TypeVar

import anyio

from rocketmq_aio.config.consumer import OffsetStore
from rocketmq_aio.consumer.pulling.queue_state import QueueState
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

logger = get_logger(__name__)

STALL_SECONDS: Final = 30.0  # as for locks; brokers give a silent member up after two minutes
LOOK_SECONDS: Final = 1.0
COMPARE_SECONDS: Final = 10.0  # for the store to answer; what it leaves out is not committed

Q = TypeVar("Q", bound=QueueState)


class Standstills:
    """Notices that the event loop has not run for a while.

    :param clock: seconds; goes on while the process stands still
    """

    def __init__(self, clock: Callable[[], float], limit_seconds: float) -> None:
        self._clock = clock
        self._limit = limit_seconds
        self._seen = clock()
        self._timer: asyncio.TimerHandle | None = None

    async def watch(self) -> None:
        """Look for ever; by a timer, which runs before any task that was waiting goes on."""
        self._seen = self._clock()
        self._tick()
        try:
            await anyio.sleep_forever()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._tick)
        self.look()

    def look(self) -> None:
        """Tell if the last look was too long ago."""
        now = self._clock()
        seconds, self._seen = now - self._seen, now
        if seconds > self._limit:
            self._stood_still(seconds)

    def _stood_still(self, seconds: float) -> None:
        raise NotImplementedError


class StallDetector(Standstills, Generic[Q]):
    """Gives all queues up when the event loop has not run for a while; they are taken on anew.

    Nothing more of them is handed out, and what was settled is committed only where nobody else
    has come further in the meantime.

    :param table: the queues held now, by reference
    :param revoke: revokes assignments: drain, commit, release
    """

    def __init__(
        self,
        host: BackgroundTasks,
        table: Mapping[MessageQueue, Q],
        store: OffsetStore,
        *,
        revoke: Callable[[Collection[Q]], Awaitable[None]],
        clock: Callable[[], float] = monotonic,
        limit_seconds: float = STALL_SECONDS,
    ) -> None:
        super().__init__(clock, limit_seconds)
        self._host = host
        self._table = table
        self._store = store
        self._revoke = revoke
        self._doubted: set[QueueState] = set()

    def may_commit(self, assigned: QueueState) -> bool:
        """Whether what is settled of a queue may be committed now."""
        return assigned not in self._doubted

    def _stood_still(self, seconds: float) -> None:
        """Stop everything."""
        if not self._table:
            return
        logger.warning("process_stood_still", seconds=round(seconds), queues=len(self._table))
        held = list(self._table.values())
        self._doubted.update(held)
        for assigned in held:
            assigned.drop()
        self._host.spawn(self._leave, held, name="stood-still")

    async def _leave(self, held: list[Q]) -> None:
        try:
            with anyio.move_on_after(COMPARE_SECONDS):
                async with anyio.create_task_group() as tasks:
                    for assigned in held:
                        tasks.start_soon(self._compare, assigned)
            await self._revoke(held)
        finally:
            self._doubted.difference_update(held)

    async def _compare(self, assigned: Q) -> None:
        """Doubt a queue no longer if nobody has come further than this member."""
        try:
            await self._store.remove(assigned.queue)  # what it remembers may be wrong by now
            committed = await self._store.read(assigned.queue)
        except RocketMQError as error:
            logger.info("progress_unknown", queue=str(assigned.queue), reason=str(error))
            return
        if committed is None or committed <= assigned.committable:
            self._doubted.discard(assigned)
