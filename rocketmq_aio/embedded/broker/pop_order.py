"""Ordered pops of the broker: in-flight messages of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class PopOrder:
    """One queue of a group: blocked while messages are invisible."""

    attempt_id: str | None = None
    popped_at: int = 0  # in ms; receipts of another time have no effect
    ends: dict[int, int] = field(default_factory=dict)  # of invisibility, in ms, by offset
    tries: dict[int, int] = field(default_factory=dict)
    last: int = -1

    def blocks(self, attempt_id: str | None, now: int) -> bool:
        """Whether the queue is blocked; the same attempt gets the same messages again."""
        if attempt_id is not None and attempt_id == self.attempt_id:
            return False
        return any(now < end for end in self.ends.values())

    def deliver(
        self, attempt_id: str | None, offsets: Sequence[int], now: int, end: int
    ) -> dict[int, int]:
        """Record a pop of *offsets*; return how often each was popped before."""
        if attempt_id is None or attempt_id != self.attempt_id:
            self.tries = {offset: self.tries.get(offset, -1) + 1 for offset in offsets}
        self.attempt_id = attempt_id
        self.popped_at = now
        self.ends = dict.fromkeys(offsets, end)
        self.last = offsets[-1]
        return self.tries

    def ack(self, offset: int, popped_at: int) -> int | None:
        """Return the first unacknowledged offset; None: *offset* was not popped, or is acked."""
        if popped_at != self.popped_at or self.ends.pop(offset, None) is None:
            return None
        return min(self.ends, default=self.last + 1)

    def hide(self, offset: int, popped_at: int, end: int) -> None:
        """Set the end of invisibility of a message of the last pop."""
        if popped_at == self.popped_at and offset in self.ends:
            self.ends[offset] = end
