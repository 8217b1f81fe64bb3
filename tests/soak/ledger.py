"""Ledger: which messages were sent and not received yet; bounded by what is in flight."""

from __future__ import annotations

from collections import Counter


class Ledger:
    """Numbered messages of one flow.

    :ivar sent: sends that returned ok
    :ivar failed: sends that raised: stored or not
    :ivar received: messages received, the first copy of each
    :ivar extra: further copies, and messages of failed sends
    :ivar errors: types of the exceptions of failed sends
    """

    def __init__(self) -> None:
        self.sent = self.failed = self.received = self.extra = 0
        self.errors: Counter[str] = Counter()
        self._last = 0
        self._sending: set[int] = set()
        self._early: set[int] = set()  # received before their send returned
        self._expected: set[int] = set()

    @property
    def missing(self) -> int:
        """Messages that were sent and not received."""
        return len(self._expected)

    def begin(self) -> int:
        """Return the number of a new message."""
        self._last += 1
        self._sending.add(self._last)
        return self._last

    def succeed(self, number: int) -> None:
        """The send of *number* returned ok."""
        self._sending.discard(number)
        self.sent += 1
        if number in self._early:
            self._early.discard(number)
        else:
            self._expected.add(number)

    def fail(self, number: int, error: Exception) -> None:
        """The send of *number* raised."""
        self.errors[type(error).__name__] += 1
        self._sending.discard(number)
        self._early.discard(number)
        self.failed += 1

    def receive(self, number: int) -> None:
        """A copy of *number* was received."""
        if number in self._expected:
            self._expected.discard(number)
            self.received += 1
        elif number in self._sending and number not in self._early:
            self._early.add(number)
            self.received += 1
        else:
            self.extra += 1
