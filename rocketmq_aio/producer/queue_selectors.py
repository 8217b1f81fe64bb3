"""Queue selectors: the functions that an application can pass as ``selector=``."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from struct import pack, unpack

from rocketmq_aio.config.validation import check_function, checked_several
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.topic_publish_info import QueueSelector
from rocketmq_aio.protocol.subscription import java_hash


def select_by_hash(key: str | int) -> QueueSelector:
    """Return a selector that sends everything with *key* to one queue, as the Java client would.

    A number of 32 bits is an ``Integer`` there, a larger one a ``Long``.  The queue changes when
    the number of writable queues does; that of a ``sharding_key`` stays.

    :raises ConfigError: *key* is neither a string nor a whole number of 64 bits
    """
    # Java: the remainder has the sign of the hash, and its absolute value is taken.
    value = abs(_java_hash(key))

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[value % len(queues)]

    return select


def _java_hash(key: object) -> int:
    if isinstance(key, str):
        return java_hash(key)
    if isinstance(key, int) and not isinstance(key, bool) and -(2**63) <= key < 2**63:
        high, low = unpack(">ii", pack(">q", key))
        return int(low if low == key else high ^ low)
    raise ConfigError("key", key, "expected a string or a whole number of 64 bits")


class SelectByRandom:
    """Sends every message to a queue chosen at random."""

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return random.choice(queues)


class SelectByMachineRoom:
    """Sends to brokers named ``<room>@<broker>`` in *rooms* only, round-robin over their queues.

    *inner* chooses among these queues instead.  While no broker of the rooms can be written to,
    sends fail: they never go to other rooms.

    :raises ConfigError: *rooms* is not a collection of names, or *inner* is not a function;
        when called: no queue is in the rooms
    """

    def __init__(self, rooms: Iterable[str], inner: QueueSelector | None = None) -> None:
        names = tuple(checked_several("rooms", rooms))
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError("rooms", names, "expected at least one name, and only names")
        if inner is not None:
            check_function("inner", inner, "queues", "message", may_be_async=False)
        self.rooms = frozenset(names)
        self._inner = inner
        self._next = random.randrange(2**16)

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        inside = [queue for queue in queues if self._is_inside(queue)]
        if not inside:
            names = ", ".join(sorted({queue.broker_name for queue in queues}))
            reason = f"expected a broker named <room>@<broker> with such a room, there are {names}"
            raise ConfigError("rooms", sorted(self.rooms), reason)
        if self._inner is not None:
            return self._inner(inside, message)
        self._next += 1
        return inside[self._next % len(inside)]

    def _is_inside(self, queue: MessageQueue) -> bool:
        room, found, _ = queue.broker_name.partition("@")
        return bool(found) and room in self.rooms
