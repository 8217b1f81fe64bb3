"""Signals: the first SIGINT or SIGTERM stops a command gracefully, the second at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rocketmq_aio.cli.output import print_note
from rocketmq_aio.signals import stop_signals


class Stop:
    """Whether a signal was received."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self._asked

    def ask(self) -> None:
        """Record a signal; raise KeyboardInterrupt if it is not the first."""
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        print_note("stopping; once more stops at once")


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Handle signals during the block; restore the previous handlers after it."""
    stop = Stop()
    with stop_signals(stop.ask):
        yield stop


def interrupt() -> None:
    """Raise KeyboardInterrupt: for signals while there is nothing to stop gracefully."""
    raise KeyboardInterrupt
