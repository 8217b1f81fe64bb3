"""The queues held now: taking them on, and giving them up in order (drain, commit, release)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import anyio

from rocketmq_aio.consumer.assigned import AssignedQueue, Cache
from rocketmq_aio.consumer.callbacks import Listener, call_listener
from rocketmq_aio.consumer.commits import Commits
from rocketmq_aio.consumer.events import ConsumerEvent, QueuesAssigned, QueuesRevoked
from rocketmq_aio.consumer.plan import plan
from rocketmq_aio.message import MessageQueue

DRAIN_SECONDS: Final = 1.0  # for the application to come back for more: its last batch is done
HAND_OVER_SECONDS: Final = 5.0  # for the last commit; then the next owner has to do without it


class Tenures:
    """Changes the table of assigned queues, one change at a time.

    :param begin: starts the pull loop of a queue
    """

    def __init__(
        self,
        table: dict[MessageQueue, AssignedQueue],
        cache: Cache,
        commits: Commits,
        *,
        begin: Callable[[AssignedQueue], None],
        on_event: Callable[[ConsumerEvent], None],
        on_assigned: Listener | None,
        on_revoked: Listener | None,
    ) -> None:
        self._table = table
        self._cache = cache
        self._commits = commits
        self._begin = begin
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
    ) -> None:
        """Make *wanted* true for *topics* (None: for all); new queues begin before others end.

        :param drain_seconds: how long to wait for the application to finish what it has in hands
        """
        async with self._changing:
            held = [q for q in self._table if topics is None or q.topic in topics]
            change = plan(held, frozenset(wanted()))
            try:
                if change.acquire:
                    await self._acquire(change.acquire)
            finally:  # also when cancelled in a listener
                if change.release:
                    await self._release(change.release, drain_seconds=drain_seconds)

    async def release_all(self) -> None:
        """Give up everything; for leaving."""
        async with self._changing:
            if self._table:
                await self._release(tuple(self._table), drain_seconds=0)

    async def _acquire(self, queues: tuple[MessageQueue, ...]) -> None:
        for queue in queues:
            assigned = self._table[queue] = AssignedQueue(queue, self._cache)
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

    async def _let_go(self, leaving: list[AssignedQueue], queues: tuple[MessageQueue, ...]) -> None:
        """Commit and release; also when cancelled, for a dropped queue that stayed in the table
        would never be read again."""
        try:
            with anyio.move_on_after(HAND_OVER_SECONDS, shield=True):
                await self._commits.commit_settled(leaving)
        finally:  # a shield keeps out scopes that are cancelled, but not a task that is
            for queue in queues:
                del self._table[queue]
            self._on_event(QueuesRevoked(queues=queues))
        with anyio.move_on_after(HAND_OVER_SECONDS, shield=True):
            await self._commits.forget(queues)

    async def _drain(self, leaving: list[AssignedQueue], seconds: float) -> None:
        """Wait until the application has come back for more after its last batch."""
        with anyio.move_on_after(seconds):
            # What is done already: the next owner may be asking for it now.
            await self._commits.commit_settled(leaving)
            for assigned in leaving:
                if assigned.in_hands:
                    assigned.all_settled = anyio.Event()
                    await assigned.all_settled.wait()
