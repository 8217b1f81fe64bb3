"""Process queue: the cached messages of one queue, in offset order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from rocketmq_aio.core import core
from rocketmq_aio.model.message import MessageExt

NO_OFFSET: Final = -1


class ProcessQueue:
    """Messages of one queue, ascending by offset, for one assignment of the queue.

    Used in one of two ways: `take` removes messages, or they stay until `mark_done`, which may be
    called in any order.  Nothing here awaits, so every call is atomic.  *count* and *size_bytes*
    are read-only.
    """

    __slots__ = ("_largest", "_messages", "count", "size_bytes")

    count: int  # messages neither taken nor done
    size_bytes: int  # of bodies in memory, also of done messages behind an one that is not

    def __init__(self) -> None:
        self._messages: deque[MessageExt] = deque()
        self._largest = NO_OFFSET
        self.count = 0
        self.size_bytes = 0

    def put(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Append *messages*, except those at or below the largest offset so far.

        Returns those that were appended.  A repeated offset comes from a repeated pull, or from a
        broker that went back; `clear` accepts it again.
        """
        measured = _measure(messages, self._largest)
        if measured is None:
            return self._put_new(messages)
        largest, size = measured
        self._messages.extend(messages)
        self._largest = largest
        self.count += len(messages)
        self.size_bytes += size
        return messages

    def _put_new(self, messages: list[MessageExt]) -> list[MessageExt]:
        new: list[MessageExt] = []
        largest = self._largest
        for message in messages:
            if message.queue_offset > largest:
                new.append(message)
                largest = message.queue_offset
        return self.put(new)

    def take(self, limit: int) -> list[MessageExt]:
        """Remove and return up to *limit* messages."""
        messages = self._messages
        if limit >= len(messages):
            taken = list(messages)
            messages.clear()
            self.count = self.size_bytes = 0
            return taken
        popleft = messages.popleft
        taken = [popleft() for _ in range(limit)]
        self.count -= len(taken)
        self.size_bytes -= sum([len(message.body) for message in taken])
        return taken

    def take_one(self) -> MessageExt:
        """Remove and return the first message.  Raises IndexError: *count* is 0."""
        message = self._messages.popleft()
        self.count -= 1
        self.size_bytes -= len(message.body)
        return message

    def mark_done(self, message: MessageExt) -> None:
        """Mark *message* as processed; doing it again changes nothing."""
        if message.done:
            return
        message.done = True
        self.count -= 1
        messages = self._messages
        while messages and messages[0].done:
            self.size_bytes -= len(messages.popleft().body)

    def mark_all_done(self, messages: list[MessageExt]) -> None:
        """Mark *messages* as processed, as `mark_done` does."""
        if core is None:
            for message in messages:
                self.mark_done(message)
            return
        marked, freed = core.mark_done(messages, self._messages)
        self.count -= marked
        self.size_bytes -= freed

    def not_done(self) -> list[MessageExt]:
        """Return the messages that are not done."""
        return [message for message in self._messages if not message.done]

    def cut(self, removable: Callable[[MessageExt], bool]) -> int | None:
        """Remove messages that are not done from the end while they are *removable*.

        They may be put again.  Returns the offset of the first one removed, or None.
        """
        messages, offset = self._messages, None
        while messages and removable(messages[-1]):
            offset = messages[-1].queue_offset
            self.size_bytes -= len(messages.pop().body)
            self.count -= 1
        if offset is not None:
            self._largest = offset - 1
        return offset

    def clear(self) -> int:
        """Remove everything, also the largest offset; return how many messages were dropped.

        Messages in flight may be marked done later, without effect.
        """
        dropped = self.count
        for message in self._messages:
            message.done = True
        self._messages.clear()
        self._largest = NO_OFFSET
        self.count = self.size_bytes = 0
        return dropped

    @property
    def first_offset(self) -> int | None:
        """Offset of the first message, or None: all below it were taken or are done."""
        return self._messages[0].queue_offset if self._messages else None

    @property
    def span(self) -> int:
        """Distance from the first to the last offset; 0 without messages."""
        return self._largest - self._messages[0].queue_offset if self._messages else 0


def _measure(messages: list[MessageExt], largest: int) -> tuple[int, int] | None:
    """Return the last offset and the bytes of all bodies; None unless offsets ascend."""
    if core is not None and (measured := core.measure_messages(messages, largest)) is not None:
        return measured
    size = 0
    for message in messages:
        if message.queue_offset <= largest:
            return None
        largest = message.queue_offset
        size += len(message.body)
    return largest, size
