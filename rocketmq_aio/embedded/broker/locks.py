"""Queue locks of the broker."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import LockBatchRequest, LockBatchResponse
from rocketmq_aio.protocol.codes import RequestCode

KEPT_SECONDS: Final = 60.0


class LockProcessor:
    """Owners of queue locks by group; locks expire after `kept_seconds` without renewal.

    Tests can change `owners`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.kept_seconds = KEPT_SECONDS
        self.owners: defaultdict[str, dict[MessageQueue, tuple[str, float]]] = defaultdict(dict)
        self._cleared_at = clock.monotonic()

    @reads(LockBatchRequest, RequestCode.LOCK_BATCH_MQ)
    def lock(self, request: LockBatchRequest) -> object:
        self._drop_expired()
        owners = self.owners[request.consumer_group]
        granted = []
        for each in request.mq_set:  # also grants queues that do not exist
            if self.owner(request.consumer_group, each.queue()) in (None, request.client_id):
                owners[each.queue()] = (request.client_id, self._clock.monotonic())
                granted.append(each)
        return LockBatchResponse(locked=granted)

    @reads(LockBatchRequest, RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, request: LockBatchRequest) -> None:
        for each in request.mq_set:
            if self.owner(request.consumer_group, each.queue()) == request.client_id:
                del self.owners[request.consumer_group][each.queue()]

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        client_id, locked_at = self.owners.get(group, {}).get(queue, (None, 0.0))
        return client_id if self._clock.monotonic() - locked_at < self.kept_seconds else None

    def any_in(self, group: str) -> bool:
        return any(self.owner(group, queue) for queue in self.owners.get(group, ()))

    def _drop_expired(self) -> None:
        """Drop expired locks of all groups, at most once in `kept_seconds`."""
        now = self._clock.monotonic()
        if now - self._cleared_at < self.kept_seconds:
            return
        self._cleared_at = now
        for group, held in list(self.owners.items()):
            for queue in [each for each in held if self.owner(group, each) is None]:
                del held[queue]
            if not held:
                del self.owners[group]
