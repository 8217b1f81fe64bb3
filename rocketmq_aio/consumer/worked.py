"""A queue whose messages are given to handlers, and settled one by one in any order."""

from __future__ import annotations

from collections import deque
from typing import Final

from rocketmq_aio.consumer.assigned import UNKNOWN, AssignedQueue
from rocketmq_aio.consumer.send_back import restore_topic
from rocketmq_aio.message import MessageExt, MessageQueue

# Room for so many messages has to come free before a pull loop is woken that waits for room; less
# in a queue with fewer, for those that are left may be in the hands of handlers for long.
WAKE_AFTER: Final = 32


class WorkedQueue(AssignedQueue):
    """Messages *waiting* for a handler, those in a handler's hands, and those settled behind them.

    Everything below the first message that is not settled may be committed.
    """

    __slots__ = ("_wake_at", "active", "in_line", "turn", "uncommitted", "waiting")

    def __init__(self, queue: MessageQueue) -> None:
        super().__init__(queue)
        self.waiting: deque[MessageExt] = deque()
        self.active = 0  # messages in the hands of handlers, or workers that take them one by one
        self.in_line = False  # among the queues that workers take from
        self.turn = 0
        self.uncommitted: list[MessageExt] = []  # done, but the handler wants to commit later
        self._wake_at = 0

    # --- position -------------------------------------------------------------------------------

    @property
    def settled(self) -> int:
        """Everything below may be committed."""
        first = self.process_queue.first_offset
        return self.next_offset if first is None else first

    @property
    def in_hands(self) -> bool:
        """Whether handlers work on messages."""
        return self.active > 0

    def begin(self, offset: int) -> None:
        """It is known where to begin."""
        self.next_offset = offset
        self.started.set()

    def restart(self, offset: int) -> int:
        """Forget what is cached, and what handlers have in hands, and go on at *offset*."""
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
        return self.restart(min(offset, self.settled))

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
        self.waiting.extend(messages if new == len(messages) else self.process_queue.last(new))

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

    def complete(self, messages: list[MessageExt]) -> None:
        """A handler has done all of *messages*."""
        held = self.process_queue
        for message in messages:
            held.settle(message)
        self.active -= len(messages)
        if self.wake is not None and held.count <= self._wake_at:
            self.wake_puller()
        if self.all_settled is not None and not self.active:
            self.all_settled.set()

    def hand_back(self, count: int) -> None:
        """So many messages are not in a handler's hands any more, settled or not."""
        self.active -= count
        if not self.active and self.all_settled is not None:
            self.all_settled.set()

    # --- the pull loop --------------------------------------------------------------------------

    def block(self) -> None:
        """The pull loop waits for room in this queue."""
        count = self.process_queue.count
        self._wake_at = count - min(WAKE_AFTER, 1 + count // WAKE_AFTER)

    def _give_up(self) -> None:
        self.waiting.clear()


class RetryQueue(WorkedQueue):
    """A queue of the group's retry topic: handlers see the topic that a message came from."""

    __slots__ = ()

    def put(self, messages: list[MessageExt]) -> None:
        """Cache what a pull brought."""
        for message in messages:
            restore_topic(message)
        super().put(messages)
