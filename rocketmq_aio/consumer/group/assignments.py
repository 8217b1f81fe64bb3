"""The queues held now: taking them on, and giving them up in order (drain, commit, release)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, Generic, TypeVar

import anyio

from rocketmq_aio.consumer.common.events import ConsumerEvent, QueuesAssigned, QueuesRevoked
from rocketmq_aio.consumer.common.listeners import AssignmentListener, call_listener
from rocketmq_aio.consumer.offsets.commits import Commits
from rocketmq_aio.consumer.pulling.queue_state import QueueState
from rocketmq_aio.consumer.rebalance.plan import plan
from rocketmq_aio.model.values import MessageQueue

DRAIN_SECONDS: Final = 1.0  # for the application to come back for more: its last batch is done
LAST_COMMIT_SECONDS: Final = 5.0  # for the last commit; then the next owner has to do without it


Q = TypeVar("Q", bound=QueueState)


class Assignments(Generic[Q]):
    """Changes the table of assigned queues, one change at a time.

    :param make: makes the state of a queue that is taken on
    :param begin: starts the pull loop of a queue
    :param admit: asked which of the queues may be taken on now; None is all
    :param on_released: called with queues that were given up, after their last commit
    """

    def __init__(
        self,
        table: dict[MessageQueue, Q],
        commits: Commits,
        *,
        make: Callable[[MessageQueue], Q],
        begin: Callable[[Q], None],
        admit: Callable[[Collection[MessageQueue]], Awaitable[Collection[MessageQueue]]]
        | None = None,
        on_released: Callable[[list[Q]], Awaitable[None]] | None = None,
        on_event: Callable[[ConsumerEvent], None],
        on_assigned: AssignmentListener | None,
        on_revoked: AssignmentListener | None,
    ) -> None:
        self._table = table
        self._commits = commits
        self._make = make
        self._begin = begin
        self._admit = admit
        self._on_released = on_released
        self._on_event = on_event
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._changing = anyio.Lock()

    async def change(
        self,
        topics: Collection[str] | None,
        wanted: Callable[[], Iterable[MessageQueue]],
        *,
        drain_seconds: float = 0.0,
    ) -> bool:
        """Make *wanted* true for *topics* (None: for all); new queues begin before others end.

        :param drain_seconds: how long to wait for the application to finish what it has in hands
        :return: False when some wanted queue may not be taken on yet
        """
        async with self._changing:
            held = [q for q in self._table if topics is None or q.topic in topics]
            change = plan(held, frozenset(wanted()))
            admitted = change.acquire
            try:
                if change.acquire:
                    admitted = await self._admitted(change.acquire)
                    await self._acquire(admitted)
            finally:  # also when cancelled in a listener
                if change.release:
                    await self._release(change.release, drain_seconds=drain_seconds)
        return admitted == change.acquire

    async def revoke(self, assigned: Collection[Q], *, drain_seconds: float = 0.0) -> None:
        """Revoke those of *assigned* that still stand; a later assignment of the queue stays."""
        async with self._changing:
            held = tuple(e.queue for e in assigned if self._table.get(e.queue) is e)
            if held:
                await self._release(held, drain_seconds=drain_seconds)

    async def exclusively(self, act: Callable[[], Awaitable[None]]) -> None:
        """Call *act* while no queue is being assigned or revoked."""
        async with self._changing:
            await act()

    async def revoke_all(self, *, drain_seconds: float = 0.0) -> None:
        """Give up everything; for leaving."""
        async with self._changing:
            if self._table:
                await self._release(tuple(self._table), drain_seconds=drain_seconds)

    async def _admitted(self, queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        if self._admit is None:
            return queues
        admitted = await self._admit(queues)
        return tuple(each for each in queues if each in admitted)

    async def _acquire(self, queues: tuple[MessageQueue, ...]) -> None:
        if not queues:
            return
        for queue in queues:
            assigned = self._table[queue] = self._make(queue)
            self._begin(assigned)
        self._on_event(QueuesAssigned(queues=queues))
        await call_listener(self._on_assigned, queues)

    async def _release(self, queues: tuple[MessageQueue, ...], *, drain_seconds: float) -> None:
        leaving = [self._table[queue] for queue in queues]
        for assigned in leaving:
            assigned.drop()
        try:
            if drain_seconds:
                await self._drain(leaving, drain_seconds)
            # While still in the table, so that a listener may commit what it knows to be done.
            await call_listener(self._on_revoked, queues)
        finally:
            await self._let_go(leaving, queues)

    async def _let_go(self, leaving: list[Q], queues: tuple[MessageQueue, ...]) -> None:
        """Commit and release; also when cancelled, for a dropped queue that stayed in the table
        would never be read again."""
        try:
            with anyio.move_on_after(LAST_COMMIT_SECONDS, shield=True):
                await self._commits.commit_progress(leaving)
        finally:  # a shield keeps out scopes that are cancelled, but not a task that is
            for assigned in leaving:
                assigned.release()
                del self._table[assigned.queue]
            self._on_event(QueuesRevoked(queues=queues))
            await self._clean_up(leaving, queues)

    async def _clean_up(self, released: list[Q], queues: tuple[MessageQueue, ...]) -> None:
        try:
            with anyio.move_on_after(LAST_COMMIT_SECONDS, shield=True):
                await self._commits.forget(queues)
        finally:
            if self._on_released is not None:
                with anyio.move_on_after(LAST_COMMIT_SECONDS, shield=True):
                    await self._on_released(released)

    async def _drain(self, leaving: list[Q], seconds: float) -> None:
        """Wait until the application has come back for more after its last batch."""
        with anyio.move_on_after(seconds):
            # What is done already: the next owner may be asking for it now.
            await self._commits.commit_progress(leaving)
            for assigned in leaving:
                await assigned.wait_until_drained()
