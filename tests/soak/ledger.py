"""Ledger: which messages were sent and not received yet; bounded by what is in flight."""

from __future__ import annotations

from collections import Counter


class Ledger:
    """Numbered messages of one flow.

    :ivar sent: sends that returned ok
    :ivar failed: sends that raised: stored or not
    :ivar received: messages received, the first copy of each
    :ivar extra: further copies, and messages of failed sends
    :ivar disordered: messages received after a later one of their key
    :ivar errors: types of the exceptions of failed sends
    """

    def __init__(self) -> None:
        self.sent = self.failed = self.received = self.extra = self.disordered = 0
        self.errors: Counter[str] = Counter()
        self._last = 0
        self._last_of: Counter[int] = Counter()  # received, by key
        self._sending: set[int] = set()
        self._early: set[int] = set()  # received before their send returned
        self._expected: set[int] = set()

    @property
    def missing(self) -> int:
        """Messages that were sent and not received."""
        return len(self._expected)

    def faults(self) -> list[str]:
        """Return what is wrong at the end."""
        found = []
        if self.missing:
            found.append(f"{self.missing} messages are missing")
        if self.disordered:
            found.append(f"{self.disordered} messages came after a later one of their key")
        if not self.received:
            found.append("nothing was received")
        return found

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

    def receive(self, number: int) -> bool:
        """A copy of *number* was received; return whether it was the first."""
        if number in self._expected:
            self._expected.discard(number)
        elif number in self._sending and number not in self._early:
            self._early.add(number)
        else:
            self.extra += 1
            return False
        self.received += 1
        return True

    def receive_in_order(self, number: int, key: int) -> None:
        """As `receive`; the numbers of a *key* grow."""
        if self.receive(number):
            self.disordered += number < self._last_of[key]
            self._last_of[key] = max(number, self._last_of[key])
