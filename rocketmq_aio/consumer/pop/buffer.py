"""Pop buffer: popped messages that no caller has taken yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf

from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.waiters import WaiterQueue


class PopBuffer:
    """Messages in the order of their arrival; only `wait` awaits.

    :param orderly: deliver no message of a queue while another one is in flight
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
        self._in_flight: dict[MessageQueue, list[PoppedMessage]] = {}
        self._waiters = WaiterQueue()

    def add(self, messages: Iterable[PoppedMessage]) -> None:
        """Append *messages*, and wake all callers."""
        self.messages.extend(messages)
        self.notify()

    def take(self, most: int, now: float) -> list[PoppedMessage]:
        """Return up to *most* messages that are not expired."""
        self.drop_expired(now)
        taken: list[PoppedMessage] = []
        kept: list[PoppedMessage] = []
        while self.messages and len(taken) < most:
            message = self.messages.popleft()
            if message.ack_state is AckState.HELD:
                (kept if message.queue in self._in_flight else taken).append(message)
        self.messages.extendleft(reversed(kept))
        if self._orderly:
            for message in taken:
                self._in_flight.setdefault(message.queue, []).append(message)
        return taken

    def drop_expired(self, now: float) -> None:
        """Drop messages that the broker may have redelivered.

        In order the broker also redelivers the messages behind an expired one, after it: those
        are given back.
        """
        expired = [each for each in self.messages if each.is_expired(now)]
        if expired:
            self.messages = deque(each for each in self.messages if not each.is_expired(now))
        for queue, in_flight in list(self._in_flight.items()):
            held = [each for each in in_flight if each.ack_state is AckState.HELD]
            expired += [each for each in held if each.is_expired(now)]
            self._in_flight[queue] = [each for each in held if not each.is_expired(now)]
            if not self._in_flight[queue]:
                del self._in_flight[queue]
        if self._orderly and expired:
            self._give_back_behind(expired)

    def _give_back_behind(self, expired: Iterable[PoppedMessage]) -> None:
        latest: dict[MessageQueue, float] = {}
        for message in expired:
            latest[message.queue] = max(message.received_at, latest.get(message.queue, 0.0))
        # Messages popped later are that second delivery.
        behind = self.remove(lambda each: each.received_at <= latest.get(each.queue, -inf))
        if behind:
            self._give_back(behind)

    def remove(self, unwanted: Callable[[PoppedMessage], bool]) -> list[PoppedMessage]:
        removed = [message for message in self.messages if unwanted(message)]
        if removed:
            self.messages = deque(m for m in self.messages if not unwanted(m))
        return removed

    def notify(self) -> None:
        self._waiters.wake_all()

    async def wait(self, seconds: float) -> None:
        """Return at the next change, or after *seconds*."""
        await self._waiters.wait(seconds)
