"""Lost locks: pause the queues of an orderly consumer, and revoke those that others have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import anyio

from rocketmq_aio.config.consumer import OffsetStore
from rocketmq_aio.consumer.common.events import ConsumerEvent, LeaseLost, LeaseRegained
from rocketmq_aio.consumer.offsets.commit_fence import read_committed
from rocketmq_aio.consumer.pull_loop.queue_state import UNVERIFIED
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

COMPARE_SECONDS: Final = 5.0  # for reading the committed offsets; then it is tried again


class LostLocks:
    """The `LockOwner` of a `PushEngine`.

    A queue whose lock was lost has no calls of handlers and no commits, because `QueueLocks` does
    not hold it.  A handler that runs goes on, and its cache is kept: after an outage of the
    broker the queue continues where it stopped, also if the broker has forgotten the last commits.

    :param revoke: revokes queues and lets the group assign them again
    :param on_resumed: called with a queue that handlers may have again
    """

    def __init__(
        self,
        table: Mapping[MessageQueue, DispatchQueue],
        store: OffsetStore,
        tasks: BackgroundTasks,
        *,
        publish: Callable[[ConsumerEvent], None],
        revoke: Callable[[Collection[DispatchQueue]], Awaitable[None]],
        on_resumed: Callable[[DispatchQueue], None],
    ) -> None:
        self._table = table
        self._store = store
        self._tasks = tasks
        self._publish = publish
        self._revoke = revoke
        self._on_resumed = on_resumed
        self._leaving: list[DispatchQueue] = []

    def on_lost(self, queue: MessageQueue) -> bool:
        assigned = self._table.get(queue)
        if assigned is None:
            return False
        self._publish(LeaseLost(queue=queue))
        assigned.invalidate_commits()
        return True

    def on_taken(self, queue: MessageQueue) -> None:
        if (assigned := self._table.get(queue)) is not None:
            self._leave(assigned)

    async def unchanged(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        held = [self._table[queue] for queue in queues if queue in self._table]
        with anyio.move_on_after(COMPARE_SECONDS):  # renewals of other queues wait
            await read_committed(self._store, held)
        unchanged: list[MessageQueue] = []
        for assigned in held:
            queue, committed = assigned.queue, assigned.min_commit_offset
            # What failed is still unverified, what was revoked meanwhile is another assignment's.
            if committed == UNVERIFIED or self._table.get(queue) is not assigned:
                continue
            if assigned.committable < committed:
                self._leave(assigned)
            else:
                unchanged.append(queue)
        return unchanged

    def on_resumed(self, queue: MessageQueue) -> None:
        self._publish(LeaseRegained(queue=queue))
        self._on_resumed(self._table[queue])

    def _leave(self, assigned: DispatchQueue) -> None:
        if not self._leaving:
            self._tasks.spawn(self._revoke_all, name="locks-lost")
        self._leaving.append(assigned)

    async def _revoke_all(self) -> None:
        # Together: their broker may not respond, and no queue is assigned meanwhile.
        leaving, self._leaving = self._leaving, []
        await self._revoke(leaving)
