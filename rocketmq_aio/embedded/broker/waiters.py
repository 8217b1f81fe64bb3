"""Waiters by key: held requests wait for the topics and queues that they read."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable

from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.notifier import wake


class Waiters:
    """Futures by key; waking one key does not touch the waiters of others.

    :ivar waiting: the futures; empty when nobody waits
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.waiting: dict[Hashable, set[asyncio.Future[None]]] = {}

    def wake(self, *keys: Hashable) -> None:
        """Wake all waiters of *keys*."""
        for key in keys:
            for waiter in self.waiting.get(key, ()):
                wake(waiter)

    async def wait(self, keys: Iterable[Hashable], seconds: float) -> None:
        """Wait until one of *keys* is woken, at most *seconds*."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        keys = tuple(keys)
        for key in keys:
            self.waiting.setdefault(key, set()).add(waiter)
        try:
            await self._clock.wait(seconds, waiter)
        finally:
            for key in keys:
                waiting = self.waiting[key]
                waiting.discard(waiter)
                if not waiting:
                    del self.waiting[key]
