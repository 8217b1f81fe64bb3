"""Dispatch queue: messages of one queue that handlers process in any order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import anyio
import msgspec

from rocketmq_aio.consumer.common.redelivery import RetryTopics
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN, QueueState
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue

# A pull loop that waits for room is woken when this many messages are done; fewer in a short
# queue, whose remaining messages may stay in flight for long.
WAKE_AFTER: Final = 32


@dataclass(slots=True, eq=False)
class _Running:
    """A message in flight, and its copy that a later assignment pulled."""

    message: MessageExt
    counts: bool  # whether success of the handler makes the copy done, too
    assigned: DispatchQueue | None = None  # that pulled the copy
    copy: MessageExt | None = None


class InFlight:
    """Messages in flight of one queue, shared by all its assignments.

    *running* holds the messages whose assignment was revoked or moved while handlers worked on
    them, so that a later assignment does not deliver them a second time.  Messages of the current
    assignment are not registered: delivering costs nothing.

    :param on_ready: called with an assignment when a withheld message may be delivered; None: no
        message is withheld, since an orderly service withholds the whole queue, by *busy*
    """

    def __init__(self, on_ready: Callable[[DispatchQueue], None] | None = None) -> None:
        self._on_ready = on_ready
        self._idle: anyio.Event | None = None
        self.running: dict[int, _Running] = {}  # by id() of a message
        # Of orderly services: a worker has the queue, or it is suspended after a failure.
        self.busy = False
        self.suspended = False
        self.current: DispatchQueue | None = None  # the current assignment

    def register(self, pending: Iterable[MessageExt], *, counts: bool) -> None:
        """Register messages that are in flight or withheld while their assignment ends or moves.

        :param counts: whether success of their handlers counts for the next assignment
        """
        withheld = {id(each.copy): each for each in self.running.values()}
        if not counts:
            for each in self.running.values():
                each.counts = False
        for message in pending:
            if (known := withheld.get(id(message))) is not None:
                known.assigned = known.copy = None
            else:
                self.running[id(message)] = _Running(message, counts)

    def withhold(self, assigned: DispatchQueue, messages: list[MessageExt]) -> list[MessageExt]:
        """Return those of *messages* that may be delivered now; withhold the others."""
        if self._on_ready is None:
            return messages
        known = {
            (each.message.queue_offset, each.message.message_id): each
            for each in self.running.values()
        }
        offsets = {offset for offset, _ in known}
        free: list[MessageExt] = []
        for message in messages:
            same = None
            if message.queue_offset in offsets:  # a recreated topic starts at 0 again
                same = known.get((message.queue_offset, message.message_id))
            if same is None:
                free.append(message)
            else:
                same.assigned, same.copy = assigned, message
        return free

    def end(self, message: MessageExt, *, done: bool) -> None:
        """Release the copy of *message*, whose handler has ended, if it is registered."""
        ended = self.running.pop(id(message), None)
        if ended is None:
            return
        assigned, copy, on_ready = ended.assigned, ended.copy, self._on_ready
        if assigned is not None and copy is not None and on_ready is not None:
            if done and ended.counts:
                assigned.mark_done(copy)
            else:
                assigned.put_back([copy])
                on_ready(assigned)
        if not self.running and self._idle is not None:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Return when no handler of an earlier assignment runs; one caller at a time."""
        while self.running:
            self._idle = anyio.Event()
            await self._idle.wait()


