"""Committing: what was settled goes to the offset store, regularly, on request and on leaving."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import anyio

from rocketmq_aio.consumer.assigned import UNKNOWN, AssignedQueue
from rocketmq_aio.consumer.events import CommitFailed, ConsumerEvent
from rocketmq_aio.consumer.offsets import OffsetStore, RemoteOffsetStore
from rocketmq_aio.errors import CommitError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.message import MessageQueue

logger = get_logger(__name__)


class Commits:
    """Moves offsets from the assigned queues into the store.

    :param assigned: the queues held now, by reference
    :param automatic: whether what is settled is committed without being asked to
    :param may_commit: whether a queue is still this consumer's to commit; None is always
    """

    def __init__(
        self,
        store: OffsetStore,
        assigned: Mapping[MessageQueue, AssignedQueue],
        *,
        automatic: bool = True,
        may_commit: Callable[[AssignedQueue], bool] | None = None,
        on_event: Callable[[ConsumerEvent], None],
    ) -> None:
        self._store = store
        self._assigned = assigned
        self._automatic = automatic
        self._may_commit = may_commit
        self._on_event = on_event

    def doubt(self, assigned: AssignedQueue) -> None:
        """The broker of a queue was away, and may have forgotten what it had."""
        if isinstance(self._store, RemoteOffsetStore):
            self._store.doubt(assigned.queue)

    async def keep_committing(self, interval_seconds: float) -> None:
        """Commit what is settled, for ever."""
        while True:
            await anyio.sleep(interval_seconds)
            await self.commit_settled(list(self._assigned.values()))

    async def commit_settled(self, queues: Iterable[AssignedQueue]) -> None:
        """Commit what earlier polls returned; a failure is an event, and tried again later."""
        if not self._automatic:
            return
        may_commit = self._may_commit
        await self.store_offsets(
            {
                each.queue: settled
                for each in queues
                if (settled := each.settled) != UNKNOWN and (not may_commit or may_commit(each))
            }
        )

    async def store_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Update and persist *offsets*; failures are reported, not raised."""
        if lost := await self._persist(offsets):
            reason = str(CommitError(lost))
            logger.warning("commit_failed", reason=reason)
            self._on_event(CommitFailed(queues=tuple(lost), reason=reason))

    async def forget(self, queues: Iterable[MessageQueue]) -> None:
        """These queues belong to others now; what is durable stays."""
        for queue in queues:
            try:
                await self._store.remove(queue)
            except RocketMQError as error:
                logger.warning("offset_not_forgotten", queue=str(queue), reason=str(error))

    async def _persist(
        self, offsets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, BaseException]:
        """Return what could not be stored, and why; the store keeps it for the next time."""
        try:
            for queue, offset in offsets.items():
                await self._store.update(queue, offset)
            await self._store.persist(list(offsets))
        except CommitError as error:
            return error.lost
        except RocketMQError as error:  # a store of the application may fail in other ways
            return dict.fromkeys(offsets, error)
        return {}
