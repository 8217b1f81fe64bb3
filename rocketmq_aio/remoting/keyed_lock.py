"""Keyed lock: callers with one key run one after another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from rocketmq_aio.remoting.waiters import WaiterQueue

K = TypeVar("K", bound=Hashable)


class KeyedLock(Generic[K]):
    """One holder per key, first come first served; a key that is not held takes no memory."""

    def __init__(self) -> None:
        self._held: dict[K, WaiterQueue | None] = {}

    def try_acquire(self, key: K) -> bool:
        if key in self._held:
            return False
        self._held[key] = None
        return True

    def release(self, key: K) -> None:
        """Release *key*, or pass it to the caller that has waited longest."""
        waiters = self._held[key]
        if waiters is None or not waiters.wake_one():
            del self._held[key]

    async def wait_and_acquire(self, key: K) -> None:
        """Wait in line for *key*, which is held."""

        def on_cancelled(_size: int, woken: bool) -> None:
            if woken:
                self.release(key)

        waiters = self._held[key]
        if waiters is None:
            waiters = self._held[key] = WaiterQueue(on_cancelled)
        await waiters.wait()

    @asynccontextmanager
    async def hold(self, key: K) -> AsyncIterator[None]:
        """Hold *key* in an ``async with`` block, waiting in line for it."""
        if not self.try_acquire(key):
            await self.wait_and_acquire(key)
        try:
            yield
        finally:
            self.release(key)

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)
