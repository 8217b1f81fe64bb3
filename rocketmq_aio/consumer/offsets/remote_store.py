"""Remote offset store: keeps the offsets of a group at the brokers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from time import monotonic
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

import anyio

from rocketmq_aio.errors import (
    NO_RESPONSE,
    BrokerError,
    CommitError,
    ConfigError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.instance.broker_client import BrokerClient
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.remoting.keyed_lock import KeyedLock
from rocketmq_aio.remoting.remoting_client import LATE_SECONDS

SENDS_PER_BROKER: Final = 16  # concurrent commits to one broker
MAX_OFFSET: Final = 2**63 - 1  # the broker reads a signed int64


def check_offset(offset: object) -> None:
    """Validate an offset.  Raises ConfigError: it is not a whole number, negative, or too large."""
    if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
        raise ConfigError("offset", offset, "expected a whole number, at least 0")


_Topic: TypeAlias = tuple[str, str]  # a topic, and the name of a broker


class _FirstCommit:
    """The first commit of a topic, which is sent alone."""

    def __init__(self) -> None:
        self.alone = anyio.Lock()
        self.timed_out = False


class RemoteOffsetStore:
    """The default `OffsetStore`: each broker keeps the offsets of its queues.

    Every commit is awaited, so `persist` reports every failure; a broker that does not respond
    does not delay the commits to others.
    """

    def __init__(self, calls: BrokerClient, group: str) -> None:
        self._calls = calls
        self._group = group
        self._latest: dict[MessageQueue, int] = {}  # the last update
        self._stored: dict[MessageQueue, int] = {}  # what the broker has confirmed
        self._in_flight: set[MessageQueue] = set()  # commits whose responses will count
        # Until when a broker may execute an earlier commit, in place of the last one.
        self._late: dict[MessageQueue, float] = {}
        # A broker processes requests in any order: commits of one queue may not be concurrent.
        self._sending = KeyedLock[MessageQueue]()
        self._known: set[_Topic] = set()  # where the group has an offset
        self._first_commits: WeakValueDictionary[_Topic, _FirstCommit] = WeakValueDictionary()
        # Checked just before a commit is sent: the process may have stalled since `persist` began.
        self.may_send: Callable[[MessageQueue], bool] | None = None

    async def load(self) -> None:
        """Do nothing: offsets are read queue by queue."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return an update that is not persisted yet, else the offset at the broker."""
        latest, stored = self._latest.get(queue), self._stored.get(queue)
        if latest != stored:
            return latest
        response = await self._calls.query_offset(self._group, queue)
        if response != stored and self._latest.get(queue) == self._stored.get(queue) == stored:
            # Another client changed the offset: forget the cached values, so that a later commit of
            # the old offset is sent and not skipped as unchanged.
            await self.remove(queue)
        return response

    async def read_copy(self, queue: MessageQueue) -> int | None:
        """Return the offset that a slave has copied, while the queue has no master.

        It may be some seconds old, so messages may be delivered again; None if it has none.
        """
        return await self._calls.query_copied_offset(self._group, queue)

    async def update(self, queue: MessageQueue, offset: int) -> None:
        check_offset(offset)
        self._latest[queue] = offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Send changed offsets to the brokers, and wait for all responses.

        After a commit timed out, no further ones are sent to its broker in this call: each would
        time out in turn.
        """
        brokers: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue in sorted(set(queues)):
            if self._is_changed(queue):
                brokers[self._calls.broker_of(queue)].append(queue)
        lost: dict[MessageQueue, BaseException] = {}

        async def send_to(broker: str) -> None:
            queues, final = brokers[broker], (RequestTimeoutError,)
            sent = await gather_limited(self._send, queues, SENDS_PER_BROKER, final=final)
            lost.update(sent.failures)

        await gather_limited(send_to, brokers)
        if lost:
            raise CommitError(dict(sorted(lost.items())))

    async def remove(self, queue: MessageQueue) -> None:
        """Forget *queue*; its offset at the broker stays."""
        self._latest.pop(queue, None)
        self._invalidate(queue)

    def invalidate(self, queue: MessageQueue) -> bool:
        """Have the last commit of *queue* sent again: its broker may have lost it.

        Brokers write offsets to disk every few seconds; a killed broker loses later commits.
        Returns whether there is a commit to send again.
        """
        self._invalidate(queue)
        self._known.discard(self._topic_of(queue))
        return self.has(queue)

    def _invalidate(self, queue: MessageQueue) -> None:
        """Forget the confirmation of the last commit, also one that arrives later."""
        self._stored.pop(queue, None)
        self._in_flight.discard(queue)

    def has(self, queue: MessageQueue) -> bool:
        """Whether there is an update of *queue*, sent or not, since it was last removed."""
        return queue in self._latest

    def is_stored(self, queue: MessageQueue, offset: int) -> bool:
        """Whether the broker has confirmed *offset*, and no other update waits."""
        return self._stored.get(queue) == offset == self._latest.get(queue)

    def may_be_undone(self, queue: MessageQueue) -> bool:
        """Whether the broker may still execute an earlier commit, so `persist` sends it again."""
        return queue in self._late

    def _is_changed(self, queue: MessageQueue) -> bool:
        return queue in self._late or self._latest.get(queue) != self._stored.get(queue)

    async def _send(self, queue: MessageQueue) -> None:
        async with self._sending.hold(queue):
            if not self._is_changed(queue):
                return  # another call has sent it
            # Until the response arrives, the broker may have either offset.
            self._stored.pop(queue, None)
            while queue in self._latest and queue not in self._stored:
                self._in_flight.add(queue)
                is_last = self._late.get(queue, 0.0) <= monotonic()
                try:
                    offset = await self._update(queue)
                    if queue in self._in_flight:
                        self._stored[queue] = offset
                        if is_last:
                            self._late.pop(queue, None)
                finally:
                    self._in_flight.discard(queue)

    async def _update(self, queue: MessageQueue) -> int:
        # Concurrent first commits of a topic overwrite each other in the broker, though each is
        # confirmed (seen on a live 4.9.7 broker): the first one is sent alone.
        topic = self._topic_of(queue)
        if topic not in self._known:
            first = self._first_commits.setdefault(topic, _FirstCommit())
            async with first.alone:
                if topic not in self._known and not first.timed_out:
                    try:
                        offset = await self._commit(queue)
                    except NO_RESPONSE:
                        first.timed_out = True  # the others need not wait for it in turn
                        raise
                    if queue in self._in_flight:
                        self._note_known(topic)
                    return offset
        try:
            return await self._commit(queue)
        except NO_RESPONSE:
            self._known.discard(topic)  # it may have been killed before it wrote to disk
            raise

    def _note_known(self, topic: _Topic) -> None:
        self._known.add(topic)
        if len(self._known) > len(self._latest):  # some are of topics whose queues were removed
            self._known &= {self._topic_of(queue) for queue in self._latest}

    def _topic_of(self, queue: MessageQueue) -> _Topic:
        """Return the topic at its broker: logical queues of one name are on several brokers."""
        return queue.topic, self._calls.broker_of(queue)

    async def _commit(self, queue: MessageQueue) -> int:
        """Send the last update; return its offset."""
        offset = self._latest.get(queue)  # the queue may have been removed since `persist` began
        if offset is None or (self.may_send is not None and not self.may_send(queue)):
            raise RocketMQError(f"{queue} may be assigned to another member: nothing was committed")
        try:
            await self._calls.update_offset(self._group, queue, offset)
        except (BrokerError, NotConnectedError):
            raise
        except BaseException:  # also when cancelled
            self._note_late(queue)
            raise
        return offset

    def _note_late(self, queue: MessageQueue) -> None:
        now = monotonic()
        self._late[queue] = now + LATE_SECONDS
        if len(self._late) > len(self._latest):  # some are of queues that were removed
            self._late = {each: until for each, until in self._late.items() if until > now}
