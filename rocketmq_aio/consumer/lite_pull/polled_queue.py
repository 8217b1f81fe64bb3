"""Polled queue: a queue whose messages `poll` and ``async for`` take."""

from __future__ import annotations

from rocketmq_aio.consumer.pull_loop.flow_control import Cache
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN, UNVERIFIED, QueueState
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue


class PolledQueue(QueueState):
    """Three ascending offsets: *committable*; *delivered*, below which everything was delivered
    to the application or filtered out; *next_offset*.

    :param auto_commit: whether the next poll makes the last batch committable; without it only
        the start, commits by the application and corrections by the broker do
    """

    __slots__ = (
        *("_auto_commit", "_cache", "_explicit", "_processed"),
        *("delivered", "is_ready", "taken_in_turn", "withheld"),
    )

    def __init__(self, queue: MessageQueue, cache: Cache, *, auto_commit: bool = True) -> None:
        super().__init__(queue)
        self._cache = cache
        self._auto_commit = auto_commit
        self.delivered = UNKNOWN
        self._processed = UNKNOWN  # offsets below: the application has polled again
        self._explicit = UNKNOWN  # the last start, commit or reset; a seek back lowers it
        # Nothing is delivered of these queues until others' commits are known; `DeliveryFence`.
        self.withheld: list[PolledQueue] | None = None
        self.is_ready = False  # in the `ReadyQueues`
        self.taken_in_turn = 0

    @property
    def committable(self) -> int:
        return self._processed if self._auto_commit else self._explicit

    @property
    def position(self) -> int:
        return self.delivered

    @property
    def has_in_flight(self) -> bool:
        return self._processed < self.delivered

    def begin(self, offset: int) -> None:
        super().begin(offset)
        self.delivered = offset
        if self._processed == UNKNOWN:  # else the application has committed already
            self._processed = self._explicit = offset

    def catch_up(self) -> bool:
        """Go on at `min_commit_offset` if only another member can have got there.

        Returns whether the position has changed.
        """
        others = self.min_commit_offset
        if others == UNVERIFIED or self.failure or not self.started.is_set():
            return False
        if self.dropped or others <= max(self.furthest, self.committable, self.delivered):
            return False
        self.move(others)
        self.min_commit_offset = others
        return True

    def restart(self, offset: int) -> int:
        self._note_furthest()
        dropped = self._clear()
        self.generation += 1
        self.failure = None
        self.trust()
        self._processed = self._explicit = offset
        self.begin(offset)
        return dropped

    def seek(self, offset: int) -> None:
        """Go on at *offset*, which without *auto_commit* the application commits itself."""
        explicit = self._explicit
        self.move(offset)
        if explicit != UNKNOWN:
            self._explicit = min(explicit, offset)

    def step_back(self, offset: int) -> int:
        processed, explicit = self._processed, self._explicit
        dropped = self.restart(min(offset, self.delivered))
        self._processed = min(processed, self._processed)
        self._explicit = min(explicit, self._explicit)
        return dropped

    def rescan(self, offset: int) -> None:
        super().rescan(offset)
        self.delivered = min(self.delivered, offset)
        self._processed = min(self._processed, offset)
        self._explicit = min(self._explicit, offset)

    def advance(self, offset: int) -> None:
        super().advance(offset)
        if not self.process_queue.count:
            # Nothing is left to deliver before it: a group whose filter matches no message of
            # the queue moves on as well.
            if not self.has_in_flight:
                self._processed = max(self._processed, offset)
            self.delivered = offset

    def mark_processed(self) -> None:
        if self._processed < self.delivered:
            self._processed = self.delivered
        if self.drained is not None:
            self.drained.set()

    def mark_processed_at(self, offset: int) -> None:
        """Mark everything below *offset* as processed, as the application commits it."""
        self._note_furthest()
        self._processed = self._explicit = offset
        if self.drained is not None and not self.has_in_flight:
            self.drained.set()

    def refetch(self) -> None:
        processed, explicit, delivered = self._processed, self._explicit, self.delivered
        self.filtered_from = UNKNOWN
        least, last_message, before = self.min_commit_offset, self.last_message, self.before_hold
        if delivered != UNKNOWN:
            self.move(delivered)
            self._processed, self._explicit = processed, explicit
            self.min_commit_offset = least
            self.last_message, self.before_hold = last_message, before

    def put(self, messages: list[MessageExt]) -> None:
        held = self.process_queue
        size = held.size_bytes
        self._cache.count += len(held.put(messages))
        self._cache.size_bytes += held.size_bytes - size

    def take(self, limit: int) -> list[MessageExt]:
        """Deliver up to *limit* messages; there is at least one."""
        held = self.process_queue
        size = held.size_bytes
        messages = held.take(limit)
        cache = self._cache
        cache.count -= len(messages)
        cache.size_bytes -= size - held.size_bytes
        self.delivered = messages[-1].queue_offset + 1 if held.count else self.next_offset
        return messages

    def take_one(self) -> MessageExt:
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
            cache.wake_blocked()  # there is room for other queues without a poll
        return held.clear()

    def block(self) -> None:
        self._cache.blocked.add(self)

    def unblock(self) -> None:
        self._cache.blocked.discard(self)

    def _stop_delivery(self) -> None:
        self._clear()
