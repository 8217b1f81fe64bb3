"""The messages of one queue between the broker and the application, in offset order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from rocketmq_aio.model.message import MessageExt

NOTHING_YET: Final = -1


class ProcessQueue:
    """Messages of one queue, ascending by offset; made for one tenure of the queue.

    Used in one of two ways, never in both at once: `take` hands messages out and forgets them,
    or they stay until each is `settle`d, in any order.  Nothing here awaits, so every call is one
    step to the rest of the program.  *count* and *size_bytes* are for others to read only.
    """

    __slots__ = ("_largest", "_messages", "count", "size_bytes")

    count: int  # messages that are neither taken nor settled
    size_bytes: int  # bodies held in memory: also of settled messages behind an unsettled one

    def __init__(self) -> None:
        self._messages: deque[MessageExt] = deque()
        self._largest = NOTHING_YET
        self.count = 0
        self.size_bytes = 0

    def put(self, messages: list[MessageExt]) -> int:
        """Append *messages*, but for those at or below the largest offset ever put.

        Returns how many were appended.  An offset that was seen before comes from a repeated
        pull, or from a broker that jumped back: only `clear` makes it new again.
        """
        largest, size = self._largest, 0
        for message in messages:
            if message.queue_offset <= largest:
                return self._put_new(messages)
            largest = message.queue_offset
            size += len(message.body)
        self._messages.extend(messages)
        self._largest = largest
        self.count += len(messages)
        self.size_bytes += size
        return len(messages)

    def _put_new(self, messages: list[MessageExt]) -> int:
        new: list[MessageExt] = []
        largest = self._largest
        for message in messages:
            if message.queue_offset > largest:
                new.append(message)
                largest = message.queue_offset
        return self.put(new)

    def take(self, limit: int) -> list[MessageExt]:
        """Remove and return the first *limit* messages, or all there are."""
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
        """Remove and return the first message.

        :raises IndexError: there is none; *count* tells
        """
        message = self._messages.popleft()
        self.count -= 1
        self.size_bytes -= len(message.body)
        return message

    def settle(self, message: MessageExt) -> None:
        """Count *message*, which was put here, as done; doing it again changes nothing."""
        if message.done:
            return
        message.done = True
        self.count -= 1
        messages = self._messages
        while messages and messages[0].done:
            self.size_bytes -= len(messages.popleft().body)

    def unsettled(self) -> list[MessageExt]:
        """Return the messages held here that are not settled."""
        return [message for message in self._messages if not message.done]

    def last(self, number: int) -> list[MessageExt]:
        """Return the last *number* messages that were put."""
        messages = self._messages
        return [messages[at] for at in range(len(messages) - number, len(messages))]

    def cut(self, forgettable: Callable[[MessageExt], bool]) -> int | None:
        """Forget messages, none of which is settled, from the end on while they are *forgettable*.

        They may come again.  Returns the offset of the first one forgotten, None when none was.
        """
        messages, offset = self._messages, None
        while messages and forgettable(messages[-1]):
            offset = messages[-1].queue_offset
            self.size_bytes -= len(messages.pop().body)
            self.count -= 1
        if offset is not None:
            self._largest = offset - 1
        return offset

    def clear(self) -> int:
        """Forget everything, offsets seen included, and return how many messages were dropped.

        A message still in the hands of a worker may be settled later; that changes nothing then.
        """
        dropped = self.count
        for message in self._messages:
            message.done = True
        self._messages.clear()
        self._largest = NOTHING_YET
        self.count = self.size_bytes = 0
        return dropped

    @property
    def first_offset(self) -> int | None:
        """Offset of the first message held here, or None."""
        return self._messages[0].queue_offset if self._messages else None

    @property
    def next_offset(self) -> int | None:
        """The offset that may be committed: everything below it was taken or settled.

        None when nothing was put since the start or the last `clear`.
        """
        if self._messages:
            return self._messages[0].queue_offset
        return None if self._largest == NOTHING_YET else self._largest + 1

    @property
    def span(self) -> int:
        """Distance from the first to the last message held here; 0 when there is none."""
        return self._largest - self._messages[0].queue_offset if self._messages else 0
