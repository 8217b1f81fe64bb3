"""Clock of an embedded cluster: real time, plus what `Clock.advance` added."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from rocketmq_aio.embedded.loop_thread import LoopThread, from_any_thread
from rocketmq_aio.embedded.notifier import wake

COMPACT_AT: Final = 64  # cancelled timers that may stay in the heap, at least


class Timer:
    """A callback that is due at a time of the clock."""

    __slots__ = ("_clock", "callback", "due")

    def __init__(self, clock: Clock, due: float, callback: Callable[[], object]) -> None:
        self._clock = clock
        self.due = due
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Do not run the callback; without effect when it has run."""
        if self.callback is not None:
            self.callback = None
            self._clock._cancelled()


class Clock:
    """Time of brokers and name servers: delays, invisibility, locks, retention, checks.

    It runs like the real one. `advance` moves it, so a test need not wait for hours::

        cluster.clock.advance(3600)

    Timeouts of clients are not affected: they run on real time.
    """

    def __init__(self, thread: LoopThread | None = None) -> None:
        self.thread = thread or LoopThread()
        self._ahead = 0.0  # seconds ahead of real time
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._cancelled_timers = 0
        self._wakeup: asyncio.TimerHandle | None = None

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds, as in store timestamps."""
        return (time.time_ns() + int(self._ahead * 1e9)) // 1_000_000

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point; never goes back."""
        return time.monotonic() + self._ahead

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* in *seconds* of this clock, in the running event loop."""
        timer = Timer(self, self.monotonic() + seconds, callback)
        heappush(self._timers, (timer.due, next(self._numbers), timer))
        if self._timers[0][2] is timer:
            self.start()
        return timer

    async def wait(self, seconds: float, waiter: asyncio.Future[None] | None = None) -> None:
        """Wait *seconds* of this clock, or until *waiter* is done."""
        waiter = waiter or asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, partial(wake, waiter))
        try:
            await waiter
        finally:
            timer.cancel()

    @from_any_thread
    def advance(self, seconds: float) -> None:
        """Move the time forward; run the timers that become due, in order, each at its time.

        :raises ValueError: *seconds* is negative, or no number
        """
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise ValueError(f"seconds={seconds!r}: expected a number from 0 on")
        self._run_until(self.monotonic() + seconds)

    def start(self) -> None:
        """Run timers in the running event loop, also those from before `stop`.

        Without one, as before the cluster starts and after its end, they only run in `advance`.
        """
        self.stop()
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            if self._timers:
                seconds = max(0.0, self._timers[0][0] - self.monotonic())
                self._wakeup = loop.call_later(seconds, self._run_due)

    def stop(self) -> None:
        """Run no timers until `start`."""
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    def _run_due(self) -> None:
        self._run_until(self.monotonic())

    def _run_until(self, target: float) -> None:
        """Run the timers that are due at *target*, each at its time."""
        try:
            while self._timers and self._timers[0][0] <= target:
                due, _, timer = heappop(self._timers)
                self._ahead += max(0.0, due - self.monotonic())
                callback, timer.callback = timer.callback, None
                if callback is None:
                    self._cancelled_timers -= 1
                else:
                    callback()
            self._ahead += max(0.0, target - self.monotonic())
        finally:  # a callback that raises does not stop the clock
            self.start()

    def _cancelled(self) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > max(COMPACT_AT, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapify(self._timers)
            self._cancelled_timers = 0
