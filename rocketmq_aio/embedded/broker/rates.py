"""Rates of delivered messages, in time windows as brokers report them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from rocketmq_aio.embedded.clock import Clock

SLOTS: Final = 6  # of a window: the oldest leaves it at once


class Rate:
    """Counts of messages and bytes in time windows, in bounded memory.

    :param windows: their lengths in seconds
    :ivar total: number of all messages
    """

    def __init__(self, clock: Clock, windows: Iterable[int]) -> None:
        self._clock = clock
        self._slots: dict[int, deque[list[int]]] = {
            seconds: deque(maxlen=SLOTS) for seconds in windows
        }
        self.total = 0

    def add(self, messages: int, size: int) -> None:
        """Count *messages* of *size* bytes."""
        self.total += messages
        for seconds, slots in self._slots.items():
            number = self._number(seconds)
            if not slots or slots[-1][0] != number:
                slots.append([number, 0, 0])
            slots[-1][1] += messages
            slots[-1][2] += size

    def count(self, seconds: int) -> tuple[int, int]:
        """Return messages and bytes of the window of *seconds*."""
        after = self._number(seconds) - SLOTS
        recent = [slot for slot in self._slots[seconds] if slot[0] > after]
        return sum(slot[1] for slot in recent), sum(slot[2] for slot in recent)

    def per_second(self, seconds: int) -> float:
        return self.count(seconds)[0] / seconds

    def _number(self, seconds: int) -> int:
        return self._clock.now_ms() * SLOTS // (seconds * 1000)
