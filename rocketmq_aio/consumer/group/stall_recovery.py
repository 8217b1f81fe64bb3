"""Recovery from a stall: revokes all queues, for the rebalance to assign them anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from time import monotonic
from typing import Final, Generic, TypeVar

import anyio

from rocketmq_aio.config.consumer import OffsetStore
from rocketmq_aio.consumer.common.stall_detector import STALL_SECONDS
from rocketmq_aio.consumer.offsets.commit_fence import CommitFence
from rocketmq_aio.consumer.pulling.queue_state import QueueState
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

COMPARE_SECONDS: Final = 10.0  # for reading the committed offsets; then nothing is committed

Q = TypeVar("Q", bound=QueueState)


class StallRecovery(Generic[Q]):
    """Revokes all queues after a stall, because other members may have them.

    Delivery stops at once; a queue is committed only if no other member has committed more.

    :param table: the queues held now, by reference
    :param revoke: revokes assignments: drain, commit, release
    """

    def __init__(
        self,
        tasks: BackgroundTasks,
        table: Mapping[MessageQueue, Q],
        store: OffsetStore,
        *,
        revoke: Callable[[Collection[Q]], Awaitable[None]],
        clock: Callable[[], float] = monotonic,
        limit_seconds: float = STALL_SECONDS,
    ) -> None:
        self._tasks = tasks
        self._revoke = revoke
        self.fence: CommitFence[Q] = CommitFence(
            store, table, on_stall=self._on_stall, clock=clock, limit_seconds=limit_seconds
        )

    def _on_stall(self, held: list[Q]) -> None:
        for assigned in held:
            assigned.drop()
        self._tasks.spawn(self._leave, held, name="stall-recovery")

    async def _leave(self, held: list[Q]) -> None:
        with anyio.move_on_after(COMPARE_SECONDS):
            await self.fence.refresh(held)
        await self._revoke(held)
