"""Delay queue: items that become due on the clock of the broker."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

from rocketmq_aio.embedded.clock import Clock, Timer

T = TypeVar("T")
MAX_LONG: Final = 2**63 - 1
PRUNE_AT: Final = 1024  # items in the queue, at least, before outdated ones are removed


class DelayQueue(Generic[T]):
    """Passes each item to *deliver* when it is due; one timer serves all items.

    :param is_wanted: whether an item still has to be delivered; others are removed when the queue
        has doubled, which bounds its memory
    """

    def __init__(
        self, clock: Clock, deliver: Callable[[T], None], is_wanted: Callable[[T], bool]
    ) -> None:
        self._clock = clock
        self._deliver = deliver
        self._is_wanted = is_wanted
        self._heap: list[tuple[int, int, T]] = []
        self._numbers = count()
        self._prune_at = PRUNE_AT
        self._timer: Timer | None = None
        self._timer_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def items(self) -> list[tuple[int, T]]:
        """Return the items that are still wanted, with their times, in order."""
        return [(due, item) for due, _, item in sorted(self._heap) if self._is_wanted(item)]

    def add(self, due_ms: int, item: T) -> None:
        """Deliver *item* at *due_ms*, wall-clock time of the clock."""
        if len(self._heap) >= self._prune_at:
            self._heap = [entry for entry in self._heap if self._is_wanted(entry[2])]
            heapify(self._heap)
            self._prune_at = max(PRUNE_AT, 2 * len(self._heap))
        due_ms = min(due_ms, MAX_LONG)  # a snapshot can store it
        heappush(self._heap, (due_ms, next(self._numbers), item))
        self._arm()

    def deliver_due(self) -> None:
        """Deliver the items that are due now, without waiting for the timer."""
        now = self._clock.now_ms()
        while self._heap and self._heap[0][0] <= now:
            _, _, item = heappop(self._heap)
            if self._is_wanted(item):
                self._deliver(item)

    def _arm(self) -> None:
        due_ms = self._heap[0][0]
        if self._timer is not None and self._timer_ms <= due_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        seconds = max(0, due_ms - self._clock.now_ms()) / 1000
        self._timer, self._timer_ms = self._clock.call_later(seconds, self._run), due_ms

    def _run(self) -> None:
        self._timer = None
        try:
            self.deliver_due()
        finally:  # an item that fails does not stop the others
            if self._heap:
                self._arm()
