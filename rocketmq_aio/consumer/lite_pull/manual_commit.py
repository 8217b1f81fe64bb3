"""Manual commits: offsets that the application commits itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from rocketmq_aio.config.validation import checked_queue
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.offsets.commits import Commits, Lost
from rocketmq_aio.consumer.offsets.remote_store import check_offset
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN, UNVERIFIED
from rocketmq_aio.errors import CommitError, ConfigError, RocketMQError
from rocketmq_aio.model.values import MessageQueue

NOT_ASSIGNED: Final = "this consumer does not have the queue (any more)"
UNVERIFIED_COMMIT: Final = "other members may have had the queue meanwhile: commit again"

Offsets = Mapping[MessageQueue, int] | Collection[MessageQueue] | None


class ManualCommits(Commits[PolledQueue]):
    """`Commits`, and commits of delivered messages or any other offset by the application."""

    async def commit(self, offsets: Offsets) -> None:
        """Commit for the application, and return when it is durable.

        :raises CommitError: queues are not assigned any more, or their broker did not respond
        """
        lost: Lost = {}
        if self._fence is not None:
            held = map(self._table.get, _by_queue(offsets, self._table))
            lost = await self._fence.refresh(each for each in held if each is not None)
        wanted, unknown = self._wanted(offsets)
        for assigned, offset in wanted.items():
            assigned.mark_processed_at(offset)
        if isinstance(offsets, Mapping):
            lost = {}  # the application sets the position
            for assigned in wanted:
                assigned.trust()
        tried, failed = await self._persist(wanted)
        lost |= unknown | failed
        skipped = {each: offset for each, offset in wanted.items() if each not in tried}
        _note_skipped(skipped, lost)
        if lost:
            raise CommitError(lost)

    def _wanted(self, offsets: Offsets) -> tuple[dict[PolledQueue, int], Lost]:
        wanted: dict[PolledQueue, int] = {}
        lost: Lost = {}
        for queue, offset in _by_queue(offsets, self._table).items():
            if offset is not None:
                check_offset(offset)
            assigned = self._table.get(queue)
            if assigned is None:  # a queue that is being revoked may still be committed
                lost[queue] = ConfigError("queue", queue, NOT_ASSIGNED)
                continue
            value = assigned.delivered if offset is None else offset
            if value != UNKNOWN:
                wanted[assigned] = value
        return wanted, lost


def _note_skipped(skipped: Mapping[PolledQueue, int], lost: Lost) -> None:
    """Add the queues whose progress is not stored; of others as much was committed already."""
    for assigned, offset in skipped.items():
        if assigned.released:
            lost[assigned.queue] = ConfigError("queue", assigned.queue, NOT_ASSIGNED)
        elif assigned.min_commit_offset == UNVERIFIED or assigned.min_commit_offset < offset:
            # Other members were possible again after the read, or before the offset was sent.
            lost.setdefault(assigned.queue, RocketMQError(f"{assigned.queue}: {UNVERIFIED_COMMIT}"))


def _by_queue(
    offsets: Offsets, table: Mapping[MessageQueue, PolledQueue]
) -> dict[MessageQueue, int | None]:
    """Return the queues to commit with their offsets; None stands for what was delivered."""
    if offsets is None:
        return dict.fromkeys(table)
    if not isinstance(offsets, Collection) or isinstance(offsets, str | bytes):
        raise ConfigError("offsets", offsets, "expected queues, or queues with their offsets")
    for queue in offsets:  # before they are keys: a list is not hashable
        checked_queue(queue)
    return dict(offsets) if isinstance(offsets, Mapping) else dict.fromkeys(offsets)
