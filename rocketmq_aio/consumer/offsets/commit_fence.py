"""After a standstill others may have come further: their progress is not set back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic

from rocketmq_aio.config.consumer import OffsetStore
from rocketmq_aio.consumer.group.stall_detector import STALL_SECONDS, Standstills
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.pulling.queue_state import UNKNOWN
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)


class CommitFence(Standstills):
    """Asks, before the first commit after a standstill, how far others have come.

    Less than that is not committed.  Whoever works long without giving way to the event loop has
    company only if the broker took it for gone, so its own progress goes through.

    :param table: the queues held now, by reference
    """

    def __init__(
        self,
        store: OffsetStore,
        table: Mapping[MessageQueue, PolledQueue],
        *,
        clock: Callable[[], float] = monotonic,
        limit_seconds: float = STALL_SECONDS,
    ) -> None:
        super().__init__(clock, limit_seconds)
        self._store = store
        self._table = table
        self._count = 0  # of standstills

    async def learn(self, queues: Iterable[PolledQueue]) -> dict[MessageQueue, BaseException]:
        """Ask about those of *queues* that are in doubt; return those that still are, and why."""
        self.look()  # the caller may have woken before the timer
        doubted = [each for each in queues if each.doubted]
        _, failed = await gather_limited(self._learn, doubted)
        return {assigned.queue: error for assigned, error in failed.items()}

    def _stood_still(self, seconds: float) -> None:
        self._count += 1
        for assigned in self._table.values():
            assigned.doubted = True
        if self._table:
            logger.warning("process_stood_still", seconds=round(seconds), queues=len(self._table))

    async def _learn(self, assigned: PolledQueue) -> None:
        count = self._count
        try:
            await self._store.remove(assigned.queue)  # what it remembers may be wrong by now
            committed = await self._store.read(assigned.queue)
        except RocketMQError as error:
            logger.info("progress_unknown", queue=str(assigned.queue), reason=str(error))
            raise
        if assigned.doubted and count == self._count:  # else it was moved, or stood still again
            assigned.doubted = False
            assigned.floor = UNKNOWN if committed is None else committed


def may_commit(assigned: PolledQueue, offset: int) -> bool:
    """Whether *offset* of a queue sets nobody back."""
    return not assigned.doubted and offset >= assigned.floor
