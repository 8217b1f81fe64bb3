"""Delivery of a lite pull consumer that may have lost its queues: by a stall of the event loop, or
because a broker was out of reach so long that it dropped the member.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import anyio

from rocketmq_aio.config.consumer import OffsetStore
from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.offsets.commit_fence import (
    COMPARE_SECONDS,
    CommitFence,
    Connection,
    one_connection,
)
from rocketmq_aio.consumer.pull_loop.queue_state import UNVERIFIED
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

logger = get_logger(__name__)

RETRY_SECONDS: Final = 0.5


class DeliveryFence(CommitFence[PolledQueue]):
    """Also withholds messages then, and goes on behind what other members committed.

    The queues stay: the application may have worked all the time, and its last batch counts.

    :param rejoin: returns when other members have returned the queues of this one, and whether the
        group distributes the queues at all
    :param on_messages: called with queues whose messages may be delivered again
    """

    def __init__(
        self,
        store: OffsetStore,
        table: Mapping[MessageQueue, PolledQueue],
        tasks: BackgroundTasks,
        *,
        rejoin: Callable[[], Awaitable[bool]],
        on_messages: Callable[[PolledQueue], None],
        connection: Connection = one_connection,
        clock: Callable[[], float] = boottime,
    ) -> None:
        super().__init__(store, table, connection=connection, clock=clock)
        self._tasks = tasks
        self._rejoin = rejoin
        self._on_messages = on_messages

    def on_recovered(self, assigned: PolledQueue) -> None:
        if assigned.withheld is None:  # else it catches up already
            super().on_recovered(assigned)

    def _on_stall(self, held: list[PolledQueue]) -> None:
        for assigned in held:
            assigned.withheld = held  # the last call decides
        self._tasks.spawn(self._catch_up, held, name="catch-up")

    async def _catch_up(self, held: list[PolledQueue]) -> None:
        is_shared = False
        with anyio.move_on_after(COMPARE_SECONDS):
            is_shared = await self._rejoin()
            self.invalidate()  # a commit may have read the offsets before
            await self._verify(held)
            for assigned in self._current(held):
                assigned.pull_expired = False
        self._release(self._current(held), is_shared=is_shared)

    async def _verify(self, held: list[PolledQueue]) -> None:
        while any(each.min_commit_offset == UNVERIFIED for each in self._current(held)):
            if await self.refresh(self._current(held)):
                await anyio.sleep(RETRY_SECONDS)

    def _current(self, held: list[PolledQueue]) -> list[PolledQueue]:
        table = self._table
        return [e for e in held if e.withheld is held and table.get(e.queue) is e]

    def _release(self, held: list[PolledQueue], *, is_shared: bool) -> None:
        for assigned in held:
            before = assigned.delivered
            if is_shared and assigned.catch_up():
                moved = {"position": before, "committed": assigned.delivered}
                logger.info("messages_processed_by_others", queue=str(assigned.queue), **moved)
            assigned.withheld = None
            self._on_messages(assigned)
