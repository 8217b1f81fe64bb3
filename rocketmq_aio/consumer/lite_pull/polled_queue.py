"""A queue whose messages are handed out and forgotten: what `poll` and ``async for`` take from."""

from __future__ import annotations

from rocketmq_aio.consumer.pulling.queue_state import UNKNOWN, QueueState
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue


class Cache:
    """What all queues of a consumer hold together, for the bounds over all of them."""

    __slots__ = ("blocked", "count", "size_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self.blocked: set[PolledQueue] = set()  # whose pull loops wait for room

    def wake_blocked(self) -> None:
        """There may be room again."""
        for assigned in self.blocked:
            assigned.wake_puller()


class PolledQueue(QueueState):
    """Three offsets, ascending: below *settled* everything may be committed, below *delivered*
    everything was handed to the application (or filtered out), at *next_offset* the next pull
    begins.

    :param auto_commit: whether coming back for more makes the last batch committable; without it
        only the start, commits of the application and corrections by the broker do
    """

    __slots__ = (
        "_auto_commit",
        "_cache",
        "_returned",
        "_stated",
        "delivered",
        "doubted",
        "floor",
        "in_line",
        "turn",
    )

    def __init__(self, queue: MessageQueue, cache: Cache, *, auto_commit: bool = True) -> None:
        super().__init__(queue)
        self._cache = cache
        self._auto_commit = auto_commit
        self.delivered = UNKNOWN
        self._returned = UNKNOWN  # below it the application has come back for more
        self._stated = UNKNOWN  # the last start, commit or reset; a seek back lowers it
        self.doubted = False  # others may have come further
        self.floor = UNKNOWN  # how far they have; less is not committed
        self.in_line = False  # among the queues that a poll takes from
        self.turn = 0

    # --- position -------------------------------------------------------------------------------

    @property
    def committable(self) -> int:
        """Everything below may be committed."""
        return self._returned if self._auto_commit else self._stated

    def begin(self, offset: int) -> None:
        """It is known where to begin."""
        self.next_offset = self.delivered = offset
        if self._returned == UNKNOWN:  # else the application has committed already
            self._returned = self._stated = offset
        self.started.set()

    def restart(self, offset: int) -> int:
        """Forget the cache and go on at *offset*; for the pull loop itself.

        Returns how many messages were dropped.
        """
        dropped = self._clear()
        self.generation += 1
        self.failure = None
        self.trust()
        self._returned = self._stated = offset
        self.begin(offset)
        return dropped

    def seek(self, offset: int) -> None:
        """Go on where the application says, which it commits itself without *auto_commit*."""
        stated = self._stated
        self.move(offset)
        if stated != UNKNOWN:
            self._stated = min(stated, offset)

    def step_back(self, offset: int) -> int:
        """The queue ends at *offset*: forget the cache, and go on where handing out had come to.

        A broker that lost its last messages still has those before them, cached here or not.
        Returns how many messages were dropped.
        """
        returned, stated = self._returned, self._stated
        dropped = self.restart(min(offset, self.delivered))
        self._returned = min(returned, self._returned)
        self._stated = min(stated, self._stated)
        return dropped

    def advance(self, offset: int) -> None:
        """The next pull begins at *offset*; what lies between was filtered out or is cached."""
        self.next_offset = offset
        if not self.process_queue.count:
            # Nothing is left to hand out before it, so a group that wants none of the messages
            # of a queue moves on as well.
            if not self.has_in_flight:
                self._returned = max(self._returned, offset)
            self.delivered = offset

    def settle(self) -> None:
        """What was handed out so far counts as done."""
        if self._returned < self.delivered:
            self._returned = self.delivered
        if self.drained is not None:
            self.drained.set()

    def settle_at(self, offset: int) -> None:
        """The application says itself how far it is."""
        self._returned = self._stated = offset
        if self.drained is not None and not self.has_in_flight:
            self.drained.set()

    def trust(self) -> None:
        """Somebody has said where it stands: that may be committed, also behind others."""
        self.doubted = False
        self.floor = UNKNOWN

    @property
    def has_in_flight(self) -> bool:
        """Whether the application has messages that it has not said to be done."""
        return self._returned < self.delivered

    def refetch(self) -> None:
        """Forget the cache and pull again what was not handed out yet."""
        returned, stated, delivered = self._returned, self._stated, self.delivered
        doubted, floor = self.doubted, self.floor
        if delivered != UNKNOWN:
            self.move(delivered)
            self._returned, self._stated = returned, stated
            self.doubted, self.floor = doubted, floor

    # --- messages -------------------------------------------------------------------------------

    def put(self, messages: list[MessageExt]) -> None:
        """Cache what a pull brought."""
        held = self.process_queue
        size = held.size_bytes
        self._cache.count += held.put(messages)
        self._cache.size_bytes += held.size_bytes - size

    def take(self, limit: int) -> list[MessageExt]:
        """Hand out up to *limit* messages; there is at least one."""
        held = self.process_queue
        size = held.size_bytes
        messages = held.take(limit)
        cache = self._cache
        cache.count -= len(messages)
        cache.size_bytes -= size - held.size_bytes
        self.delivered = messages[-1].queue_offset + 1 if held.count else self.next_offset
        return messages

    def take_one(self) -> MessageExt:
        """Hand out one message."""
        held = self.process_queue
        message = held.take_one()
        cache = self._cache
        cache.count -= 1
        cache.size_bytes -= len(message.body)
        self.delivered = message.queue_offset + 1 if held.count else self.next_offset
        return message

    def _clear(self) -> int:
        held, cache = self.process_queue, self._cache
        cache.count -= held.count
        cache.size_bytes -= held.size_bytes
        if held.count:
            cache.wake_blocked()  # room for the others, though nobody has polled
        return held.clear()

    # --- the pull loop --------------------------------------------------------------------------

    def block(self) -> None:
        """The pull loop begins to wait for room: any poll may make it."""
        self._cache.blocked.add(self)

    def unblock(self) -> None:
        """The pull loop has stopped waiting."""
        self._cache.blocked.discard(self)

    def _stop_delivery(self) -> None:
        self._clear()
