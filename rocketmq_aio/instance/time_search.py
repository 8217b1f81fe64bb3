"""The first offset stored at or after a time: brokers are asked, and not believed.

Brokers before 5.0 answer with the message that is closest in time, and with any one among several
of the same time; those of 5.x can answer an offset that is not there any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NARROW: Final = 2  # the message before the hint, and the one at the hint
WIDE: Final = 32


class TimeSearch:
    """Narrows down where *millis* begins, from store times that grow along the queue.

    Ask for `count` messages from `probe` on and tell `seen` what came, until `found` is set.

    :param hint: what the broker says; it costs more questions when it is wrong, and no more
    """

    def __init__(self, millis: int, minimum: int, maximum: int, hint: int) -> None:
        self._millis = millis
        self._low, self._high = minimum, max(minimum, maximum)  # it is one of these, or between
        self._step = 0
        self._ways: set[str] = set()
        self.count = NARROW
        self.probe = self._inside(hint - 1)

    @property
    def found(self) -> int | None:
        """The offset, once it is sure; the end of the queue when everything is older."""
        return self._low if self._low >= self._high else None

    def seen(self, messages: Sequence[tuple[int, int]]) -> None:
        """Take the messages (offset, store time) that are stored from `probe` on, in order."""
        older = sum(stored < self._millis for _, stored in messages)
        if older == 0:
            self._high = self.probe
            self._go_on("down")
        elif older < len(messages):
            self._low = self._high = min(messages[older][0], self._high)
        else:
            self._low = min(messages[-1][0] + 1, self._high)
            self._go_on("up")

    def _go_on(self, way: str) -> None:
        """Probe further off each time, and in the middle once it lies between two probes."""
        self._ways.add(way)
        self.count = WIDE
        if len(self._ways) == 2:
            near = self._high - self._low <= WIDE
            self.probe = self._low if near else (self._low + self._high) // 2
            return
        if way == "up":
            self.probe = self._inside(self._low + self._step)
        self._step = self._step * 2 or WIDE
        if way == "down":
            self.probe = self._inside(self._high - self._step)

    def _inside(self, offset: int) -> int:
        return min(max(offset, self._low), max(self._low, self._high - 1))
