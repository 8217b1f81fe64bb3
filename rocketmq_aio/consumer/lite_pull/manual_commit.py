"""Committing on request of the application, which says itself how far it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from rocketmq_aio.config.consumer import OffsetStore
from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.offsets.commit_fence import CommitFence, may_commit
from rocketmq_aio.consumer.offsets.commits import Commits
from rocketmq_aio.consumer.offsets.store import check_offset
from rocketmq_aio.consumer.pulling.queue_state import UNKNOWN, QueueState
from rocketmq_aio.errors import CommitError, ConfigError
from rocketmq_aio.model.values import MessageQueue

NOT_ASSIGNED: Final = "this consumer does not have the queue (any more)"


class RequestedCommits(Commits):
    """Commits what is settled and, when asked to, what was returned or any other offset."""

    def __init__(
        self,
        store: OffsetStore,
        assigned: Mapping[MessageQueue, PolledQueue],
        *,
        automatic: bool,
        floors: CommitFence | None = None,
        on_event: Callable[[ConsumerEvent], None],
    ) -> None:
        super().__init__(store, assigned, automatic=automatic, on_event=on_event)
        self._taken = assigned
        self._floors = floors

    async def commit_progress(self, queues: Iterable[QueueState]) -> None:
        """Commit what earlier polls returned, where that sets nobody back."""
        held = [each for each in queues if isinstance(each, PolledQueue)]
        await self._learn([each for each in held if self._automatic or each.commit_due])
        await super().commit_progress(held)

    def _is_allowed(self, assigned: QueueState) -> bool:
        return isinstance(assigned, PolledQueue) and may_commit(assigned, assigned.committable)

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | Collection[MessageQueue] | None
    ) -> None:
        """Commit on request of the application, and wait until it is durable.

        :raises CommitError: some queues are not held any more, or their broker did not answer
        """
        lost = await self._learn(
            [each for queue in _asked(offsets, self._taken) if (each := self._taken.get(queue))]
        )
        wanted, unknown = self._wanted(offsets)
        for assigned, offset in wanted.items():
            assigned.settle_at(offset)
        if isinstance(offsets, Mapping):
            lost = {}  # the application says where it stands
            for assigned in wanted:
                assigned.trust()
        tried, failed = await self._persist(wanted)
        lost |= unknown | failed
        for assigned in wanted:
            if assigned.released and assigned not in tried:
                lost[assigned.queue] = ConfigError("queue", assigned.queue, NOT_ASSIGNED)
        if lost:
            raise CommitError(lost)

    async def _learn(self, held: list[PolledQueue]) -> dict[MessageQueue, BaseException]:
        return {} if self._floors is None else await self._floors.learn(held)

    def _wanted(
        self, offsets: Mapping[MessageQueue, int] | Collection[MessageQueue] | None
    ) -> tuple[dict[PolledQueue, int], dict[MessageQueue, BaseException]]:
        wanted: dict[PolledQueue, int] = {}
        lost: dict[MessageQueue, BaseException] = {}
        for queue, offset in _asked(offsets, self._taken).items():
            if offset is not None:
                check_offset(offset)
            assigned = self._taken.get(queue)
            if assigned is None:  # one that is being given up may still be committed
                lost[queue] = ConfigError("queue", queue, NOT_ASSIGNED)
                continue
            value = assigned.delivered if offset is None else offset
            if value != UNKNOWN:
                wanted[assigned] = value
        return wanted, lost


def _asked(
    offsets: Mapping[MessageQueue, int] | Collection[MessageQueue] | None,
    assigned: Mapping[MessageQueue, PolledQueue],
) -> dict[MessageQueue, int | None]:
    """Return the queues to commit, each with its offset or None: what was returned of it."""
    if offsets is None:
        return dict.fromkeys(assigned)
    if not isinstance(offsets, Collection) or isinstance(offsets, str | bytes):
        raise ConfigError("offsets", offsets, "expected queues, or queues with their offsets")
    asked = dict(offsets) if isinstance(offsets, Mapping) else dict.fromkeys(offsets)
    for queue in asked:
        if not isinstance(queue, MessageQueue):
            raise ConfigError("queue", queue, "expected a MessageQueue")
    return asked
