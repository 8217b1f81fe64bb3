"""In-flight limiter: the bound on unanswered sends, by count and by bytes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from copy import copy


class InFlightLimiter:
    """Counts sends and their bytes; callers over the bound wait, first come first served.

    `try_acquire` and `release` are plain calls: a send below the bound pays no await.  A body
    larger than the whole byte bound is accepted when nothing else is in flight.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.count = 0
        self.bytes = 0
        self._max_count = max_count
        self._max_bytes = max_bytes
        # With their sizes.  An OrderedDict, because any caller may be cancelled at any time.
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        self._error: Exception | None = None
        self._empty: asyncio.Future[None] | None = None

    def try_acquire(self, size: int) -> bool:
        """Count a send of *size* bytes, unless others wait or it does not fit."""
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

    def release(self, size: int, count: int = 1) -> None:
        """Count *count* sends of *size* bytes in all as ended."""
        self.count -= count
        self.bytes -= size
        if self._waiting:
            self._wake()
        if self._empty is not None and not self.count and not self._empty.done():
            self._empty.set_result(None)

    async def wait_and_acquire(self, size: int) -> None:
        """Wait in line until a send of *size* bytes fits, and count it.

        :raises Exception: the error given to `close`
        """
        if self._error is not None:
            raise copy(self._error)  # a copy: raising changes an error
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = size
        try:
            await waiter
        except BaseException:
            if waiter in self._waiting:
                del self._waiting[waiter]
                self._wake()
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(size)  # it was counted in the step of the cancellation
            raise

    def close(self, error: Exception) -> None:
        """Make all callers, waiting and later ones, raise *error*."""
        self._error, self._max_count = error, 0
        waiting, self._waiting = self._waiting, OrderedDict()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(copy(error))

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
            waiter, size = waiting.popitem(last=False)
            if not waiter.done():
                self.count += 1
                self.bytes += size
                waiter.set_result(None)
