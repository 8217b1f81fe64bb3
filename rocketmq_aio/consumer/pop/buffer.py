"""Popped messages that nobody took yet, and the callers who wait for some."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from math import inf

from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.model.values import MessageQueue


class PopBuffer:
    """Hands out messages first come first served; all of it but `wait` is plain steps.

    :param orderly: nothing of a queue while messages of it are in somebody's hands
    :param give_back: called with messages that must be delivered again before they are handed out
    """

    def __init__(
        self,
        *,
        orderly: bool,
        give_back: Callable[[list[PoppedMessage]], None] = lambda messages: None,
    ) -> None:
        self.messages: deque[PoppedMessage] = deque()
        self._orderly = orderly
        self._give_back = give_back
        self._out: dict[MessageQueue, list[PoppedMessage]] = {}  # handed out, and not settled
        self._waiting: set[asyncio.Future[None]] = set()

    def add(self, messages: Iterable[PoppedMessage]) -> None:
        """Messages came."""
        self.messages.extend(messages)
        self.notify()

    def take(self, most: int, now: float) -> list[PoppedMessage]:
        """Return up to *most* messages; those whose time is over are left to others."""
        self.drop_expired(now)
        taken: list[PoppedMessage] = []
        kept: list[PoppedMessage] = []
        while self.messages and len(taken) < most:
            message = self.messages.popleft()
            if message.fate is AckState.HELD:
                (kept if message.queue in self._out else taken).append(message)
        self.messages.extendleft(reversed(kept))
        if self._orderly:
            for message in taken:
                self._out.setdefault(message.queue, []).append(message)
        return taken

    def drop_expired(self, now: float) -> None:
        """Drop messages that the group may have by now.

        In order the broker delivers what lies behind such a message again, too, after it: that is
        given back.
        """
        expired = [each for each in self.messages if each.is_expired(now)]
        if expired:
            self.messages = deque(each for each in self.messages if not each.is_expired(now))
        for queue, out in list(self._out.items()):
            held = [each for each in out if each.fate is AckState.HELD]
            expired += [each for each in held if each.is_expired(now)]
            self._out[queue] = [each for each in held if not each.is_expired(now)]
            if not self._out[queue]:
                del self._out[queue]
        if self._orderly and expired:
            self._withdraw_behind(expired)

    def _withdraw_behind(self, expired: Iterable[PoppedMessage]) -> None:
        latest: dict[MessageQueue, float] = {}
        for message in expired:
            latest[message.queue] = max(message.received_at, latest.get(message.queue, 0.0))
        # What was popped later is that second delivery.
        behind = self.remove(lambda each: each.received_at <= latest.get(each.queue, -inf))
        if behind:
            self._give_back(behind)

    def remove(self, unwanted: Callable[[PoppedMessage], bool]) -> list[PoppedMessage]:
        """Take out what nobody is to get any more, and return it."""
        removed = [message for message in self.messages if unwanted(message)]
        if removed:
            self.messages = deque(m for m in self.messages if not unwanted(m))
        return removed

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


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
