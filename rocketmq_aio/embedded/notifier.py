"""Condition: waits for a predicate with a timeout, without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

WAIT_SECONDS: Final = 15.0  # ample for a busy machine; only failing tests wait that long


def wake(waiter: asyncio.Future[None]) -> None:
    """Finish *waiter*, unless it is done or cancelled."""
    if not waiter.done():
        waiter.set_result(None)


class Notifier:
    """Wakes waiters by `notify`; each waits for its own predicate."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        for waiter in self._waiters:
            wake(waiter)

    async def until(
        self, predicate: Callable[[], bool], what: str = "a change", seconds: float = WAIT_SECONDS
    ) -> None:
        """Wait until *predicate* returns True.

        :raises TimeoutError: it did not within *seconds*
        """
        try:
            async with asyncio.timeout(seconds):
                while not predicate():
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.add(waiter)
                    try:
                        await waiter
                    finally:
                        self._waiters.discard(waiter)
        except TimeoutError:
            raise TimeoutError(f"waited {seconds:g} s for {what}") from None
