"""Stop flag of a command: the first SIGINT or SIGTERM sets it, the second one ends the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rocketmq_aio.cli.output import print_note
from rocketmq_aio.signals import stop_signals


class StopFlag:
    """Whether a signal was received; call it to check."""

    def __init__(self) -> None:
        self._set = False

    def __call__(self) -> bool:
        return self._set

    def set(self) -> None:
        """Handle a signal; raise KeyboardInterrupt if it is not the first."""
        if self._set:
            raise KeyboardInterrupt
        self._set = True
        print_note("stopping; a second signal stops immediately")


@contextmanager
def stop_flag() -> Iterator[StopFlag]:
    """Yield a flag that signals set during the block; then restore the earlier handlers."""
    stop = StopFlag()
    with stop_signals(stop.set):
        yield stop
