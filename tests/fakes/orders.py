"""What the fake broker remembers of ordered pops: which messages of a queue are under way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Order:
    """One queue of one group: nothing more of it while something is invisible."""

    next: int | None = None  # the first offset that is not acknowledged
    attempt_id: str | None = None
    ends: dict[int, int] = field(default_factory=dict)  # of what is not acknowledged, in ms
    tries: dict[int, int] = field(default_factory=dict)
    last: int = -1

    def blocks(self, attempt_id: str | None, now: int) -> bool:
        """Whether nothing may be given; the same attempt gets the same messages again."""
        if attempt_id is not None and attempt_id == self.attempt_id:
            return False
        return any(now < end for end in self.ends.values())

    def lend(self, attempt_id: str | None, offsets: Sequence[int], end: int) -> int:
        """Note a pop of *offsets*; return how often the first was given before."""
        if attempt_id is None or attempt_id != self.attempt_id:
            self.tries = {offset: self.tries.get(offset, -1) + 1 for offset in offsets}
        self.attempt_id = attempt_id
        self.ends = dict.fromkeys(offsets, end)
        self.next, self.last = offsets[0], offsets[-1]
        return self.tries[offsets[0]]

    def ack(self, offset: int) -> None:
        self.ends.pop(offset, None)
        self.next = min(self.ends, default=self.last + 1)

    def move(self, offset: int, end: int) -> None:
        """A message of the last pop is invisible until *end*."""
        if offset in self.ends:
            self.ends[offset] = end


class Orders:
    """All queues from which somebody popped in order."""

    def __init__(self) -> None:
        self._orders: dict[Hashable, Order] = defaultdict(Order)

    def of(self, group: str, place: Hashable) -> Order:
        return self._orders[group, place]
