"""Keyed lock: sends with one ordering key run one after another."""

from __future__ import annotations

import asyncio
from collections import deque

OrderKey = tuple[str, str | None]  # topic and sharding key


class KeyedLock:
    """One holder per key, first come first served; a key that is not held takes no memory."""

    def __init__(self) -> None:
        self._held: dict[OrderKey, deque[asyncio.Future[None]] | None] = {}  # and their waiters

    def try_acquire(self, key: OrderKey) -> bool:
        """Acquire *key* if nobody holds it."""
        if key in self._held:
            return False
        self._held[key] = None
        return True

    def release(self, key: OrderKey) -> None:
        """Release *key*, or pass it to the caller that has waited longest."""
        waiters = self._held.pop(key)
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                self._held[key] = waiters
                waiter.set_result(None)
                return

    async def wait_and_acquire(self, key: OrderKey) -> None:
        """Wait in line for *key*, which is held."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._held[key]
        if waiters is None:
            waiters = self._held[key] = deque()
        waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.release(key)  # it was passed on in the step of the cancellation
            raise

    def __contains__(self, key: OrderKey) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)
