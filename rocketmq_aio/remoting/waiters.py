"""Waiter queue: callers in line for a wake-up, first come first served."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable


class WaiterQueue:
    """Callers that wait in order of arrival; any of them may be cancelled at any time.

    A wake-up is never lost: when a caller is cancelled in the step in which it was woken, the
    owner gets the wake-up back through *on_cancelled*, to wake the next or to release a permit.

    :param on_cancelled: called when a waiting caller is cancelled, with its *size* and whether it
        had been woken
    """

    __slots__ = ("_on_cancelled", "_waiting", "woken")

    def __init__(self, on_cancelled: Callable[[int, bool], object] | None = None) -> None:
        self._on_cancelled = on_cancelled
        # With their sizes.  An OrderedDict: leaving is cheap at every place in the line.
        self._waiting: OrderedDict[asyncio.Future[bool], int] = OrderedDict()
        self.woken = 0  # callers that were woken and have not run yet

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, seconds: float | None = None, *, size: int = 0) -> bool:
        """Join the line; return True when woken, False after *seconds*.

        :param size: what the owner needs to know of the first in line, see `first_size`
        :raises Exception: the error given to `fail_all`
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting[waiter] = size
        timer = None if seconds is None else loop.call_later(seconds, _expire, waiter)
        cancelled = False
        try:
            return await waiter
        except (asyncio.CancelledError, GeneratorExit):
            cancelled = True
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(waiter, None)
            woken = _was_woken(waiter)
            if woken:
                self.woken -= 1
            if cancelled and self._on_cancelled is not None:
                self._on_cancelled(size, woken)

    @property
    def first_size(self) -> int | None:
        """The size of the caller that `wake_one` would wake; None if nobody waits."""
        waiter = self._first()
        return None if waiter is None else self._waiting[waiter]

    def wake_one(self) -> bool:
        """Wake the caller that has waited longest; return whether there was one."""
        waiter = self._first()
        if waiter is None:
            return False
        del self._waiting[waiter]
        self.woken += 1
        waiter.set_result(True)
        return True

    def wake_all(self) -> None:
        """Wake every caller in line."""
        while self.wake_one():
            pass

    def fail_all(self, make_error: Callable[[], Exception]) -> None:
        """Make every caller in line raise an error of its own, for raising changes an error."""
        while (waiter := self._first()) is not None:
            del self._waiting[waiter]
            waiter.set_exception(make_error())

    def _first(self) -> asyncio.Future[bool] | None:
        """Return the first in line; drop those that were cancelled or timed out in this step."""
        waiting = self._waiting
        while waiting:
            waiter = next(iter(waiting))
            if not waiter.done():
                return waiter
            del waiting[waiter]
        return None


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


def _was_woken(waiter: asyncio.Future[bool]) -> bool:
    """Whether `wake_one` reached *waiter*; also retrieves an error that nobody will see."""
    if not waiter.done() or waiter.cancelled():
        return False
    return waiter.exception() is None and waiter.result()
