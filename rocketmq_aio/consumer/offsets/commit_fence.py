"""Commit fence: after a stall, never commits below what another member committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Generic, TypeVar

from rocketmq_aio.config.consumer import OffsetStore
from rocketmq_aio.consumer.common.stall_detector import STALL_SECONDS, StallDetector
from rocketmq_aio.consumer.pulling.queue_state import UNKNOWN, UNVERIFIED, QueueState
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)

Q = TypeVar("Q", bound=QueueState)


class CommitFence(Generic[Q]):
    """Sets the commit floor of each queue: after a stall, the offset that is committed then.

    A member that only worked long without yielding to the event loop still has its queues unless
    the broker dropped it, so its own progress is usually committed.

    :param table: the queues held now, by reference
    :param on_stall: called with the queues held during a stall
    """

    def __init__(
        self,
        store: OffsetStore,
        table: Mapping[MessageQueue, Q],
        *,
        on_stall: Callable[[list[Q]], object] | None = None,
        clock: Callable[[], float] = monotonic,
        limit_seconds: float = STALL_SECONDS,
    ) -> None:
        self.stalls = StallDetector(self._invalidate, clock=clock, limit_seconds=limit_seconds)
        self._store = store
        self._table = table
        self._on_stall = on_stall
        self._count = 0  # of stalls

    def may_commit(self, assigned: QueueState) -> bool:
        """Whether committing the queue keeps what other members committed."""
        return assigned.committable >= assigned.commit_floor

    async def refresh(self, queues: Iterable[QueueState]) -> dict[MessageQueue, BaseException]:
        """Read the floors of those of *queues* that a stall invalidated; return what failed."""
        self.stalls.look()  # the caller may have been woken before the timer
        stale = [each for each in queues if each.commit_floor == UNVERIFIED]
        _, failed = await gather_limited(self._refresh, stale)
        return {assigned.queue: error for assigned, error in failed.items()}

    def _invalidate(self, seconds: float) -> None:
        self._count += 1
        held = list(self._table.values())
        if not held:
            return
        logger.warning("process_stood_still", seconds=round(seconds), queues=len(held))
        for assigned in held:
            assigned.commit_floor = UNVERIFIED
        if self._on_stall is not None:
            self._on_stall(held)

    async def _refresh(self, assigned: QueueState) -> None:
        count = self._count
        try:
            await self._store.remove(assigned.queue)  # its memory may be outdated
            committed = await self._store.read(assigned.queue)
        except RocketMQError as error:
            logger.info("progress_unknown", queue=str(assigned.queue), reason=str(error))
            raise
        # Unchanged: since then there was no seek, and no other stall.
        if assigned.commit_floor == UNVERIFIED and count == self._count:
            assigned.commit_floor = UNKNOWN if committed is None else committed
