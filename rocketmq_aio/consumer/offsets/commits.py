"""Commits: moves committable offsets to the offset store, regularly and when queues are revoked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Generic, TypeVar

from rocketmq_aio.config.consumer import OffsetStore
from rocketmq_aio.consumer.common.events import CommitFailed, ConsumerEvent
from rocketmq_aio.consumer.offsets.commit_fence import CommitFence
from rocketmq_aio.consumer.offsets.remote_store import RemoteOffsetStore
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN, UNVERIFIED, QueueState
from rocketmq_aio.errors import CommitError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.keyed_lock import KeyedLock

logger = get_logger(__name__)

LEAST_SECONDS: Final = 0.1  # between commits: a flood of notifications is one commit

Q = TypeVar("Q", bound=QueueState)

Lost = dict[MessageQueue, BaseException]


class Commits(Generic[Q]):
    """Moves offsets from the assigned queues to the store.

    :param automatic: whether processed messages are committed; else only queues whose commit is
        due are
    :param fence: detects that other members may have committed more
    :param holds_lock: of an orderly consumer: whether this member owns a queue now
    """

    def __init__(
        self,
        store: OffsetStore,
        table: Mapping[MessageQueue, Q],
        *,
        automatic: bool = True,
        fence: CommitFence[Q] | None = None,
        holds_lock: Callable[[MessageQueue], bool] | None = None,
        on_event: Callable[[ConsumerEvent], None],
    ) -> None:
        self._store = store
        self._remote = store if isinstance(store, RemoteOffsetStore) else None
        self._table = table
        self._automatic = automatic
        self._fence = fence
        self._holds_lock = holds_lock
        self._on_event = on_event
        self._updating = KeyedLock[MessageQueue]()
        self._woken = asyncio.Event()
        if self._remote is not None:
            self._remote.may_send = self._may_commit

    @property
    def may_be_lost(self) -> bool:
        """Whether progress is committed automatically to brokers, which can lose it."""
        return self._automatic and self._remote is not None

    def _may_commit(self, queue: MessageQueue) -> bool:
        if self._holds_lock is not None:
            return self._holds_lock(queue)
        assigned = self._table.get(queue)  # None: revoked, and its last commit is under way
        return self._fence is None or assigned is None or self._fence.may_commit(assigned)

    def invalidate(self, assigned: QueueState) -> None:
        """Commit again: the broker was unreachable, and may have lost the last commits."""
        if self._remote is not None and self._remote.invalidate(assigned.queue):
            assigned.commit_due = True

    def wake(self) -> None:
        """Commit now: queues may be about to be revoked, and their next owners may not wait."""
        if self._table:  # at the notification that this member has joined there is none
            self._woken.set()

    async def keep_committing(self, interval_seconds: float) -> None:
        """Commit until cancelled: regularly, and when woken."""
        loop, pause = asyncio.get_running_loop(), min(LEAST_SECONDS, interval_seconds)
        while True:
            await asyncio.sleep(pause)
            timer = loop.call_later(interval_seconds - pause, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                timer.cancel()
            self._woken.clear()
            # Not those being revoked, whose next owners may have committed more: see `Assignments`.
            await self.commit_progress([e for e in self._table.values() if not e.dropped])

    async def commit_progress(self, queues: Iterable[QueueState]) -> None:
        """Commit what is committable; without automatic commits only where a commit is due.

        Failures are published as `CommitFailed`, and retried with the next regular commit.
        """
        due = [each for each in queues if self._is_due(each)]
        if not due:
            return
        held = {each for each in due if not each.dropped}

        def is_revoked(assigned: QueueState) -> bool:
            """Whether it was revoked meanwhile: that commits it, and reports a failure."""
            return assigned.dropped and assigned in held

        _, lost = await self._persist(due)
        unverified = [
            each for each in due if each.min_commit_offset == UNVERIFIED and not is_revoked(each)
        ]
        if self._fence is not None and unverified:  # these last: their broker may not respond
            for assigned in unverified:
                lost.pop(assigned.queue, None)  # it is tried again
            lost |= await self._fence.refresh(unverified)
            lost |= (await self._persist(unverified))[1]
        for assigned in filter(is_revoked, due):
            lost.pop(assigned.queue, None)
        if lost:
            reason = str(CommitError(lost))
            logger.warning("commit_failed", reason=reason)
            self._on_event(CommitFailed(queues=tuple(lost), reason=reason))

    def _is_due(self, assigned: QueueState) -> bool:
        if assigned.commit_due or not self._automatic:
            return assigned.commit_due
        if assigned.committable == UNKNOWN:
            return False
        return not self.is_stored(assigned)  # an idle queue costs nothing else

    def is_stored(self, assigned: QueueState) -> bool:
        """Whether a broker has confirmed the position."""
        remote = self._remote
        return remote is not None and remote.is_stored(assigned.queue, assigned.committable)

    async def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Remove *queues*, which other members have now, from memory; durable offsets stay."""
        for queue in queues:
            try:
                await self._store.remove(queue)
            except RocketMQError as error:
                logger.warning("offset_not_forgotten", queue=str(queue), reason=str(error))

    async def _persist(self, queues: Iterable[QueueState]) -> tuple[Collection[QueueState], Lost]:
        """Store the offsets of *queues*; return those updated, and the errors by queue.

        A queue can be in both.  The store keeps failed offsets for the next attempt.
        """
        updated: dict[QueueState, int] = {}
        lost: Lost = {}
        for assigned in queues:
            try:
                offset = await self._update(assigned)
            except RocketMQError as error:  # of this queue alone
                lost[assigned.queue] = error
            else:
                if offset != UNKNOWN:
                    updated[assigned] = offset
        if updated:
            lost |= await self._make_durable([each.queue for each in updated])
        remote = self._remote
        # The others were removed, by a refresh or a release, maybe before they were sent.
        kept = {q: at for q, at in updated.items() if remote is None or remote.has(q.queue)}
        for assigned, offset in kept.items():
            if assigned.queue not in lost:
                self._note_stored(assigned, offset)
        return kept, lost

    def _note_stored(self, assigned: QueueState, offset: int) -> None:
        if assigned.committable >= offset:  # else it was set back meanwhile
            assigned.note_committed()
        if assigned.committable == offset:
            remote = self._remote
            assigned.commit_due = remote is not None and remote.may_be_undone(assigned.queue)

    async def _update(self, assigned: QueueState) -> int:
        """Update the store; return the offset, `UNKNOWN` when there is nothing to commit."""
        # One update of a queue at a time, with the offset of that moment: during a slow update
        # the queue may have been moved, or released to another member.
        async with self._updating.hold(assigned.queue):
            offset = assigned.committable
            if offset == UNKNOWN or assigned.released or not self._may_commit(assigned.queue):
                return UNKNOWN
            await self._store.update(assigned.queue, offset)
            return offset

    async def _make_durable(
        self, queues: Collection[MessageQueue]
    ) -> Mapping[MessageQueue, BaseException]:
        try:
            await self._store.persist(queues)
        except CommitError as error:
            return error.lost
        except RocketMQError as error:  # an application's store may raise other errors
            return dict.fromkeys(queues, error)
        return {}
