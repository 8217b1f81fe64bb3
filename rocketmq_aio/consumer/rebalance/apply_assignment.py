"""Applying an assignment: assigns queues and revokes them (drain, commit, release)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from typing import Any, Final, Generic, Protocol, TypeVar

import anyio

from rocketmq_aio.consumer.common.events import ConsumerEvent, QueuesAssigned, QueuesRevoked
from rocketmq_aio.consumer.common.listeners import (
    NO_LISTENERS,
    AssignmentListener,
    AssignmentListeners,
    call_listener,
)
from rocketmq_aio.consumer.offsets.commits import Commits
from rocketmq_aio.consumer.pull_loop.queue_state import QueueState
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import in_isolated_call

DRAIN_SECONDS: Final = 1.0  # for the application to finish its last batch
LAST_COMMIT_SECONDS: Final = 5.0  # then the next owner starts without this commit

Q = TypeVar("Q", bound=QueueState)

_listening: ContextVar[Assignments[Any] | None] = ContextVar("rocketmq_aio_listening", default=None)


class AssignmentOwner(Protocol[Q]):
    """The engine whose queues are assigned and revoked; see `GroupEngine`."""

    table: dict[MessageQueue, Q]

    @property
    def publish(self) -> Callable[[ConsumerEvent], None]: ...
    def make_queue(self, queue: MessageQueue) -> Q: ...
    def begin_pulling(self, assigned: Q) -> None: ...
    def keep_progress(self, assigned: Q) -> None: ...
    async def admit(self, queues: tuple[MessageQueue, ...]) -> Collection[MessageQueue]: ...
    async def on_released(self, released: list[Q]) -> None: ...


class Assignments(Generic[Q]):
    """Changes the table of assigned queues, one change at a time.

    :ivar changing: held while queues are assigned or revoked
    """

    def __init__(
        self,
        owner: AssignmentOwner[Q],
        commits: Commits[Q],
        listeners: AssignmentListeners = NO_LISTENERS,
    ) -> None:
        self._owner = owner
        self._table = owner.table
        self._commits = commits
        self._listeners = listeners
        self.changing = anyio.Lock()
        self._in_listener = False

    def is_changing_here(self) -> bool:
        """Whether a listener called this code: a change would wait for itself."""
        return self._in_listener and _listening.get() is self

    def is_in_listener(self) -> bool:
        """Whether the current task is that of a listener, whose end every change waits for."""
        return self.is_changing_here() and in_isolated_call()

    async def change(
        self,
        topics: Collection[str] | None,
        wanted: Callable[[], Iterable[MessageQueue]],
        *,
        drain_seconds: float = 0.0,
    ) -> bool:
        """Make *wanted* the queues of *topics* (None: of all topics).

        New queues are assigned before others are revoked.

        :param drain_seconds: how long the application may take to finish messages in flight
        :return: False when some wanted queue may not be assigned yet
        """
        async with self.changing:
            after = frozenset(wanted())
            before = {q for q in self._table if topics is None or q.topic in topics}
            added, removed = tuple(sorted(after - before)), tuple(sorted(before - after))
            admitted = added
            try:
                if added:
                    allowed = frozenset(await self._owner.admit(added))  # there can be 65,536
                    admitted = tuple(each for each in added if each in allowed)
                    await self._assign(admitted)
            finally:  # also when cancelled in a listener
                if removed:
                    for queue in removed:
                        self._table[queue].invalidate_commits()  # the next owner may have started
                    await self._revoke(removed, drain_seconds=drain_seconds)
        return admitted == added

    async def revoke(self, assigned: Collection[Q], *, drain_seconds: float = 0.0) -> None:
        """Revoke those of *assigned* that are current; a later assignment of the queue stays."""
        async with self.changing:
            held = tuple(e.queue for e in assigned if self._table.get(e.queue) is e)
            if held:
                await self._revoke(held, drain_seconds=drain_seconds)

    async def revoke_all(self, *, drain_seconds: float = 0.0) -> None:
        """Revoke every queue, to leave the group."""
        async with self.changing:
            if self._table:
                await self._revoke(tuple(self._table), drain_seconds=drain_seconds)

    async def _assign(self, queues: tuple[MessageQueue, ...]) -> None:
        if not queues:
            return
        for queue in queues:
            assigned = self._table[queue] = self._owner.make_queue(queue)
            self._owner.begin_pulling(assigned)
        self._owner.publish(QueuesAssigned(queues=queues))
        await self._call(self._listeners.on_assigned, queues)

    async def _revoke(self, queues: tuple[MessageQueue, ...], *, drain_seconds: float) -> None:
        leaving = [self._table[queue] for queue in queues]
        for assigned in leaving:
            assigned.drop()
        try:
            if drain_seconds:
                await self._drain(leaving, drain_seconds)
            # While still in the table, so that the listener may commit.
            await self._call(self._listeners.on_revoked, queues)
        finally:
            await self._release(leaving, queues)

    async def _call(
        self, listener: AssignmentListener | None, queues: tuple[MessageQueue, ...]
    ) -> None:
        before = _listening.set(self)
        self._in_listener = True
        try:
            await call_listener(listener, queues)
        finally:
            self._in_listener = False
            _listening.reset(before)

    async def _release(self, leaving: list[Q], queues: tuple[MessageQueue, ...]) -> None:
        """Commit and release, even when cancelled.

        A dropped queue left in the table would never be pulled again.
        """
        try:
            with anyio.move_on_after(LAST_COMMIT_SECONDS, shield=True):
                await self._commits.commit_progress(leaving)
        finally:  # a shield keeps out cancelled scopes, but not the cancellation of the task
            for assigned in leaving:
                self._owner.keep_progress(assigned)
                assigned.release()
                del self._table[assigned.queue]
            self._owner.publish(QueuesRevoked(queues=queues))
            await self._clean_up(leaving, queues)

    async def _clean_up(self, released: list[Q], queues: tuple[MessageQueue, ...]) -> None:
        try:
            with anyio.move_on_after(LAST_COMMIT_SECONDS, shield=True):
                await self._commits.forget(queues)
        finally:
            with anyio.move_on_after(LAST_COMMIT_SECONDS, shield=True):
                await self._owner.on_released(released)

    async def _drain(self, leaving: list[Q], seconds: float) -> None:
        """Wait until the application has finished its messages."""
        with anyio.move_on_after(seconds):
            # The progress so far: the next owner may be reading it now.
            await self._commits.commit_progress(leaving)
            for assigned in leaving:
                await assigned.wait_until_drained()
        for assigned in leaving:
            assigned.invalidate_commits()  # meanwhile the next owner may have committed more