class DispatchQueue(QueueState):
    """Messages that wait for a handler, are in flight, or are done behind one in flight.

    Everything below the first message that is not done is committable.
    """

    __slots__ = (
        *("_wake_at", "active", "in_flight", "is_ready", "next_batch", "resumed", "turn"),
        *("uncommitted", "waiting"),
    )

    def __init__(self, queue: MessageQueue, in_flight: InFlight | None = None) -> None:
        super().__init__(queue)
        self.in_flight = InFlight() if in_flight is None else in_flight
        self.in_flight.current = self
        self.waiting: deque[MessageExt] = deque()
        self.active = 0  # messages in flight; a worker that takes single messages counts as one
        self.is_ready = False  # whether the service offers it to workers
        self.turn = 0  # handler calls since the turn began
        self.uncommitted: list[MessageExt] = []  # done, but not committed by the handler yet
        self.next_batch = 0  # at most so many messages are taken next; 0: no such limit
        self.resumed: asyncio.Event | None = None  # ends the suspension of the queue when set
        self._wake_at = 0

    @property
    def committable(self) -> int:
        first = self.process_queue.first_offset
        return self.next_offset if first is None else first

    @property
    def has_in_flight(self) -> bool:
        return self.active > 0

    def restart(self, offset: int) -> int:
        """Drop the cache and continue at *offset*; return how many messages were dropped.

        Results of running handlers do not count.  Their messages are pulled again and delivered
        when these handlers have ended.
        """
        self.trust()
        return self._continue_at(offset, counts=False)

    def _continue_at(self, offset: int, *, counts: bool) -> int:
        self._note_furthest()
        self._register(counts=counts)
        self._end_suspension()
        dropped = len(self.waiting)
        self.waiting.clear()
        self.uncommitted.clear()
        self.process_queue.clear()
        self.generation += 1
        self.failure = None
        self.begin(offset)
        return dropped

    def step_back(self, offset: int) -> int:
        """Continue at *offset*, the end of the queue, or earlier if messages are not done."""
        return self._continue_at(min(offset, self.committable), counts=True)

    def refetch(self) -> None:
        """Drop the messages that wait for their first try, and pull them again."""
        if self.next_offset == UNKNOWN:
            return
        self.filtered_from = UNKNOWN
        untried = {id(each) for each in self.waiting if not each.local_retries}
        # Only those behind all messages in flight, which must not be delivered again.
        offset = self.process_queue.cut(lambda message: id(message) in untried)
        if offset is not None:
            self.next_offset = offset
            kept = [each for each in self.waiting if each.queue_offset < offset]
            self.waiting.clear()  # the same deque: workers keep a reference
            self.waiting.extend(kept)
        self.generation += 1
        self.interrupt()

    def put(self, messages: list[MessageExt]) -> None:
        messages = self.process_queue.put(messages)
        if self.in_flight.running:
            messages = self.in_flight.withhold(self, messages)
        self.waiting.extend(messages)

    def take(self, limit: int) -> list[MessageExt]:
        """Take up to *limit* messages for a handler; at least one is waiting."""
        waiting = self.waiting
        if self.next_batch:
            limit, self.next_batch = min(limit, self.next_batch), 0
        if limit == 1:
            taken = [waiting.popleft()]
        else:
            taken = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        self.active += len(taken)
        return taken

    def put_back(self, messages: list[MessageExt]) -> None:
        """Let *messages*, which were not done, be delivered first."""
        kept = [each for each in messages if not each.done]
        for message in kept:  # the handler may have changed its value and its properties
            message.decoded, message.parsed_properties = msgspec.UNSET, None
        if not self.dropped:
            self.waiting.extendleft(reversed(kept))

    def mark_done(self, message: MessageExt) -> None:
        held = self.process_queue
        held.mark_done(message)
        if self.wake is not None and held.count <= self._wake_at:
            self.wake_puller()
        if self.in_flight.running:
            self.in_flight.end(message, done=True)

    def mark_all_done(self, messages: list[MessageExt]) -> None:
        held = self.process_queue
        held.mark_all_done(messages)
        if self.wake is not None and held.count <= self._wake_at:
            self.wake_puller()
        if self.in_flight.running:
            for message in messages:
                self.in_flight.end(message, done=True)

    def complete(self, messages: list[MessageExt]) -> None:
        """Finish *messages* after their handler succeeded."""
        if self.uncommitted:
            self.mark_uncommitted_done()
        self.mark_all_done(messages)
        self.end_flight(len(messages))

    def mark_uncommitted_done(self) -> None:
        """Mark the messages done that an orderly handler had not committed."""
        self.mark_all_done(self.uncommitted)
        self.uncommitted.clear()

    def finish(self, messages: list[MessageExt]) -> None:
        """Count *messages* as no longer in flight, after the service dealt with failures."""
        self.end_flight(len(messages))
        self.end(messages)

    def end(self, messages: list[MessageExt]) -> None:
        """Let a later assignment deliver *messages*, whose handler has ended."""
        if self.in_flight.running:
            for message in messages:
                self.in_flight.end(message, done=False)

    def end_flight(self, count: int) -> None:
        """Count *count* messages as no longer in flight, done or not."""
        self.active -= count
        if not self.active and self.drained is not None:
            self.drained.set()

    def block(self) -> None:
        count = self.process_queue.count
        self._wake_at = count - min(WAKE_AFTER, 1 + count // WAKE_AFTER)

    def release(self) -> None:
        """Ignore late results from now on; free the cache."""
        super().release()
        self.process_queue.clear()
        self.uncommitted.clear()
        if self.in_flight.current is self:
            self.in_flight.current = None

    def _stop_delivery(self) -> None:
        self._register(counts=True)
        self._end_suspension()
        self.waiting.clear()

    def _end_suspension(self) -> None:
        """Resume the queue: the message it was suspended for is not retried here any more."""
        if self.resumed is not None:
            self.resumed.set()

    def _register(self, *, counts: bool) -> None:
        """Register the messages in flight, so that they are not delivered twice."""
        pending: list[MessageExt] = []
        if not self.dropped:  # else `drop` registered them, and some may have ended since
            idle = {id(each) for each in self.waiting}
            idle.update(id(each) for each in self.uncommitted)
            pending = [each for each in self.process_queue.not_done() if id(each) not in idle]
        self.in_flight.register(pending, counts=counts)


class RetryQueue(DispatchQueue):
    """A queue of a retry topic: handlers see the original topic of a message."""

    __slots__ = ("_retry_topics",)

    def __init__(
        self, queue: MessageQueue, retry_topics: RetryTopics, in_flight: InFlight | None = None
    ) -> None:
        super().__init__(queue, in_flight)
        self._retry_topics = retry_topics

    def put(self, messages: list[MessageExt]) -> None:
        for message in messages:
            self._retry_topics.restore_topic(message)
        super().put(messages)
