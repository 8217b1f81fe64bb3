"""Flow control: pauses a pull loop while too many messages are cached."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rocketmq_aio.config.consumer import ConsumerConfig, LitePullConfig, PushConfig
from rocketmq_aio.consumer.pull_loop.queue_state import QueueState
from rocketmq_aio.model.values import MessageQueue

# A pull loop that waits for room is woken after several messages; with few large ones, or one far
# behind the others, a single one may make room, and so may a change of the assignment.
CHECK_SECONDS: Final = 1.0
# A queue that is paused or failed only has to notice a long outage.
LONG_CHECK_SECONDS: Final = 5.0


class FlowControl:
    """Limits per queue: messages, bytes of bodies, span of offsets."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.count = config.pull_threshold_per_queue
        self.size_bytes = config.pull_threshold_bytes_per_queue
        self.span = config.max_span

    def may_pull(self, assigned: QueueState) -> bool:
        """Whether the queue is neither paused nor failed, and has room for messages."""
        if assigned.paused or assigned.failure is not None:
            return False
        held = assigned.process_queue
        # A queue without cached messages may always be pulled: otherwise full caches of paused
        # queues would block it.
        return not held.count or (
            held.count <= self.count
            and held.size_bytes <= self.size_bytes
            and held.span <= self.span
            and self._has_shared_room(assigned)
        )

    async def pause(self, assigned: QueueState) -> None:
        """Wait some time for room, a resume or a seek; then `may_pull` has to be checked again."""
        loop = asyncio.get_running_loop()
        assigned.wake = loop.create_future()
        seconds = LONG_CHECK_SECONDS
        if not assigned.paused and assigned.failure is None:
            assigned.block()
            seconds = CHECK_SECONDS
        timer = loop.call_later(seconds, assigned.wake_puller)
        try:
            await assigned.wake
        finally:
            timer.cancel()
            assigned.wake = None
            assigned.unblock()

    def _has_shared_room(self, assigned: QueueState) -> bool:
        return True


@dataclass(slots=True, eq=False)
class Cache:
    """Size of the cached messages of all queues of a consumer."""

    count: int = 0
    size_bytes: int = 0
    blocked: set[QueueState] = field(default_factory=set)  # whose pull loops wait for room

    def wake_blocked(self) -> None:
        for assigned in self.blocked:
            assigned.wake_puller()


class CacheFlowControl(FlowControl):
    """Limits per queue and over all queues of a lite pull consumer."""

    def __init__(self, config: LitePullConfig, cache: Cache) -> None:
        super().__init__(config)
        self._total = config.pull_threshold_total
        self._total_bytes = config.pull_threshold_bytes_total
        self._cache = cache

    def _has_shared_room(self, assigned: QueueState) -> bool:
        cache = self._cache
        return cache.count <= self._total and cache.size_bytes <= self._total_bytes


class TopicFlowControl(FlowControl):
    """Limits per queue and per topic, divided by the number of held queues of the topic.

    :param held: the queues held now, by reference
    :param orderly: whether messages of a queue are processed one by one, so that a large span is
        not the sign of a stuck message
    """

    def __init__(self, config: PushConfig, held: Iterable[MessageQueue], *, orderly: bool) -> None:
        super().__init__(config)
        if orderly:
            self.span = 2**63
        self._held = held
        self._per_topic = config.pull_threshold_per_topic
        self._bytes_per_topic = config.pull_threshold_bytes_per_topic

    def _has_shared_room(self, assigned: QueueState) -> bool:
        count, size = self._per_topic, self._bytes_per_topic
        if count is None and size is None:
            return True
        topic = assigned.queue.topic
        queues = sum(each.topic == topic for each in self._held)
        held = assigned.process_queue
        return (count is None or held.count <= max(1, count // queues)) and (
            size is None or held.size_bytes <= max(1, size // queues)
        )
