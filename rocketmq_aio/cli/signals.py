"""SIGINT and SIGTERM end a long command in order; the second one ends it at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rocketmq_aio.cli.output import print_note
from rocketmq_aio.signals import stop_signals


class Stop:
    """Whether a signal came."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self._asked

    def ask(self) -> None:
        """Remember a signal; raise KeyboardInterrupt when it is not the first."""
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        print_note("stopping; once more stops at once")


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Yield what the signals of the block change; the handlers before are put back."""
    stop = Stop()
    with stop_signals(stop.ask):
        yield stop


def interrupt() -> None:
    """Raise KeyboardInterrupt: for signals while there is nothing to end in order."""
    raise KeyboardInterrupt
