"""Commit fence: keeps the commits of others if this member may have lost its queues.

It may after a stall of the event loop, or an outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, Generic, TypeAlias, TypeVar

import anyio

from rocketmq_aio.config.consumer import OffsetStore
from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN, UNVERIFIED, QueueState
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)

STALL_SECONDS: Final = 30.0  # as for locks; brokers drop a silent member after two minutes
SHORT_STALL_SECONDS: Final = 10.0  # in which a broker can restart, and know another member first
CHECK_SECONDS: Final = 5.0  # counts as a part of the stall, at most
COMPARE_SECONDS: Final = 10.0  # for reading the committed offsets; then nothing is committed

Q = TypeVar("Q", bound=QueueState)


Connection: TypeAlias = Callable[[MessageQueue], int]
"""Returns the number of the connection to the master of a queue; 0: there is none now."""


def one_connection(_queue: MessageQueue) -> int:
    """Return the same number always: if locks decide who has a queue, connections do not matter."""
    return 0


async def read_committed(
    store: OffsetStore, queues: Iterable[QueueState], connection: Connection = one_connection
) -> dict[MessageQueue, BaseException]:
    """Set `min_commit_offset` of the unverified *queues* to what the group has committed.

    Returns what failed; those queues stay unverified.
    """
    unverified = [each for each in queues if each.min_commit_offset == UNVERIFIED]
    _, failed = await gather_limited(
        lambda each: _read_committed(store, each, connection), unverified
    )
    return {assigned.queue: error for assigned, error in failed.items()}


async def _read_committed(store: OffsetStore, assigned: QueueState, connection: Connection) -> None:
    invalidations, before = assigned.invalidations, connection(assigned.queue)
    try:
        await store.remove(assigned.queue)  # its memory may be outdated
        committed = await store.read(assigned.queue)
    except RocketMQError as error:
        logger.info("progress_unknown", queue=str(assigned.queue), reason=str(error))
        raise
    over = connection(assigned.queue)
    # Unchanged: since then there was no seek, and others could not commit more.
    if (
        assigned.min_commit_offset == UNVERIFIED
        and invalidations == assigned.invalidations
        and before in (0, over)
    ):
        assigned.verified_connection = over
        assigned.require(UNKNOWN if committed is None else committed)


class CommitFence(Generic[Q]):
    """Sets `min_commit_offset` of each queue: after a stall or `invalidate`, the committed offset.

    So it does if there is another *connection* to the broker, which dropped this member when the
    former one ended, and may have given its queues to others for a moment.

    During a stall the event loop does not run.  A member that only worked long without yielding to
    it still has its queues unless the broker dropped it, so its own progress is usually committed.
    """

    def __init__(
        self,
        store: OffsetStore,
        table: Mapping[MessageQueue, Q],
        *,
        connection: Connection = one_connection,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._store = store
        self._table = table
        self._connection = connection
        self._clock = clock
        self._seen = clock()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look for stalls until `stop`; by a timer, which runs before any task that was waiting."""
        self._seen = self._clock()
        self._tick()

    def stop(self) -> None:
        """Cancel the timer; may be called twice."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._tick)
        self.check_stall()

    def check_stall(self) -> None:
        """Invalidate if the last call was too long ago."""
        now = self._clock()
        seconds, self._seen = now - self._seen, now
        if seconds > SHORT_STALL_SECONDS:
            self.invalidate()
            held = list(self._table.values())
            if held and seconds > STALL_SECONDS:
                logger.warning("event_loop_stalled", seconds=round(seconds), queues=len(held))
                self._on_stall(held)

    def may_commit(self, assigned: QueueState) -> bool:
        """Whether committing the queue keeps what other members committed."""
        self.check_stall()  # the caller may have been woken before the timer
        self._check_connection(assigned)
        return assigned.committable >= assigned.min_commit_offset

    def note_connection(self, assigned: Q) -> None:
        """Note that the start of a queue was read over the current connection."""
        assigned.verified_connection = self._connection(assigned.queue)

    def _check_connection(self, assigned: QueueState) -> None:
        if assigned.min_commit_offset == UNVERIFIED:
            return  # another call would make a running read outdated
        if self._connection(assigned.queue) != assigned.verified_connection:
            assigned.invalidate_commits()

    async def refresh(self, queues: Iterable[QueueState]) -> dict[MessageQueue, BaseException]:
        """Read the committed offsets that others may have changed; return what failed."""
        self.check_stall()  # the caller may have been woken before the timer
        queues = list(queues)
        for assigned in queues:
            self._check_connection(assigned)
        return await read_committed(self._store, queues, self._connection)

    def invalidate(self) -> None:
        """Note that other members may have the queues, and may have committed more."""
        for assigned in self._table.values():
            assigned.invalidate_commits()

    def on_recovered(self, assigned: Q) -> None:
        """Treat the queues of a broker as after a stall, if its pulls have expired.

        It may have dropped this member, and given its queues to others.
        """
        if assigned.pull_expired and not assigned.dropped:
            name = assigned.queue.broker_name
            held = [each for each in self._table.values() if each.queue.broker_name == name]
            for each in held:
                each.invalidate_commits()
            self._on_stall(held)

    def _on_stall(self, held: list[Q]) -> None:
        """Called with the queues held during a stall or a long outage."""


class StallRecovery(CommitFence[Q]):
    """Also revokes the queues after a stall or a long outage: other members may have them.

    Delivery stops at once; a queue is committed only if no other member has committed more.
    """

    def __init__(
        self,
        store: OffsetStore,
        table: Mapping[MessageQueue, Q],
        tasks: BackgroundTasks,
        *,
        revoke: Callable[[Collection[Q]], Awaitable[None]],
        connection: Connection = one_connection,
        clock: Callable[[], float] = boottime,
    ) -> None:
        super().__init__(store, table, connection=connection, clock=clock)
        self._tasks = tasks
        self._revoke = revoke

    def _on_stall(self, held: list[Q]) -> None:
        for assigned in held:
            assigned.drop()
        self._tasks.spawn(self._leave, held, name="stall-recovery")

    async def _leave(self, held: list[Q]) -> None:
        with anyio.move_on_after(COMPARE_SECONDS):
            await self.refresh(held)
        await self._revoke(held)
