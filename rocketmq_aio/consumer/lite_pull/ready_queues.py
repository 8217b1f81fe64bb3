"""The line of queues that have messages, and the callers who wait for some."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Final

from rocketmq_aio.consumer.lite_pull.polled_queue import Cache, PolledQueue
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import MessageExt

TURN: Final = 32  # messages of one queue in a row before the next queue has its turn


class ReadyQueues:
    """Takes messages from the assigned queues in turn; all of it but `wait` is plain steps."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._queues: deque[PolledQueue] = deque()
        self._handed: list[PolledQueue] = []  # whose messages the application works on
        self._failed: list[PolledQueue] = []
        self._refused: PolledQueue | None = None  # by a broker, since the application was told
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.ended = False

    def add(self, assigned: PolledQueue) -> None:
        """A queue has messages, or a failure to tell."""
        if assigned.failure is not None and assigned not in self._failed:
            self._failed.append(assigned)
        if assigned.trouble is not None and not assigned.started.is_set():
            self._refused = assigned
        if assigned.process_queue.count and not assigned.in_line and not assigned.paused:
            assigned.in_line = True
            self._queues.append(assigned)
        self._wake_one()

    def settle_handed(self) -> None:
        """What was handed out before counts as done: the application came back for more."""
        for assigned in self._handed:
            assigned.settle()
        self._handed.clear()

    def failure(self) -> RocketMQError | None:
        """Return the failure of a queue that waits for a decision of the application."""
        self._failed = [each for each in self._failed if each.failure and not each.dropped]
        return self._failed[0].failure if self._failed else None

    def refusal(self) -> RocketMQError | None:
        """Return, once for each time that it is refused, why no broker says where to begin."""
        assigned, self._refused = self._refused, None
        if assigned is None or assigned.started.is_set():
            return None
        return assigned.trouble

    def take(self, limit: int) -> list[MessageExt]:
        """Hand out up to *limit* messages, whole pulls first, the queues in turn."""
        taken: list[MessageExt] = []
        queues = self._queues
        while queues and len(taken) < limit:
            assigned = queues.popleft()
            assigned.in_line = False
            if not _has_messages(assigned):
                continue
            taken += assigned.take(limit - len(taken))
            assigned.last_consume = monotonic()
            self._handed.append(assigned)
            if assigned.process_queue.count:
                assigned.in_line = True
                queues.append(assigned)
        if taken and self._cache.blocked:
            self._cache.wake_blocked()
        return taken

    def take_one(self) -> MessageExt | None:
        """Hand out one message; a queue keeps its turn for a while."""
        queues = self._queues
        while queues:
            assigned = queues[0]
            if not _has_messages(assigned):
                queues.popleft().in_line = False
                continue
            message = assigned.take_one()
            self._handed.append(assigned)
            assigned.turn += 1
            if assigned.turn >= TURN or not assigned.process_queue.count:
                self._end_turn(assigned)
            return message
        return None

    def _end_turn(self, assigned: PolledQueue) -> None:
        assigned.turn = 0
        assigned.last_consume = monotonic()
        if assigned.process_queue.count:
            self._queues.rotate(-1)
        else:
            self._queues.popleft()
            assigned.in_line = False
        if self._cache.blocked:
            self._cache.wake_blocked()

    async def wait(self, seconds: float | None) -> None:
        """Return when there may be messages, after *seconds*, or when the line has ended."""
        if self.ended:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        timer = None if seconds is None else loop.call_later(seconds, _expire, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            # The next caller looks too: this one may take only a part, or may have been
            # cancelled in the very moment that it was woken.
            elif self._queues or self._failed or self._refused:
                self._wake_one()

    def end(self) -> None:
        """Wake everybody: nothing will come any more."""
        self.ended = True
        for waiter in self._waiting:
            _expire(waiter)

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


def _has_messages(assigned: PolledQueue) -> bool:
    return bool(assigned.process_queue.count) and not assigned.paused and not assigned.dropped


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
