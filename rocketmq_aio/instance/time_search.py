"""Search for the first offset stored at or after a time; the broker only gives a hint.

Brokers before 5.0 return the message closest in time, and any one of several with the same time;
5.x brokers can return an offset that has been deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

NARROW: Final = 2  # the message before the hint, and the one at the hint
WIDE: Final = 32


class TimeSearch:
    """Bisects a queue by store times, which grow with the offset.

    `find` reads `count` messages from `probe` on and passes them to `seen`, until `found` is set.

    :param hint: the offset that the broker returned; a wrong one only costs more reads
    """

    def __init__(self, millis: int, minimum: int, maximum: int, hint: int) -> None:
        self._millis = millis
        self._low, self._high = minimum, max(minimum, maximum)  # inclusive
        self._step = 0
        self._directions: set[str] = set()
        self.count = NARROW
        self.probe = self._inside(hint - 1)

    async def find(self, read: Callable[[int, int], Awaitable[Sequence[tuple[int, int]]]]) -> int:
        """Return the offset, with the messages (offset, store time) that *read* returns.

        :param read: takes the first offset and the number of messages; returns at least one, if
            there is one behind that offset
        """
        while (found := self.found) is None:
            self.seen(await read(self.probe, self.count))
        return found

    @property
    def found(self) -> int | None:
        """The offset, once known; the end of the queue when all messages are older."""
        return self._low if self._low >= self._high else None

    def seen(self, messages: Sequence[tuple[int, int]]) -> None:
        """Process the messages (offset, store time) from `probe` on, in order."""
        older = sum(stored < self._millis for _, stored in messages)
        if older == 0:
            self._high = self.probe
            self._next_probe("down")
        elif older < len(messages):
            self._low = self._high = min(messages[older][0], self._high)
        else:
            self._low = min(messages[-1][0] + 1, self._high)
            self._next_probe("up")

    def _next_probe(self, direction: str) -> None:
        """Probe at doubling distances; bisect once the target is between two probes."""
        self._directions.add(direction)
        self.count = WIDE
        if len(self._directions) == 2:
            near = self._high - self._low <= WIDE
            self.probe = self._low if near else (self._low + self._high) // 2
            return
        if direction == "up":
            self.probe = self._inside(self._low + self._step)
        self._step = self._step * 2 or WIDE
        if direction == "down":
            self.probe = self._inside(self._high - self._step)

    def _inside(self, offset: int) -> int:
        return min(max(offset, self._low), max(self._low, self._high - 1))
