"""The bound on unanswered sends, by count and by bytes; who comes first is served first."""

from __future__ import annotations

import asyncio
from collections import deque


class InFlight:
    """Room for sends.

    `try_take` and `give` are plain steps, so a send that finds room pays no await.  A
    body larger than the whole byte bound is let through when nothing else is in flight.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.count = 0
        self.bytes = 0
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._empty: asyncio.Future[None] | None = None

    def try_take(self, size: int) -> bool:
        """Count a send of *size* bytes, unless it had to overtake somebody or does not fit."""
        count = self.count
        if count and (
            self._waiting or count >= self._max_count or self.bytes + size > self._max_bytes
        ):
            return False
        self.count = count + 1
        self.bytes += size
        return True

    def give(self, size: int, count: int = 1) -> None:
        """Sends of *size* bytes in all have ended, however."""
        self.count -= count
        self.bytes -= size
        if self._waiting:
            self._wake()
        if self._empty is not None and not self.count and not self._empty.done():
            self._empty.set_result(None)

    async def wait_and_take(self, size: int) -> None:
        """Wait in line for room, and take it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (turn, size)
        self._waiting.append(entry)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give(size)  # the room was given in the moment of the cancellation
            elif entry in self._waiting:
                self._waiting.remove(entry)
                self._wake()
            raise

    def refuse(self, error: Exception) -> None:
        """Let nobody who waits in line in any more."""
        waiting, self._waiting = self._waiting, deque()
        for turn, _ in waiting:
            if not turn.done():
                turn.set_exception(error)

    async def wait_until_empty(self) -> None:
        """Return when nothing is in flight."""
        if self.count:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    def _fits(self, size: int) -> bool:
        if not self.count:
            return True
        return self.count < self._max_count and self.bytes + size <= self._max_bytes

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, size = self._waiting.popleft()
            if not turn.done():
                self.count += 1
                self.bytes += size
                turn.set_result(None)
