"""SIGINT and SIGTERM end a long command between two steps; the second one ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rocketmq_aio.cli.output import note

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether a signal came."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self._asked

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal; raise KeyboardInterrupt when it is not the first."""
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        note("stopping after the step under way; once more stops at once")


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Yield what the signals of the block change; the handlers before are put back."""
    stop = Stop()
    before = {number: signal.signal(number, stop.ask) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
