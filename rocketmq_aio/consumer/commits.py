"""Committing: what was settled goes to the offset store, regularly, on request and on leaving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import anyio

from rocketmq_aio.consumer.assigned import UNKNOWN, AssignedQueue
from rocketmq_aio.consumer.events import CommitFailed, ConsumerEvent
from rocketmq_aio.consumer.offsets import OffsetStore, RemoteOffsetStore, check_offset
from rocketmq_aio.errors import CommitError, ConfigError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.message import MessageQueue

logger = get_logger(__name__)

NOT_ASSIGNED = "this consumer does not have the queue (any more)"


class Commits:
    """Moves offsets from the assigned queues into the store.

    :param assigned: the queues held now, by reference
    """

    def __init__(
        self,
        store: OffsetStore,
        assigned: Mapping[MessageQueue, AssignedQueue],
        *,
        automatic: bool,
        on_event: Callable[[ConsumerEvent], None],
    ) -> None:
        self._store = store
        self._assigned = assigned
        self._automatic = automatic
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
        await self.store_offsets(
            {each.queue: each.settled for each in queues if each.settled != UNKNOWN}
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

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | Collection[MessageQueue] | None
    ) -> None:
        """Commit on request of the application, and wait until it is durable.

        :raises CommitError: some queues are not held any more, or their broker did not answer
        """
        wanted, lost = self._wanted(offsets)
        for queue, offset in wanted.items():
            self._assigned[queue].settle_at(offset)
        lost |= await self._persist(wanted)
        if lost:
            raise CommitError(lost)

    def _wanted(
        self, offsets: Mapping[MessageQueue, int] | Collection[MessageQueue] | None
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, BaseException]]:
        wanted: dict[MessageQueue, int] = {}
        lost: dict[MessageQueue, BaseException] = {}
        for queue, offset in _asked(offsets, self._assigned).items():
            if offset is not None:
                check_offset(offset)
            assigned = self._assigned.get(queue)
            if assigned is None:  # one that is being given up may still be committed
                lost[queue] = ConfigError("queue", queue, NOT_ASSIGNED)
                continue
            value = assigned.delivered if offset is None else offset
            if value != UNKNOWN:
                wanted[queue] = value
        return wanted, lost

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


def _asked(
    offsets: Mapping[MessageQueue, int] | Collection[MessageQueue] | None,
    assigned: Mapping[MessageQueue, AssignedQueue],
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
