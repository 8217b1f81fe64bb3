"""Keyed lock: sends with one ordering key run one after another."""

from __future__ import annotations

from rocketmq_aio.remoting.waiters import WaiterQueue

OrderKey = tuple[str, str | None]  # topic and sharding key


class KeyedLock:
    """One holder per key, first come first served; a key that is not held takes no memory."""

    def __init__(self) -> None:
        self._held: dict[OrderKey, WaiterQueue | None] = {}

    def try_acquire(self, key: OrderKey) -> bool:
        if key in self._held:
            return False
        self._held[key] = None
        return True

    def release(self, key: OrderKey) -> None:
        """Release *key*, or pass it to the caller that has waited longest."""
        waiters = self._held[key]
        if waiters is None or not waiters.wake_one():
            del self._held[key]

    async def wait_and_acquire(self, key: OrderKey) -> None:
        """Wait in line for *key*, which is held."""

        def on_cancelled(_size: int, woken: bool) -> None:
            if woken:
                self.release(key)

        waiters = self._held[key]
        if waiters is None:
            waiters = self._held[key] = WaiterQueue(on_cancelled)
        await waiters.wait()

    def __contains__(self, key: OrderKey) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)
