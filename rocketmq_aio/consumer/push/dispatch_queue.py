"""A queue whose messages are given to handlers, and settled one by one in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakValueDictionary

import anyio

from rocketmq_aio.consumer.common.send_back import restore_topic
from rocketmq_aio.consumer.pulling.queue_state import UNKNOWN, QueueState
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue

# Room for so many messages has to come free before a pull loop is woken that waits for room; less
# in a queue with fewer, for those that are left may be in the hands of handlers for long.
WAKE_AFTER: Final = 32


class _Running:
    """A message in a handler, and its copy, pulled meanwhile, that waits for the handler's end."""

    __slots__ = ("assigned", "copy", "counts", "message")

    def __init__(self, message: MessageExt, *, counts: bool) -> None:
        self.message = message
        self.counts = counts  # whether success of the handler also settles the copy
        self.assigned: DispatchQueue | None = None  # which pulled the copy
        self.copy: MessageExt | None = None


class InFlight:
    """What handlers still do for one queue, whichever assignment of the queue started them.

    *running* holds the messages in handlers whose assignment was revoked or sought: nothing else
    would keep a later assignment from delivering them a second time.  Messages of the present
    assignment are not registered, so delivering costs nothing.

    :param withholds: whether only the messages in *running* are kept from delivery; an orderly
        service keeps the whole queue, by *busy*
    :param on_ready: called with an assignment when a withheld message may be delivered
    """

    __slots__ = (
        *("__weakref__", "_idle", "_on_ready", "_withholds"),
        *("busy", "current", "running", "suspended"),
    )

    def __init__(
        self,
        *,
        withholds: bool = True,
        on_ready: Callable[[DispatchQueue], None] = lambda assigned: None,
    ) -> None:
        self._withholds = withholds
        self._on_ready = on_ready
        self._idle: anyio.Event | None = None
        self.running: dict[int, _Running] = {}  # by id() of a message
        self.busy = False  # for orderly services: a handler runs, or the queue is suspended
        self.suspended = False
        self.current: DispatchQueue | None = None  # the assignment, unless it was revoked

    def register(self, unsettled: Iterable[MessageExt], *, counts: bool) -> None:
        """An assignment ends, or moves elsewhere, with these in handlers or withheld.

        :param counts: whether success of their handlers counts for the next assignment
        """
        withheld = {id(each.copy): each for each in self.running.values()}
        if not counts:
            for each in self.running.values():
                each.counts = False
        for message in unsettled:
            if (known := withheld.get(id(message))) is not None:
                known.assigned = known.copy = None
            else:
                self.running[id(message)] = _Running(message, counts=counts)

    def withhold(self, assigned: DispatchQueue, messages: list[MessageExt]) -> list[MessageExt]:
        """Return those of *messages* that may be delivered now; the others follow later."""
        if not self._withholds:
            return messages
        known = {
            (each.message.queue_offset, each.message.message_id): each
            for each in self.running.values()
        }
        offsets = {offset for offset, _ in known}
        free: list[MessageExt] = []
        for message in messages:
            same = None
            if message.queue_offset in offsets:  # a topic created anew counts from 0 again
                same = known.get((message.queue_offset, message.message_id))
            if same is None:
                free.append(message)
            else:
                same.assigned, same.copy = assigned, message
        return free

    def end(self, message: MessageExt, *, settled: bool) -> None:
        """The handler of *message* has ended; does nothing if the message is not registered."""
        ended = self.running.pop(id(message), None)
        if ended is None:
            return
        assigned, copy = ended.assigned, ended.copy
        if assigned is not None and copy is not None:
            if settled and ended.counts:
                assigned.settle(copy)
            else:
                assigned.put_back([copy])
                self._on_ready(assigned)
        if not self.running and self._idle is not None:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Return when no handler of an earlier assignment runs; for one caller at a time."""
        while self.running:
            self._idle = anyio.Event()
            await self._idle.wait()


class InFlightTable:
    """The `InFlight` of each queue, for as long as an assignment or a handler refers to it."""

    def __init__(self, *, withholds: bool, on_ready: Callable[[DispatchQueue], None]) -> None:
        self._withholds = withholds
        self._on_ready = on_ready
        self._queues: WeakValueDictionary[MessageQueue, InFlight] = WeakValueDictionary()

    def of(self, queue: MessageQueue) -> InFlight:
        """Return the same object for all assignments of *queue* whose handlers overlap."""
        known = self._queues.get(queue)
        if known is None:
            known = InFlight(withholds=self._withholds, on_ready=self._on_ready)
            self._queues[queue] = known
        return known


class DispatchQueue(QueueState):
    """Messages *waiting* for a handler, those in a handler's hands, and those settled behind them.

    Everything below the first message that is not settled may be committed.

    :param in_flight: shared by all assignments of the queue
    """

    __slots__ = ("_wake_at", "active", "in_flight", "is_ready", "turn", "uncommitted", "waiting")

    def __init__(self, queue: MessageQueue, in_flight: InFlight | None = None) -> None:
        super().__init__(queue)
        self.in_flight = InFlight() if in_flight is None else in_flight
        self.in_flight.current = self
        self.waiting: deque[MessageExt] = deque()
        self.active = 0  # messages in the hands of handlers, or workers that take them one by one
        self.is_ready = False  # among the queues that workers take from
        self.turn = 0
        self.uncommitted: list[MessageExt] = []  # done, but the handler wants to commit later
        self._wake_at = 0

    # --- position -------------------------------------------------------------------------------

    @property
    def committable(self) -> int:
        """Everything below may be committed."""
        first = self.process_queue.first_offset
        return self.next_offset if first is None else first

    @property
    def has_in_flight(self) -> bool:
        """Whether handlers work on messages."""
        return self.active > 0

    def begin(self, offset: int) -> None:
        """It is known where to begin."""
        self.next_offset = offset
        self.started.set()

    def restart(self, offset: int) -> int:
        """Forget the cache and go on at *offset*.

        Results of running handlers no longer count.  Their messages, pulled again, are delivered
        when these handlers have ended.
        """
        return self._go_on_at(offset, counts=False)

    def _go_on_at(self, offset: int, *, counts: bool) -> int:
        self._register(counts=counts)
        dropped = len(self.waiting)
        self.waiting.clear()
        self.uncommitted.clear()
        self.process_queue.clear()
        self.generation += 1
        self.failure = None
        self.begin(offset)
        return dropped

    def step_back(self, offset: int) -> int:
        """The queue ends at *offset*: nothing that is not settled may be passed over."""
        return self._go_on_at(min(offset, self.committable), counts=True)

    def refetch(self) -> None:
        """Forget what waits for its first try, and pull it again."""
        if self.next_offset == UNKNOWN:
            return
        untried = {id(each) for each in self.waiting if not each.local_retries}
        # Only what lies behind everything that handlers were given: that must not come again.
        offset = self.process_queue.cut(lambda message: id(message) in untried)
        if offset is not None:
            self.next_offset = offset
            kept = [each for each in self.waiting if each.queue_offset < offset]
            self.waiting.clear()  # the same deque: workers hold on to it
            self.waiting.extend(kept)
        self.generation += 1
        self.interrupt()

    def advance(self, offset: int) -> None:
        """The next pull begins at *offset*."""
        self.next_offset = offset

    # --- messages -------------------------------------------------------------------------------

    def put(self, messages: list[MessageExt]) -> None:
        """Cache what a pull brought."""
        new = self.process_queue.put(messages)
        if new < len(messages):
            messages = self.process_queue.last(new)
        if self.in_flight.running:
            messages = self.in_flight.withhold(self, messages)
        self.waiting.extend(messages)

    def take(self, limit: int) -> list[MessageExt]:
        """Give up to *limit* messages to a handler; there is at least one."""
        waiting = self.waiting
        if limit == 1:
            taken = [waiting.popleft()]
        else:
            taken = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        self.active += len(taken)
        return taken

    def put_back(self, messages: list[MessageExt]) -> None:
        """The handler did not settle them: they come first again."""
        kept = [each for each in messages if not each.done]
        if not self.dropped:
            self.waiting.extendleft(reversed(kept))

    def settle(self, message: MessageExt) -> None:
        """Count one message as done."""
        held = self.process_queue
        held.settle(message)
        if self.wake is not None and held.count <= self._wake_at:
            self.wake_puller()
        if self.in_flight.running:
            self.in_flight.end(message, settled=True)

    def complete(self, messages: list[MessageExt]) -> None:
        """A handler has done all of *messages*."""
        held = self.process_queue
        if self.uncommitted:
            self.settle_uncommitted()
        for message in messages:
            held.settle(message)
        self.active -= len(messages)
        if self.wake is not None and held.count <= self._wake_at:
            self.wake_puller()
        if self.drained is not None and not self.active:
            self.drained.set()
        if self.in_flight.running:
            for message in messages:
                self.in_flight.end(message, settled=True)

    def settle_uncommitted(self) -> None:
        """Settle the messages that the handler did not commit at once."""
        for message in self.uncommitted:
            self.settle(message)
        self.uncommitted.clear()

    def finish(self, messages: list[MessageExt]) -> None:
        """A handler has ended that did not do all of *messages*; the service has seen to them."""
        self.hand_back(len(messages))
        self.end(messages)

    def end(self, messages: list[MessageExt]) -> None:
        """Nobody works on *messages* any more: a later assignment may deliver them."""
        if self.in_flight.running:
            for message in messages:
                self.in_flight.end(message, settled=False)

    def hand_back(self, count: int) -> None:
        """So many messages are not in a handler's hands any more, settled or not."""
        self.active -= count
        if not self.active and self.drained is not None:
            self.drained.set()

    # --- the pull loop --------------------------------------------------------------------------

    def block(self) -> None:
        """The pull loop waits for room in this queue."""
        count = self.process_queue.count
        self._wake_at = count - min(WAKE_AFTER, 1 + count // WAKE_AFTER)

    # --- the end --------------------------------------------------------------------------------

    def release(self) -> None:
        """Late results change nothing here from now on; frees the cache at once."""
        super().release()
        self.process_queue.clear()
        self.uncommitted.clear()
        if self.in_flight.current is self:
            self.in_flight.current = None

    def _stop_delivery(self) -> None:
        self._register(counts=True)
        self.waiting.clear()

    def _register(self, *, counts: bool) -> None:
        """Tell later deliveries of the queue which messages handlers have."""
        unsettled: list[MessageExt] = []
        if not self.dropped:  # else they were registered then, and some may have ended since
            idle = {id(each) for each in self.waiting}
            idle.update(id(each) for each in self.uncommitted)
            unsettled = [each for each in self.process_queue.unsettled() if id(each) not in idle]
        self.in_flight.register(unsettled, counts=counts)


class RetryQueue(DispatchQueue):
    """A queue of the group's retry topic: handlers see the topic that a message came from."""

    __slots__ = ()

    def put(self, messages: list[MessageExt]) -> None:
        """Cache what a pull brought."""
        for message in messages:
            restore_topic(message)
        super().put(messages)
