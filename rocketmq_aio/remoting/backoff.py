"""Exponential backoff with jitter."""

from __future__ import annotations

from random import random
from typing import Final

from rocketmq_aio.errors import NotConnectedError

FIRST_SECONDS: Final = 0.1
NO_MASTER_SECONDS: Final = 0.25  # until routes are refreshed
LONGEST_SECONDS: Final = 2.0  # a restarted broker is used again within this time


class BackoffError(NotConnectedError):
    """Not attempted: the address failed, and its backoff has not passed."""


class NoMasterError(BackoffError):
    """Not attempted: no route has a master of the broker."""

    def __init__(self, broker_name: str) -> None:
        super().__init__(broker_name, "no route names a master of this broker now")


class Backoff:
    """Counts failures in a row; the pause doubles with each, from *first* up to *longest*."""

    def __init__(self, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        self._first = first
        self._longest = longest
        self.failures = 0

    def next_pause(self) -> float:
        """Count a failure and return how many seconds to wait before the next try."""
        pause = min(self._longest, self._first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        # Jitter: clients that failed together do not retry together.
        return pause * (0.5 + random() / 2)

    def reset(self) -> None:
        """Forget the failures after a success."""
        self.failures = 0
