"""Detects event-loop stalls after which the queues may have been reassigned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

import anyio

STALL_SECONDS: Final = 30.0  # as for locks; brokers drop a silent member after two minutes
LOOK_SECONDS: Final = 1.0


class StallDetector:
    """Calls *on_stall* with the seconds when the event loop has not run for *limit_seconds*.

    :param clock: seconds; runs on during a stall
    """

    def __init__(
        self,
        on_stall: Callable[[float], object],
        *,
        clock: Callable[[], float] = monotonic,
        limit_seconds: float = STALL_SECONDS,
    ) -> None:
        self._on_stall = on_stall
        self._clock = clock
        self._limit = limit_seconds
        self._seen = clock()
        self._timer: asyncio.TimerHandle | None = None

    async def watch(self) -> None:
        """Check until cancelled; by a timer, which runs before any task that was waiting."""
        self._seen = self._clock()
        self._tick()
        try:
            await anyio.sleep_forever()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._tick)
        self.look()

    def look(self) -> None:
        """Report a stall if the last look was too long ago."""
        now = self._clock()
        seconds, self._seen = now - self._seen, now
        if seconds > self._limit:
            self._on_stall(seconds)
