"""Stopwatch that excludes the time in which this process was not scheduled."""

from __future__ import annotations

import asyncio
from time import monotonic, process_time
from types import TracebackType
from typing import Final, Self

TICK: Final = 0.02


class Stopwatch:
    """Measures the seconds of a block, without delays by a busy machine.

    A process that waits for a processor wakes late without having used CPU time.  This delay is
    excluded, so that tests can bound the rest.

    :ivar delayed: the excluded seconds
    :ivar longest: the longest excluded delay
    """

    def __init__(self) -> None:
        self.delayed = self.longest = 0.0
        self._began = self._seen = monotonic()
        self._worked = process_time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        self._look()
        return monotonic() - self._began - self.delayed

    def __enter__(self) -> Self:
        self._began = self._seen = monotonic()
        self._worked = process_time()
        self._tick()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._look()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._look()
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _look(self) -> None:
        now, worked = monotonic(), process_time()
        late = now - self._seen - TICK - (worked - self._worked)
        self.delayed += max(0.0, late)
        self.longest = max(self.longest, late)
        self._seen, self._worked = now, worked
