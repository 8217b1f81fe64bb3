"""One tenure of a queue: what is cached, where pulling stands, what was handed out and settled."""

from __future__ import annotations

import asyncio
from typing import Final

import anyio

from rocketmq_aio.consumer.process_queue import ProcessQueue
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.message import MessageExt, MessageQueue
from rocketmq_aio.protocol.codes import MASTER_ID
from rocketmq_aio.protocol.templates import PullTemplate

UNKNOWN: Final = -1


class Cache:
    """What all queues of a consumer hold together, for the bounds over all of them."""

    __slots__ = ("blocked", "count", "size_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self.blocked: set[AssignedQueue] = set()  # whose pull loops wait for room

    def wake_blocked(self) -> None:
        """There may be room again."""
        for assigned in self.blocked:
            assigned.wake_puller()


class AssignedQueue:
    """A queue while this consumer has it; made anew when the queue comes back.

    Three offsets, ascending: below *settled* everything may be committed, below *delivered*
    everything was handed to the application (or filtered out), at *next_offset* the next pull
    begins.  All changes are plain steps: nothing here awaits.
    """

    __slots__ = (
        "_cache",
        "all_settled",
        "broker_id",
        "delivered",
        "dropped",
        "failure",
        "generation",
        "in_line",
        "last_pull",
        "last_take",
        "next_offset",
        "paused",
        "process_queue",
        "queue",
        "scope",
        "settled",
        "started",
        "template",
        "template_key",
        "trouble",
        "turn",
        "wake",
    )

    def __init__(self, queue: MessageQueue, cache: Cache) -> None:
        self.queue = queue
        self.process_queue = ProcessQueue()
        self._cache = cache
        self.next_offset = UNKNOWN
        self.delivered = UNKNOWN
        self.settled = UNKNOWN
        self.paused = False
        self.dropped = False
        self.generation = 0  # counts moves: an answer to an older pull is not used
        self.failure: RocketMQError | None = None  # told by the next poll
        self.in_line = False  # among the queues that a poll takes from
        self.turn = 0
        self.broker_id = MASTER_ID  # the replica that the broker suggested
        self.template: PullTemplate | None = None
        self.template_key: tuple[object, ...] = ()
        self.wake: asyncio.Future[None] | None = None  # what the pull loop waits for
        self.scope: anyio.CancelScope | None = None  # of the pull that is under way
        self.started = anyio.Event()
        self.trouble: RocketMQError | None = None  # why it is not known where to begin
        self.all_settled: anyio.Event | None = None  # waited for on hand-over
        self.last_pull = 0.0
        self.last_take = 0.0

    # --- position -------------------------------------------------------------------------------

    def begin(self, offset: int) -> None:
        """It is known where to begin."""
        self.next_offset = self.delivered = offset
        if self.settled == UNKNOWN:  # else the application has committed already
            self.settled = offset
        self.started.set()

    def move(self, offset: int) -> None:
        """Go on at *offset*: forget the cache, abandon the pull that is under way."""
        self.restart(offset)
        self.interrupt()

    def restart(self, offset: int) -> int:
        """Forget the cache and go on at *offset*; for the pull loop itself.

        Returns how many messages were dropped.
        """
        dropped = self._clear()
        self.generation += 1
        self.failure = None
        self.settled = offset
        self.begin(offset)
        return dropped

    def step_back(self, offset: int) -> int:
        """The queue ends at *offset*: forget the cache, and go on where handing out had come to.

        A broker that lost its last messages still has those before them, cached here or not.
        Returns how many messages were dropped.
        """
        settled = self.settled
        dropped = self.restart(min(offset, self.delivered))
        self.settled = min(settled, self.settled)
        return dropped

    def advance(self, offset: int) -> None:
        """The next pull begins at *offset*; what lies between was filtered out or is cached."""
        self.next_offset = offset
        if not self.process_queue.count:
            # Nothing is left to hand out before it, so a group that wants none of the messages
            # of a queue moves on as well.
            if not self.in_hands:
                self.settled = max(self.settled, offset)
            self.delivered = offset

    def settle(self) -> None:
        """What was handed out so far counts as done."""
        if self.settled < self.delivered:
            self.settled = self.delivered
        if self.all_settled is not None:
            self.all_settled.set()

    def settle_at(self, offset: int) -> None:
        """The application says itself how far it is."""
        self.settled = offset
        if self.all_settled is not None and not self.in_hands:
            self.all_settled.set()

    @property
    def in_hands(self) -> bool:
        """Whether the application has messages that it has not said to be done."""
        return self.settled < self.delivered

    def refetch(self) -> None:
        """Forget the cache and pull again what was not handed out yet."""
        settled, delivered = self.settled, self.delivered
        if delivered != UNKNOWN:
            self.move(delivered)
            self.settled = settled

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

    def drop(self) -> None:
        """The queue is given up: nothing more is pulled or handed out."""
        self.dropped = True
        self.generation += 1
        self._clear()
        self.started.set()
        self.interrupt()

    def interrupt(self) -> None:
        """Let the pull that is under way be abandoned; its answer will not be used."""
        if self.scope is not None:
            self.scope.cancel()

    def wake_puller(self) -> None:
        """Something changed that the pull loop may be waiting for."""
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)
