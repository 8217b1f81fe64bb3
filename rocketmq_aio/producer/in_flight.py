"""The bound on unanswered sends, by count and by bytes; who comes first is served first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from copy import copy


class InFlightLimiter:
    """Room for sends.

    `try_take` and `give` are plain steps, so a send that finds room pays no await.  A
    body larger than the whole byte bound is let through when nothing else is in flight.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.count = 0
        self.bytes = 0
        self._max_count = max_count
        self._max_bytes = max_bytes
        # With their sizes. An OrderedDict, for anybody may leave the line at any time.
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        self._refusal: Exception | None = None
        self._empty: asyncio.Future[None] | None = None

    def try_take(self, size: int) -> bool:
        """Count a send of *size* bytes, unless it had to overtake somebody or does not fit."""
        count = self.count
        if (
            count >= self._max_count
            or self._waiting
            or (self.bytes + size > self._max_bytes and count)
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
        """Wait in line for room, and take it.

        :raises Exception: the error given to `refuse`
        """
        if self._refusal is not None:
            raise copy(self._refusal)  # a copy: raising an error changes it
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = size
        try:
            await turn
        except BaseException:
            if turn in self._waiting:
                del self._waiting[turn]
                self._wake()
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give(size)  # the room was given in the moment of the cancellation
            raise

    def refuse(self, error: Exception) -> None:
        """Let nobody in any more, neither those in line nor later ones: they get *error*."""
        self._refusal, self._max_count = error, 0
        waiting, self._waiting = self._waiting, OrderedDict()
        for turn in waiting:
            if not turn.done():
                turn.set_exception(copy(error))

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
        waiting = self._waiting
        while waiting and self._fits(waiting[next(iter(waiting))]):
            turn, size = waiting.popitem(last=False)
            if not turn.done():
                self.count += 1
                self.bytes += size
                turn.set_result(None)
