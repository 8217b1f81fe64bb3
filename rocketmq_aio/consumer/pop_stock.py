"""Popped messages that nobody took yet, and the callers who wait for some."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from rocketmq_aio.consumer.popped import Fate, PoppedMessage
from rocketmq_aio.message import MessageQueue


class Stock:
    """Hands out messages first come first served; all of it but `wait` is plain steps.

    :param orderly: nothing of a queue while messages of it are in somebody's hands
    """

    def __init__(self, *, orderly: bool) -> None:
        self.messages: deque[PoppedMessage] = deque()
        self._orderly = orderly
        self._out: dict[MessageQueue, list[PoppedMessage]] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    def add(self, messages: Iterable[PoppedMessage]) -> None:
        """Messages came."""
        self.messages.extend(messages)
        self.notify()

    def take(self, most: int, now: float) -> list[PoppedMessage]:
        """Return up to *most* messages; those whose time is over are left to others."""
        taken: list[PoppedMessage] = []
        kept: list[PoppedMessage] = []
        blocked: dict[MessageQueue, bool] = {}
        while self.messages and len(taken) < most:
            message = self.messages.popleft()
            if message.fate is not Fate.HELD or message.is_expired(now):
                continue
            if self._orderly and self._is_blocked(message.queue, blocked, now):
                kept.append(message)
                continue
            taken.append(message)
        self.messages.extendleft(reversed(kept))
        if self._orderly:
            for message in taken:
                self._out.setdefault(message.queue, []).append(message)
        return taken

    def remove(self, unwanted: Callable[[PoppedMessage], bool]) -> list[PoppedMessage]:
        """Take out what nobody is to get any more, and return it."""
        removed = [message for message in self.messages if unwanted(message)]
        if removed:
            self.messages = deque(m for m in self.messages if not unwanted(m))
        return removed

    def _is_blocked(
        self, queue: MessageQueue, blocked: dict[MessageQueue, bool], now: float
    ) -> bool:
        """Whether messages taken *before* this round are neither done nor expired."""
        if queue not in blocked:
            out = [m for m in self._out.get(queue, ()) if _is_open(m, now)]
            self._out[queue] = out
            blocked[queue] = bool(out)
        return blocked[queue]

    def notify(self) -> None:
        """Something changed: whoever waits is to look again."""
        for waiter in self._waiting:
            _set(waiter)

    async def wait(self, seconds: float) -> None:
        """Return at the next change, or after *seconds*."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.add(waiter)
        timer = loop.call_later(seconds, _set, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiting.discard(waiter)


def _is_open(message: PoppedMessage, now: float) -> bool:
    return message.fate is Fate.HELD and not message.is_expired(now)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
