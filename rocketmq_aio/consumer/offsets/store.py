"""Where the progress of a group is kept: what a store promises, and the store at the brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, Protocol
from weakref import WeakValueDictionary

import anyio

from rocketmq_aio.errors import (
    CommitError,
    ConfigError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.model.values import MessageQueue

SENDS_PER_BROKER: Final = 16  # commits on their way to one broker at a time
SILENCE: Final = (NotConnectedError, ConnectionLostError, RequestTimeoutError)
MAX_OFFSET: Final = 2**63 - 1  # the broker reads a signed int64


class OffsetCalls(Protocol):
    """The two requests to brokers that `RemoteOffsetStore` is made of."""

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset the broker keeps; None when it surely keeps none."""

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Return when the broker has taken *offset*."""


def check_offset(offset: object) -> None:
    """Refuse what no queue can have as an offset.

    :raises ConfigError: it is not a whole number, negative, or too large
    """
    if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
        raise ConfigError("offset", offset, "expected a whole number, at least 0")


class _First:
    """The commit of a topic that goes alone, while somebody waits for it."""

    def __init__(self) -> None:
        self.alone = anyio.Lock()
        self.met_silence = False


class RemoteOffsetStore:
    """Progress at the brokers, each keeping its own queues: the usual store of a group.

    Every commit is awaited, so `persist` knows what became of it; queues of a broker that does
    not answer do not hold up those of another.
    """

    def __init__(self, calls: OffsetCalls, group: str) -> None:
        self._calls = calls
        self._group = group
        self._latest: dict[MessageQueue, int] = {}  # the last update
        self._stored: dict[MessageQueue, int] = {}  # what the broker surely has
        # A broker works on requests in any order: two commits of one queue may not be on their
        # way at once. Weak, so that a lock lives while somebody holds it or waits.
        self._sending: WeakValueDictionary[MessageQueue, anyio.Lock] = WeakValueDictionary()
        self._known: set[tuple[str, str]] = set()  # topics of brokers that have an offset of ours
        self._introducing: WeakValueDictionary[tuple[str, str], _First] = WeakValueDictionary()
        # Asked just before a commit leaves: the process may have stood still since `persist` began.
        self.may_send: Callable[[MessageQueue], bool] | None = None

    async def load(self) -> None:
        """Nothing to do: the brokers are asked queue by queue."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return an update that is not persisted yet, else what the broker says now."""
        latest, stored = self._latest.get(queue), self._stored.get(queue)
        if latest != stored:
            return latest
        answer = await self._calls.query_offset(self._group, queue)
        if answer != stored and self._latest.get(queue) == self._stored.get(queue) == stored:
            # Somebody else has set it: the same value again would be a change, so send it then.
            await self.remove(queue)
        return answer

    async def update(self, queue: MessageQueue, offset: int) -> None:
        """Note *offset* in memory."""
        check_offset(offset)
        self._latest[queue] = offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Send what has changed to the brokers, and wait for all answers."""
        lost: dict[MessageQueue, BaseException] = {}
        async with anyio.create_task_group() as tasks:
            for changed in self._changed_by_broker(queues):
                waiting = iter(changed)
                for _ in range(min(SENDS_PER_BROKER, len(changed))):
                    tasks.start_soon(self._send_each, waiting, lost)
        if lost:
            raise CommitError(dict(sorted(lost.items())))

    async def remove(self, queue: MessageQueue) -> None:
        """Forget *queue*; the broker keeps its offset."""
        self._latest.pop(queue, None)
        self._stored.pop(queue, None)

    def invalidate(self, queue: MessageQueue) -> bool:
        """The broker of *queue* was away: it may have lost the last commits, so send them again.

        Brokers write offsets down every few seconds; what a killed one was told since is gone.
        Returns whether there is a commit to send again.
        """
        self._stored.pop(queue, None)
        self._known.discard((queue.topic, queue.broker_name))
        return queue in self._latest

    def _is_changed(self, queue: MessageQueue) -> bool:
        return self._latest.get(queue) != self._stored.get(queue)

    def _changed_by_broker(self, queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
        brokers: dict[str, list[MessageQueue]] = {}
        for queue in sorted(set(queues)):
            if self._is_changed(queue):
                brokers.setdefault(queue.broker_name, []).append(queue)
        return list(brokers.values())

    async def _send_each(
        self, waiting: Iterator[MessageQueue], lost: dict[MessageQueue, BaseException]
    ) -> None:
        for queue in waiting:  # shared by the tasks of one broker: each takes the next
            try:
                await self._send(queue)
            except RocketMQError as error:
                lost[queue] = error

    async def _send(self, queue: MessageQueue) -> None:
        lock = self._sending.setdefault(queue, anyio.Lock())
        async with lock:
            if not self._is_changed(queue):
                return  # another call was faster
            offset = self._latest[queue]
            # Until the answer is here nobody knows which one the broker has.
            self._stored.pop(queue, None)
            await self._update(queue, offset)
            if queue in self._latest:
                self._stored[queue] = offset

    async def _update(self, queue: MessageQueue, offset: int) -> None:
        # A group's first commits of a topic overwrite each other in the broker when they come at
        # once, though each is answered as done (seen on a live 4.9.7 broker): the first goes alone.
        topic = (queue.topic, queue.broker_name)
        if topic not in self._known:
            first = self._introducing.setdefault(topic, _First())
            async with first.alone:
                if topic not in self._known and not first.met_silence:
                    try:
                        await self._tell(queue, offset)
                    except SILENCE:
                        first.met_silence = True  # the others do not take turns to wait for it
                        raise
                    self._known.add(topic)
                    return
        try:
            await self._tell(queue, offset)
        except SILENCE:
            self._known.discard(topic)  # it may have been killed before it wrote anything down
            raise

    async def _tell(self, queue: MessageQueue, offset: int) -> None:
        if self.may_send is not None and not self.may_send(queue):
            raise RocketMQError(f"{queue} may be another member's by now: nothing was committed")
        await self._calls.update_offset(self._group, queue, offset)
