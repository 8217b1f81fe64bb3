"""Order: which queue a key belongs to, and sends of one key after another."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable, Sequence

from rocketmq_aio.errors import ConfigError, RouteNotFoundError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.topic_publish_info import QueueSelector, SendTarget, TopicPublishInfo
from rocketmq_aio.protocol.subscription import java_hash

Lane = tuple[str, str | None]  # a topic and a key

# --- selectors ------------------------------------------------------------------------------------


def select_by_hash(key: str) -> QueueSelector:
    """Return a selector that sends everything with *key* to one queue, as the Java client would.

    The queue changes when the number of queues that answer does; that of a ``sharding_key`` stays.
    """
    value = java_hash(key)

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[_index(value, len(queues))]

    return select


class SelectByRandom:
    """Sends every message to a queue chosen at random."""

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return random.choice(queues)


class SelectByMachineRoom:
    """Sends to brokers named ``<room>@<broker>`` in *rooms* only, to their queues in turn.

    *inner* chooses among these queues instead.  While no broker of the rooms can be written to,
    sends fail: they do not leave the rooms.

    :raises ConfigError: *rooms* is not a collection of names; when called: no queue is in them
    """

    def __init__(self, rooms: Iterable[str], inner: QueueSelector | None = None) -> None:
        if isinstance(rooms, str):
            raise ConfigError("rooms", rooms, "expected a collection of names, not one string")
        self.rooms = frozenset(rooms)
        if not self.rooms or not all(isinstance(room, str) and room for room in self.rooms):
            raise ConfigError("rooms", rooms, "expected at least one name, and only names")
        self._inner = inner
        self._turn = random.randrange(2**16)

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        inside = [queue for queue in queues if self._is_inside(queue)]
        if not inside:
            names = ", ".join(sorted({queue.broker_name for queue in queues}))
            reason = f"expected a broker named <room>@<broker> with such a room, there are {names}"
            raise ConfigError("rooms", sorted(self.rooms), reason)
        if self._inner is not None:
            return self._inner(inside, message)
        self._turn += 1
        return inside[self._turn % len(inside)]

    def _is_inside(self, queue: MessageQueue) -> bool:
        room, found, _ = queue.broker_name.partition("@")
        return bool(found) and room in self.rooms


def _index(value: int, count: int) -> int:
    # Java: the remainder has the sign of the hash, and its absolute value is taken.
    return abs(value) % count


# --- the queues of keys ---------------------------------------------------------------------------


class OrderedTopic:
    """The queues over which the keys of one topic are spread.

    They are taken from the first route and kept: brokers that fail, are made read-only, come or
    get more queues do not move a key.  Only when an administrator takes one of the queues away is
    the list taken anew.
    """

    def __init__(self, publish: TopicPublishInfo) -> None:
        self.queues = publish.ordered_queues
        self._addresses: dict[str, str] = {}
        self._look_at(publish)

    @property
    def used_at(self) -> float:
        """When the topic was last sent to, by the monotonic clock."""
        return self._seen.used_at

    def target(self, publish: TopicPublishInfo, value: int) -> SendTarget:
        """Return where a key with the hash *value* goes, whether its broker answers or not.

        :raises RouteNotFoundError: its queue cannot be written to at present
        """
        if publish is not self._seen:
            self._look_at(publish)
        index = _index(value, len(self._targets))
        return self._targets[index] or self._find(publish, index)

    def last_address(self, queue: MessageQueue) -> str | None:
        """Return where the master of the broker of *queue* was."""
        return self._addresses.get(queue.broker_name)

    def _find(self, publish: TopicPublishInfo, index: int) -> SendTarget:
        queue = self.queues[index]
        if publish.is_closed(queue):
            reason = f"queue {queue} may not be written to, and its keys go nowhere else"
            raise RouteNotFoundError(publish.topic, reason)
        found = publish.target(queue, self.last_address(queue))
        self._targets[index] = found
        return found

    def _look_at(self, publish: TopicPublishInfo) -> None:
        self._seen = publish
        self._addresses |= publish.masters()
        there = set(publish.ordered_queues)
        brokers = {queue.broker_name for queue in there}
        if any(q.broker_name in brokers and q not in there for q in self.queues):
            self.queues = publish.ordered_queues
        self._targets: list[SendTarget | None] = [None] * len(self.queues)


# --- one after another ----------------------------------------------------------------------------


class KeyedLock:
    """One at a time for each lane, first come first served; an idle one takes no memory."""

    def __init__(self) -> None:
        self._taken: dict[Lane, deque[asyncio.Future[None]] | None] = {}  # and who waits

    def try_take(self, lane: Lane) -> bool:
        """Take the turn of *lane*, unless somebody has it."""
        if lane in self._taken:
            return False
        self._taken[lane] = None
        return True

    def give(self, lane: Lane) -> None:
        """Hand the turn on to who waits longest."""
        waiting = self._taken.pop(lane)
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                self._taken[lane] = waiting
                turn.set_result(None)
                return

    async def wait_and_take(self, lane: Lane) -> None:
        """Wait in line for the turn of *lane*, which somebody has."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._taken[lane]
        if waiting is None:
            waiting = self._taken[lane] = deque()
        waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give(lane)  # it came in the moment of the cancellation
            raise

    def __len__(self) -> int:
        return len(self._taken)
