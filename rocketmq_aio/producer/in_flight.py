"""In-flight limiter: the bound on unanswered sends, by count and by bytes."""

from __future__ import annotations

import asyncio
from copy import copy

from rocketmq_aio.remoting.waiters import WaiterQueue


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
        self._waiters = WaiterQueue(self._on_cancelled)
        self._has_waiters = False  # a plain attribute, because every send looks at it
        self._error: Exception | None = None
        self._empty: asyncio.Future[None] | None = None

    def try_acquire(self, size: int) -> bool:
        """Count a send of *size* bytes, unless others wait or it does not fit."""
        count = self.count
        if (
            count >= self._max_count
            or self._has_waiters
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
        if self._has_waiters:
            self._wake()
        if self._empty is not None and not self.count and not self._empty.done():
            self._empty.set_result(None)

    async def wait_and_acquire(self, size: int) -> None:
        """Wait in line until a send of *size* bytes fits, and count it.

        :raises Exception: the error given to `close`
        """
        if self._error is not None:
            raise copy(self._error)  # a copy: raising changes an error
        self._has_waiters = True
        await self._waiters.wait(size=size)

    def close(self, error: Exception) -> None:
        """Make all callers, waiting and later ones, raise *error*."""
        self._error, self._max_count = error, 0
        self._waiters.fail_all(lambda: copy(error))

    async def wait_until_empty(self) -> None:
        if self.count:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    def _on_cancelled(self, size: int, woken: bool) -> None:
        if woken:
            self.release(size)
        else:
            self._wake()

    def _wake(self) -> None:
        waiters = self._waiters
        while (size := waiters.first_size) is not None:
            fits = self.count < self._max_count and self.bytes + size <= self._max_bytes
            if self.count and not fits:
                break
            self.count += 1
            self.bytes += size
            waiters.wake_one()
        self._has_waiters = len(waiters) > 0
