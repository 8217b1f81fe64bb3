"""Stop signals of commands: as a flag, or as KeyboardInterrupt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rocketmq_aio.cli.output import print_note
from rocketmq_aio.signals import stop_signals


@contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """Yield what returns whether SIGINT or SIGTERM was received; a second one interrupts."""
    is_set = False

    def set_flag() -> None:
        nonlocal is_set
        if is_set:
            raise KeyboardInterrupt
        is_set = True
        print_note("stopping; a second signal stops immediately")

    with stop_signals(set_flag):
        yield lambda: is_set


def interruptible() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on the first signal, as in prompts, which block the event loop."""
    return stop_signals(_interrupt)


def _interrupt() -> None:
    raise KeyboardInterrupt
