"""Ready queues: the queues with cached messages, which polls take from in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.pull_loop.flow_control import Cache
from rocketmq_aio.consumer.pull_loop.puller import DENIED
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.remoting.waiters import WaiterQueue

TURN: Final = 32  # messages that ``async for`` takes from a queue before it goes to the next


class ReadyQueues:
    """Takes messages from the assigned queues in turn; only `wait` awaits.

    :param check: called before messages are taken: it may withhold queues
    """

    def __init__(self, cache: Cache, check: Callable[[], object] = lambda: None) -> None:
        self._cache = cache
        self._check = check
        self._queues: deque[PolledQueue] = deque()
        self._delivered: list[PolledQueue] = []  # whose messages the application processes
        self._failed: list[PolledQueue] = []
        self._not_started: PolledQueue | None = None  # the last start error not yet raised
        # A caller that was woken and cancelled at once passes the wake-up on.
        self._waiters = WaiterQueue(on_cancelled=self._pass_on)
        self.closed = False

    def add(self, assigned: PolledQueue) -> None:
        """Note that a queue has messages, or an error for the application."""
        if assigned.failure is not None and assigned not in self._failed:
            self._failed.append(assigned)
        if isinstance(assigned.start_error, DENIED) and not assigned.started.is_set():
            self._not_started = assigned
        if not assigned.is_ready and _has_messages(assigned):
            assigned.is_ready = True
            self._queues.append(assigned)
        self._waiters.wake_one()

    def mark_processed(self) -> None:
        """Mark what was delivered as processed: the application polls again."""
        for assigned in self._delivered:
            assigned.mark_processed()
        self._delivered.clear()

    def failure(self) -> RocketMQError | None:
        """Return the failure of a queue that waits for a seek by the application."""
        self._failed = [each for each in self._failed if each.failure and not each.dropped]
        return self._failed[0].failure if self._failed else None

    def start_error(self) -> RocketMQError | None:
        """Return why the start of a queue is unknown, once for each time that a broker refused."""
        assigned, self._not_started = self._not_started, None
        if assigned is None or assigned.started.is_set():
            return None
        return assigned.start_error

    def take(self, limit: int) -> list[MessageExt]:
        """Deliver up to *limit* messages; a queue's turn is all it has cached."""
        self._check()
        taken: list[MessageExt] = []
        queues = self._queues
        while queues and len(taken) < limit:
            assigned = queues.popleft()
            assigned.is_ready = False
            if not _has_messages(assigned):
                continue
            taken += assigned.take(limit - len(taken))
            assigned.last_consume = monotonic()
            self._delivered.append(assigned)
            if assigned.process_queue.count:
                assigned.is_ready = True
                queues.append(assigned)
        if taken:
            self._cache.wake_blocked()
        return taken

    def take_one(self) -> MessageExt | None:
        """Deliver one message; a queue's turn is `TURN` messages."""
        self._check()
        queues = self._queues
        while queues:
            assigned = queues[0]
            if not _has_messages(assigned):
                queues.popleft().is_ready = False
                continue
            message = assigned.take_one()
            self._delivered.append(assigned)
            assigned.taken_in_turn += 1
            if assigned.taken_in_turn >= TURN or not assigned.process_queue.count:
                self._end_turn(assigned)
            return message
        return None

    def _end_turn(self, assigned: PolledQueue) -> None:
        assigned.taken_in_turn = 0
        assigned.last_consume = monotonic()
        self._queues.rotate(-1)  # an empty one is dropped when its turn comes
        self._cache.wake_blocked()

    async def wait(self, seconds: float | None) -> None:
        """Return when there may be messages, after *seconds*, or when `close` was called."""
        if not self.closed and await self._waiters.wait(seconds):
            self._pass_on()  # this caller may take only a part

    def close(self) -> None:
        self.closed = True
        self._waiters.wake_all()

    def _pass_on(self, _size: int = 0, woken: bool = True) -> None:
        """Pass a wake-up on to the next caller, if there is anything left for it."""
        if woken and (self._queues or self._failed or self._not_started):
            self._waiters.wake_one()


def _has_messages(assigned: PolledQueue) -> bool:
    if assigned.paused or assigned.withheld is not None:
        return False
    return bool(assigned.process_queue.count)
